"""Only the user's commands and clients can read a password, and a local cluster requires its generated one."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.client import ClusterClient
from qa_cluster.cluster.evaluation import temporary_cluster
from qa_cluster.cluster.readers.reader_files import ReaderFiles, budget_of, read_reader
from qa_cluster.cluster.servers.local import LocalCluster, with_local_password, with_password, without_password
from qa_cluster.cluster.servers.state import ClusterState, write_state
from qa_cluster.config import Settings, load
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.security.local_password import PASSWORD_FILE
from tests.harness.commands import run_here
from tests.harness.polling import SECONDS, eventually
from tests.harness.ports import free_port
from tests.harness.programs import MODULE
from tests.harness.system import TOOL, WORDS_ONLY, System

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
    pytest.mark.one_server("files and arguments are ours; test_local_cluster.py requires a password of both servers"),
]
WHO = "Who wrote the first program?"
API = [sys.executable, "-P", "-m", "qa_cluster.api", "--port"]
LOOK_SECONDS = 0.02


def read(pid: str, file: str) -> bytes:
    """Read a file of a process in /proc; empty if the process has just ended."""
    try:
        return Path("/proc", pid, file).read_bytes()
    except OSError:
        return b""


class ProcessWatch:
    """A context manager that polls the arguments of all processes. `seen` has all arguments found so far."""

    def __init__(self) -> None:
        self.seen: dict[bytes, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            self.seen[read(entry.name, "cmdline")] = entry.name

    def pid(self, word: str) -> str:
        """The id of the process with this text in its arguments."""
        return next(pid for line, pid in self.seen.items() if word.encode() in line)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()


def test_commands_and_clients_find_the_password_and_nobody_else_sees_it(
    server_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster that `qa-cluster up` creates by default, with a service and background jobs."""
    with (
        ProcessWatch() as watch,
        System(server_binary, shards=1, up=(), apart=True, **WORDS_ONLY) as guarded,
    ):
        data = guarded.folder / "data"
        file = data / PASSWORD_FILE
        password = file.read_text().strip()
        assert len(password) == 64
        assert (data.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
        (guarded.folder / "ada.txt").write_text("Ada Lovelace wrote the first program in 1843.")
        guarded.cli("ingest", "ada.txt")
        assert "Ada Lovelace" in guarded.cli("ask", WHO).stdout
        guarded.start_service()
        assert b"Ada Lovelace" in guarded.http("/qa?question=Who+wrote+the+first+program%3F")[2]
        guarded.cli("pretokenize", "--background")
        eventually(lambda: [job["state"] for job in guarded.status()["jobs"]] == ["finished"])
        shown = guarded.cli("config", "--json").stdout
        assert password not in shown
        assert json.loads(shown)["cluster_password"]["source"] == f"file {file}"
        watch.look()
        check_view(watch, guarded, password)
        refused = guarded.client(0, retry=Retry(NoBackoff(), 0))
        assert_refused(refused)

        with pytest.raises(ClusterError, match=r"NOAUTH.*'cluster_password'"), ClusterClient(guarded.url):
            pass
        (guarded.folder / ".qa-cluster").symlink_to(data)
        monkeypatch.chdir(guarded.folder)
        with ClusterClient(guarded.url) as client:
            assert client.ask(WHO, timeout=60).answers[0].answer == "Ada Lovelace"
        by_address = {name: value for name, value in guarded.environment.items() if name != "QA_DATA_DIR"}
        asked = run_here(("--cluster-url", guarded.url, "ask", WHO), guarded.folder, by_address)
        assert "Ada Lovelace" in asked.stdout, asked.stderr

        guarded.stop_service()
        guarded.cli("down")
        guarded.cli("up")
        assert file.read_text().strip() == password
        assert guarded.status()["ready"]
        assert_refused(refused)
        guarded.cli("up", "--generate-password")
        assert file.read_text().strip() == password
        refusal = guarded.cli("up", "--no-password", check=False).stderr
        assert "has a password: to remove it, run `qa-cluster down`" in " ".join(refusal.split())
        assert file.read_text().strip() == password


def assert_refused(client: redis.Redis) -> None:
    with pytest.raises(redis.exceptions.AuthenticationError):
        client.get("paragraphs:ada.txt")


def check_view(watch: ProcessWatch, system: System, password: str) -> None:
    """Check that no arguments and no log have the password, and which environments have it.

    An environment is private to the user, but user functions can read the environment of the shards' workers.
    """
    data = system.folder / "data"
    server, jobs_server = f"{data}/node-0/server.conf", f"{data}/jobs/server.conf"
    worker, service, jobs_worker = "qa_cluster.gears.worker", "qa_cluster.api", f"jobs_worker\0{data}"
    pids = {word: watch.pid(word) for word in (server, jobs_server, jobs_worker)}
    assert system.service is not None
    pids[service] = str(system.service.pid)
    pids[worker] = str(system.client(0, password=password).info("everything")["qa_worker_pid"])
    assert all(word.encode() in read(pid, "cmdline") for word, pid in pids.items())
    assert [line for line in watch.seen if password.encode() in line] == []
    assert [log for log in system.folder.rglob("*.log") if password in log.read_text(errors="replace")] == []
    holders = {word for word, pid in pids.items() if password.encode() in read(pid, "environ")}
    assert holders == {service, jobs_worker}


def test_an_empty_password_means_no_password(server_binary: Path, tmp_path: Path) -> None:
    given = {"QA_SHARDS": "1", "QA_SERVER": str(server_binary), "QA_MODULE_PATH": str(MODULE)}
    try:
        done = run_here(("up", "--bare"), tmp_path, {**given, "QA_CLUSTER_PASSWORD": ""})
        assert done.returncode == 0, done.stderr
        assert "password" not in done.stdout
        assert not (tmp_path / ".qa-cluster" / PASSWORD_FILE).exists()
    finally:
        run_here(("down",), tmp_path, given)


def test_the_temporary_cluster_of_an_evaluation_has_a_password(
    server_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without models, to save time
    monkeypatch.setattr(temporary_cluster, "provision", lambda *arguments: None)
    monkeypatch.setattr(temporary_cluster, "add_models", lambda *arguments: None)
    settings = replace(Settings(), shards=1, server=str(server_binary), module_path=MODULE)
    reader: ReaderFiles = read_reader(bundled_reader(), budget_of(settings))
    with temporary_cluster.temporary_cluster(settings, reader) as made:
        port = int(made.cluster_url.rpartition(":")[2])
        with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
            assert_refused(client)
        with redis.Redis(port=port, password=made.cluster_password) as client:
            assert client.ping()


def test_the_password_of_a_folder_is_used_only_for_its_cluster(tmp_path: Path) -> None:
    (tmp_path / PASSWORD_FILE).write_text("made\n")
    here = {"QA_DATA_DIR": str(tmp_path)}
    assert load("/dev/null", environment=here).settings.cluster_password == "made"
    elsewhere = load("/dev/null", environment={**here, "QA_CLUSTER_URL": "redis://db:7000"})
    assert elsewhere.settings.cluster_password == ""
    given = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": "given"})
    assert given.settings.cluster_password == "given"
    none = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": ""})
    assert none.settings.cluster_password == ""


def test_only_a_new_cluster_gets_a_password(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    file = settings.data_dir / PASSWORD_FILE
    for chosen in (replace(settings, cluster_url="redis://db:7000"), replace(settings, cluster_password="hunter2")):
        assert with_local_password(chosen) == chosen
    assert not file.exists()
    made = with_local_password(settings)
    assert made.cluster_password == file.read_text().strip()
    assert with_local_password(settings) == made, "an existing password is used again"
    assert without_password(made) == settings, "no cluster uses the password, so the command removes it"
    assert not file.exists()
    write_state(settings.data_dir, ClusterState(1, 0, (7000,), "redis-server", created=True))
    assert with_local_password(settings) == settings
    assert without_password(settings) == settings
    assert not file.exists()


def test_the_option_no_password_is_refused_for_a_cluster_with_a_password(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"only .*for a local cluster"):
        without_password(replace(settings, cluster_url="redis://db:7000"))
    with pytest.raises(ConfigError, match="contradicts --no-password") as caught:
        without_password(replace(settings, cluster_password="hunter2"))
    assert "hunter2" not in str(caught.value)
    made = with_local_password(settings)
    write_state(settings.data_dir, ClusterState(1, 0, (7000,), "redis-server", created=True))
    with pytest.raises(ConfigError, match="has a password: to remove it, run `qa-cluster down`"):
        without_password(made)
    assert (settings.data_dir / PASSWORD_FILE).exists()


def test_a_password_is_generated_only_if_the_cluster_can_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"only .*for a local cluster"):
        with_password(replace(settings, cluster_url="redis://db:7000"))
    with pytest.raises(ConfigError, match="is already set") as caught:
        with_password(replace(settings, cluster_password="hunter2"))
    assert "hunter2" not in str(caught.value)
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "is_running", lambda self: True)
        with pytest.raises(ConfigError, match="is running without a password: to add one, run `qa-cluster down`"):
            with_password(settings)
    assert not (tmp_path / "data" / PASSWORD_FILE).exists()
    made = with_password(settings)
    assert with_password(made) == made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """The socket of a server that never replies."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(SECONDS)
        yield made


@pytest.mark.parametrize(
    "typed",
    [
        [TOOL, "--cluster-url", "redis://{secret}@127.0.0.1:{port}", "status"],
        [TOOL, "status", "--cluster-url=redis://{secret}@127.0.0.1:{port}"],
        [TOOL, "status", "--set", "cluster_password={word}", "--cluster-url", "redis://127.0.0.1:{port}"],
        [*API, "{free}", "--cluster-url", "redis://{secret}@127.0.0.1:{port}"],
    ],
    ids=["url", "equals", "set", "service"],
)
def test_a_password_in_the_arguments_is_overwritten(listener: socket.socket, tmp_path: Path, typed: list[str]) -> None:
    word = secrets.token_hex(16)
    port = listener.getsockname()[1]
    command = [part.format(secret=f"me:{word}", word=word, port=port, free=free_port()) for part in typed]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as process,
    ):
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(SECONDS)
                received = b""
                while word.encode() not in received:  # the command logs in with the typed password
                    part = connection.recv(4096)
                    assert part, received
                    received += part
                line = read(str(process.pid), "cmdline")
                assert process.poll() is None
        finally:
            process.kill()
    assert word.encode() not in line
    assert b"*" * len(word) in line
    assert os.fsencode(command[-1].partition("me:")[0]) in line
