"""Process arguments, which other users of the machine can read, contain no password."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.harness.polling import SECONDS, eventually
from tests.harness.ports import free_port
from tests.harness.system import TOOL, WORDS_ONLY, System

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
    pytest.mark.one_server("arguments are ours, whichever the server"),
]
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


def test_no_process_of_a_cluster_has_the_password_in_its_arguments(server_binary: Path) -> None:
    secret = secrets.token_hex(16)
    with (
        ProcessWatch() as watch,
        System(server_binary, shards=1, up=(), apart=True, QA_CLUSTER_PASSWORD=secret, **WORDS_ONLY) as system,
    ):
        (system.folder / "ada.txt").write_text("Ada Lovelace wrote the first program in 1843.")
        system.cli("ingest", "ada.txt")
        system.start_service()
        system.cli("pretokenize", "--background")
        eventually(lambda: [job["state"] for job in system.status()["jobs"]] == ["finished"])
        assert "Ada Lovelace" in system.cli("ask", "Who wrote the first program?").stdout
        watch.look()
        data = system.folder / "data"
        server, jobs_server = f"{data}/node-0/server.conf", f"{data}/jobs/server.conf"
        worker, service, jobs_worker = "qa_cluster.gears.worker", "qa_cluster.api", f"jobs_worker\0{data}"
        pids = {word: watch.pid(word) for word in (server, jobs_server, jobs_worker)}
        assert system.service is not None
        pids[service] = str(system.service.pid)
        pids[worker] = str(system.client(0, password=secret).info("everything")["qa_worker_pid"])
        assert all(word.encode() in read(pid, "cmdline") for word, pid in pids.items())
        assert [line for line in watch.seen if secret.encode() in line] == []
        # The environment is private to the user, but user functions can read the environment of the shards' workers.
        holders = {word for word, pid in pids.items() if secret.encode() in read(pid, "environ")}
        assert holders == {service, jobs_worker}


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
