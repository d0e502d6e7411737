"""The distribution qa-cluster-client contains the modules that the REST clients import, and no others."""

from __future__ import annotations

import functools
import runpy
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.contract.test_packaging import pip
from tests.harness.programs import ROOT

CLIENT = ROOT / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETUP = runpy.run_path(str(CLIENT / "setup.py"))
# The packages that httpx needs, and an optional package of its command line.
NEEDED = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "orjson", "sniffio", "typing_extensions"}
LOADED_BY_HTTPX = {"click", "pygments", "rich"}


@functools.cache
def loaded() -> list[str]:
    """The modules that the clients load, with their files."""
    show = "print(*(f'{n} {getattr(m, \"__file__\", None)}' for n, m in list(sys.modules.items())), sep='\\n')"
    code = f"import sys, qa_cluster.client; {show}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_list_is_what_the_clients_load() -> None:
    names = {line.split()[0] for line in loaded()}
    own = {name for name in names if name.split(".")[0] == "qa_cluster"}
    assert own | {"qa_cluster.integrations"} == SETUP["MODULES"]


def test_the_clients_load_no_package_that_only_the_full_distribution_needs() -> None:
    site = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    foreign = {
        name.split(".")[0].removesuffix("_finder")
        for name, file in (line.split(maxsplit=1) for line in loaded())
        if file.startswith(tuple(site)) and not name.startswith(("__editable__", "_"))
    }
    assert {"httpx", "orjson"} <= foreign <= NEEDED | LOADED_BY_HTTPX


def test_its_dependencies_and_extras_are_those_of_the_full_distribution() -> None:
    project = PROJECT["project"]
    assert set(project["dependencies"]) <= set(WHOLE["dependencies"])
    extras = WHOLE["optional-dependencies"]
    assert project.get("optional-dependencies", {}).items() <= extras.items()
    assert project["requires-python"] == WHOLE["requires-python"]


@pytest.mark.timeout(300)
def test_the_wheel_has_these_modules(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, CLIENT)
    (made,) = tmp_path.glob("*.whl")
    assert made.name == f"qa_cluster_client-{WHOLE['version']}-py3-none-any.whl"
    names = [name for name in zipfile.ZipFile(made).namelist() if ".dist-info/" not in name]
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names}
    adapters = {name for name in modules if f"{name}.".startswith(SETUP["ADAPTERS"])} - {"qa_cluster.integrations"}
    assert modules - adapters == SETUP["MODULES"] | {"qa_cluster.py.typed"}
    assert {name.split(".")[2] for name in adapters if name.startswith("qa_cluster.")} == {
        package.split(".")[2]
        for package in PROJECT["tool"]["setuptools"]["packages"]
        if package.startswith("qa_cluster.integrations.")
    }


def test_a_cluster_client_without_the_full_distribution_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hiredis'] = None\n"
        "try:\n    from qa_cluster.client import ClusterClient\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ClusterClient needs the distribution qa-cluster" in done.stdout
