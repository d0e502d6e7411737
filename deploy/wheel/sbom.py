"""Writes the software bill of materials of a wheel as CycloneDX JSON, next to the wheel.

The document lists the components in the wheel (the native module, the bundled reader and the bundled encoder) and the
packages of the lock file that the service needs, with hashes. `make wheel` runs this program in an environment with
deploy/wheel/requirements.txt:

    python deploy/wheel/sbom.py dist/qa_cluster-….whl deploy/service.lock
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]
# The components of the wheel that are not Python: path, kind of component, name.
PARTS = (
    ("qa_cluster/native/qa.so", "library", "qa-cluster native module"),
    ("qa_cluster/models/default/reader.onnx", "machine-learning-model", "qa-cluster bundled reader"),
    ("qa_cluster/models/encoder/encoder.onnx", "machine-learning-model", "qa-cluster bundled encoder"),
)


def sha256(data: bytes) -> list[dict[str, str]]:
    """Return the `hashes` of a component."""
    return [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]


def dependencies(lock: Path) -> dict[str, Any]:
    """Return a CycloneDX document that describes the project and has the packages of the lock file as components."""
    command = [str(Path(sys.executable).with_name("cyclonedx-py")), "requirements", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application", "--short-PURLs", str(lock)]
    document: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for component in document["components"]:
        component.pop("description", None)  # repeats the line of the lock file
    return document


def needed_first() -> set[str]:
    """Return the normalised names of the direct dependencies of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {normal(re.split(r"[^\w.-]", text)[0]) for text in project["dependencies"]}


def normal(name: str) -> str:
    """Normalise a package name, as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def bill(wheel: Path, lock: Path) -> dict[str, Any]:
    """Return the bill of materials of `wheel`."""
    document = dependencies(lock)
    subject = document["metadata"]["component"]
    subject["hashes"] = sha256(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        parts = [
            {
                "bom-ref": path,
                "type": kind,
                "name": name,
                "version": subject["version"],
                "hashes": sha256(archive.read(path)),
            }
            for path, kind, name in PARTS
        ]
    first = needed_first()
    below = [row["bom-ref"] for row in document["components"] if normal(row["name"]) in first]
    for row in document["dependencies"]:
        if row["ref"] == subject["bom-ref"]:
            row["dependsOn"] = sorted([*below, *(part["bom-ref"] for part in parts)])
    document["components"] += parts
    document["dependencies"] += [{"ref": part["bom-ref"]} for part in parts]
    return document


def main(wheel: Path, lock: Path) -> None:
    """Write the document next to the wheel; exit with an error if it does not match the CycloneDX schema."""
    text = json.dumps(bill(wheel, lock), indent=1, sort_keys=True) + "\n"
    version = SchemaVersion.from_version(json.loads(text)["specVersion"])
    problem = JsonStrictValidator(version).validate_str(text)
    if problem is not None:
        raise SystemExit(f"the bill of materials does not match CycloneDX {version.to_version()}: {problem}")
    wheel.with_suffix(".cdx.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
