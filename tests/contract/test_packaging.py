"""What is in git is what is in the wheel, and settings that name files and folders agree with the tree."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"qa_cluster": "qa_cluster", "gears": "qa_cluster/gears", "models": "qa_cluster/models"} | {
    "api": "qa_cluster/api",
    "cluster": "qa_cluster/cluster",
}


def tracked() -> list[str]:
    """Files git tracks, as paths from the root."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return done.stdout.split("\n")


@pytest.mark.timeout(300)
def test_wheel_holds_the_tracked_files_and_the_module(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        name.replace(folder + "/", FOLDERS[folder] + "/", 1)
        for name in tracked()
        if (folder := name.partition("/")[0]) in FOLDERS and "/" in name
    }
    assert names == expected | {"qa_cluster/native/qa.so"}
    assert not wheel.name.endswith("-any.whl")


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    present = {
        str(path.parent.relative_to(ROOT)).replace(folder, FOLDERS[folder], 1).replace("/", ".")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == present


def test_no_dependency_on_torch_to_serve() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = " ".join(project["dependencies"])
    assert "torch" not in needed
    assert "transformers" not in needed
