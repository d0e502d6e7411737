"""The native module is built with protection against overruns. The lock file has the packages for serving."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.harness.programs import ROOT


def readelf(*options: str) -> str:
    if shutil.which("readelf") is None or sys.platform != "linux":
        pytest.skip("readelf is not installed")
    module = ROOT / "native" / "build" / "qa.so"
    return subprocess.run(["readelf", "-W", *options, module], capture_output=True, text=True, check=True).stdout


def test_the_module_is_hardened() -> None:
    segments = readelf("-l")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.* RW +0x", segments)
    assert "BIND_NOW" in readelf("-d")
    symbols = readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert re.search(r"__\w+_chk\b", symbols.replace("__stack_chk_fail", ""))


@pytest.mark.parametrize("missing", ["make", "cc", "both"])
def test_without_a_compiler_the_installation_says_what_to_install(tmp_path: Path, missing: str) -> None:
    for name in {"make", "cc"} - {missing} if missing != "both" else ():
        (tmp_path / name).symlink_to("/bin/true")
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tmp_path)}
    code = "import runpy, setuptools; setuptools.setup = lambda **_: 0; runpy.run_path('setup.py')['need_tools']()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    names = "make, cc" if missing == "both" else missing
    assert f"cannot build the native module: not found in PATH: {names}. Install make and a C compiler" in done.stderr
    assert "apt-get install make gcc libc6-dev" in done.stderr


def pinned(file: str) -> dict[str, str]:
    """Return the versions in a file of pinned packages, by normalised name."""
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", (ROOT / file).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_lock_file_has_what_serving_needs_at_the_tested_versions() -> None:
    locked, tested = pinned("deploy/service.lock"), pinned("constraints.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", row)[0]).lower() for row in project["dependencies"]}
    assert needed <= set(locked)
    assert {name: version for name, version in locked.items() if tested.get(name) != version} == {}
    assert "torch" not in locked
    lines = (ROOT / "deploy/service.lock").read_text().splitlines()
    assert sum("==" in line for line in lines) < sum("--hash=sha256:" in line for line in lines)
