"""On a machine without a compiler and make, the wheel of `make wheel` installs with the lock file and answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.ports import free_port
from tests.harness.programs import ROOT
from tests.harness.workers import FEW_TOKENS

LOCK = ROOT / "deploy" / "service.lock"


@pytest.fixture(scope="module")
def wheel() -> Path:
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True, capture_output=True)
    (made,) = (ROOT / "dist").glob("*.whl")
    return made


@pytest.mark.timeout(600)
def test_one_wheel_fits_every_python(wheel: Path) -> None:
    assert re.fullmatch(r"qa_cluster-[\d.]+-py3-none-manylinux_2_34_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert "Requires-Python: >=3.11" in archive.read(metadata).decode()


@pytest.mark.timeout(600)
def test_the_bill_of_materials_names_the_components_of_the_wheel(wheel: Path) -> None:
    bill = json.loads(wheel.with_suffix(".cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "qa-cluster")
    (digest,) = bill["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    named = {row["name"]: row["version"] for row in bill["components"]}
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", LOCK.read_text(), re.MULTILINE))
    assert len(locked) > 40
    assert locked.items() <= named.items()
    with zipfile.ZipFile(wheel) as archive:
        module = hashlib.sha256(archive.read("qa_cluster/native/qa.so")).hexdigest()
    (part,) = [row for row in bill["components"] if row["bom-ref"] == "qa_cluster/native/qa.so"]
    assert part["hashes"] == [{"alg": "SHA-256", "content": module}]


@pytest.mark.timeout(900)
def test_the_installed_wheel_answers_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """All dependencies are installed into a separate environment, and their hashes are checked."""
    bin_folder = tmp_path / "environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", bin_folder.parent], check=True)
    # PATH has only the environment, without cc, make and redis-server.
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(bin_folder)}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (bin_folder / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", LOCK)
    run(*pip, "--no-index", "--no-deps", wheel)
    run(bin_folder / "python", "-m", "pip", "check")
    options = ["--set", "shards=2", "--set", "worker_threads=1", "--set", f"max_batch_tokens={FEW_TOKENS}"]
    options += ["--set", "start_timeout_ms=300000", "--data-dir", str(tmp_path / "data")]
    output = run(bin_folder / "qa-cluster", *options, "demo", "--once", "--port", str(free_port()))
    assert re.search(r"division by zero raise\? +ZeroDivisionError", output)
