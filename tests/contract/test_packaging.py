"""The wheel has the files of git, and an installed wheel works in every directory, also in a checkout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.workers import COMPILED, FEW_TOKENS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"qa_cluster": "qa_cluster", "gears": "qa_cluster/gears", "models": "qa_cluster/models"} | {
    "api": "qa_cluster/api",
    "cluster": "qa_cluster/cluster",
    "integrations": "qa_cluster/integrations",
}
# Haystack loads components from its own namespace only.
HAYSTACK = {
    f"qa_cluster/integrations/haystack/{folder}/": f"haystack_integrations/{name}/qa_cluster/"
    for folder, name in {
        "document_stores": "document_stores",
        "retrievers": "components/retrievers",
        "readers": "components/readers",
    }.items()
}
# Training data of readers: 0.7 MB that serving does not need.
ONLY_IN_THE_CHECKOUT = "models/training/written/"
SECONDS = 180.0


def tracked() -> list[str]:
    """The files that git tracks, as paths from the root."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return done.stdout.split("\n")


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


def installed_name(path: str) -> str:
    """The path of a file in an installation, given its path below `qa_cluster/`."""
    folder = next((folder for folder in HAYSTACK if path.startswith(folder)), None)
    return path if folder is None else path.replace(folder, HAYSTACK[folder], 1)


class Installed:
    """An environment with the wheel, for a user whose working directory is the checkout."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin = folder / "environment" / "bin"
        venv.create(self.bin.parent, symlinks=True)
        pip("--python", self.bin / "python", "install", "--no-deps", "--no-index", wheel)
        # The environment shares the packages of the current environment, but not the editable installation of this
        # project: Python ignores .pth files in a folder that a .pth file names.
        (site,) = (self.bin.parent / "lib").glob("*/site-packages")
        places = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in places))
        self.package = site / "qa_cluster"
        self._options = ["--data-dir", str(folder / "data"), "--set", "shards=1", "--set", "worker_threads=1"]
        self._options += ["--set", f"max_batch_tokens={FEW_TOKENS}"]
        self._options += ["--set", f"model_cache_dir={COMPILED}"]

    def start(self, *command: str, folder: Path = ROOT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.bin / command[0], *command[1:]],
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, folder: Path = ROOT) -> str:
        with self.start(*command, folder=folder) as program:
            output, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == 0, output + errors
        return output

    def qa(self, *arguments: str, folder: Path = ROOT) -> str:
        return self.run("qa-cluster", *self._options, *arguments, folder=folder)

    def serve(self, port: int) -> subprocess.Popen[str]:
        return self.start("qa-cluster", *self._options, "serve", "--port", str(port))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def running(installed: Installed) -> Iterator[Installed]:
    """The environment, with a cluster of one shard that was started in the checkout."""
    installed.qa("up")
    yield installed
    installed.qa("down")


@pytest.mark.timeout(300)
def test_wheel_holds_the_tracked_files_and_the_module(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        installed_name(name.replace(folder + "/", FOLDERS[folder] + "/", 1))
        for name in tracked()
        if (folder := name.partition("/")[0]) in FOLDERS and "/" in name and not name.startswith(ONLY_IN_THE_CHECKOUT)
    }
    assert names == expected | {"qa_cluster/native/qa.so"}
    assert not wheel.name.endswith("-any.whl")


def test_in_the_checkout_python_imports_each_module_once_and_from_the_checkout(installed: Installed) -> None:
    code = (
        "import sys, qa_cluster.api.app, qa_cluster.cluster.cli, qa_cluster.models\n"
        "import qa_cluster.gears.process.service\n"
        "print(*(m.__file__ for n, m in list(sys.modules.items()) if n.startswith('qa_cluster')), sep='\\n')"
    )
    files = installed.run("python", "-c", code).splitlines()
    assert len(files) == len(set(files)) > 50
    # only the command that starts an adapter imports it
    assert {Path(file).relative_to(ROOT).parts[0] for file in files} == set(FOLDERS) - {"integrations"}
    elsewhere = installed.run("python", "-P", "-c", code).splitlines()
    assert all(Path(file).is_relative_to(installed.package) for file in elsewhere)


def test_in_the_checkout_the_pipeline_answers(installed: Installed) -> None:
    code = (
        "from qa_cluster import pipeline; qa = pipeline('question-answering');"
        "print(qa(question='Who wrote the first program?', context='Ada Lovelace wrote the first program.')['answer'])"
    )
    assert installed.run("python", "-c", code) == "Ada Lovelace\n"


def test_installed_code_loads_the_installed_module_and_the_checkout_its_own(installed: Installed) -> None:
    assert f"loadmodule {installed.package / 'native' / 'qa.so'}\n" in installed.qa("config", "--module")
    lines = installed.run("python", "-m", "qa_cluster.cluster.cli", "config", "--module")
    assert f"loadmodule {ROOT / 'native' / 'build' / 'qa.so'}\n" in lines


@pytest.mark.timeout(300)
def test_in_the_checkout_a_job_pre_tokenizes_in_the_background(running: Installed, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text("Ada Lovelace wrote the first program.")
    running.qa("ingest", str(tmp_path))
    running.qa("pretokenize", "--force", "--background")

    def finished() -> bool:
        states = [job["state"] for job in json.loads(running.qa("status", "--json"))["jobs"]]
        assert set(states) <= {"queued", "started", "finished"}, states
        return states == ["finished"]

    eventually(finished, SECONDS)


@pytest.mark.timeout(300)
def test_in_the_checkout_the_service_serves(running: Installed) -> None:
    port = free_port()
    with running.serve(port) as service, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def ready() -> bool:
            assert service.poll() is None, service.communicate()
            return client.get("/readyz").is_success

        try:
            eventually(ready, SECONDS, ignore=httpx.TransportError)
        finally:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=SECONDS)


@pytest.mark.timeout(300)
def test_in_any_folder_a_reader_is_evaluated_by_the_installed_code(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "qa_cluster").mkdir()
    (tmp_path / "qa_cluster" / "__init__.py").write_text("raise SystemExit('not this one')")
    qas = [{"question": "Who did it?", "answers": [{"text": "Ada", "answer_start": 0}]}]
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ada did it.", "qas": qas}]}]}))
    report = json.loads(installed.qa("eval", str(file), "--no-ranking", "--no-system", "--json", folder=tmp_path))
    assert report["context_given"]["f1"] == 1.0


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    present = {
        installed_name(str(path.relative_to(ROOT)).replace(folder, FOLDERS[folder], 1))
        .removesuffix("/__init__.py")
        .replace("/", ".")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == present


def test_no_dependency_on_torch_to_serve() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = " ".join(project["dependencies"])
    assert "torch" not in needed
    assert "transformers" not in needed
