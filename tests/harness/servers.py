"""One real server with the module, for tests. It has its own directory, and always ends with its test.

Tests take the fixture `server_binary` (each server program in turn) and start servers with `Server`, or a cluster with
`clusters.Cluster`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.harness.polling import eventually, unwatch, watch
from tests.harness.ports import free_port
from tests.harness.processes import resume
from tests.harness.programs import MODULE, server_environment
from tests.harness.workers import COMPILED

START_SECONDS = 120.0
STOP_SECONDS = 30.0  # longer than the 10 s that an ending server waits for its replicas


def connected(path: Path, seconds: float) -> socket.socket:
    """A socket that is connected to a server's unix socket, and whose reads and writes may take `seconds`.

    Connecting has no time limit: with a limit, `connect` fails at once while the server's backlog is full.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(path))
        made.settimeout(seconds)
    except BaseException:
        made.close()
        raise
    return made


class Pending:
    """A command that was sent without waiting for its reply; a context manager that closes the connection."""

    def __init__(self, server: Server, *words: str) -> None:
        self.socket = connected(server.socket, 60)
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        self.socket.sendall((f"*{len(words)}\r\n" + "".join(parts)).encode())

    def reply(self) -> bytes:
        """Waits for the reply; returns the part that has arrived. It is empty if the server closed the connection."""
        return self.socket.recv(65536)

    def hang_up(self) -> None:
        """Closes the connection without reading the reply."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()


class Client(redis.Redis):
    """A client that `Server` closes at its end if the test has not closed it: pytest reports an unclosed socket."""

    opened: set[Client]

    def close(self) -> None:
        """Closes the connections."""
        super().close()
        self.opened.discard(self)


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """The fields of a flat reply of names and values."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Later:
    """A command in another thread, and its reply; texts stay bytes."""

    def __init__(self, server: Server, *command: Any, **options: Any) -> None:
        self._reply: Any = None
        self._thread = threading.Thread(target=self._run, args=(server, command, options))
        self._thread.start()

    def _run(self, server: Server, command: tuple[Any, ...], options: dict[str, Any]) -> None:
        with server.client(**{"decode_responses": False} | options) as client:
            try:
                self._reply = client.execute_command(*command)
            except redis.RedisError as error:
                self._reply = error

    def is_over(self) -> bool:
        """Whether the reply has arrived."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        """The reply or the error, once it has arrived."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "no reply within 60 s"
        return self._reply


def beats(client: Any) -> int:
    """How many beats the workers of a server have sent."""
    return int(client.info("commandstats").get("cmdstat_qa.beat", {}).get("calls", 0))


def execute(server: Server, *words: object) -> Any:
    """Runs one command on a connection that stays open; the command must not change the state of the connection."""
    return server.observer.execute_command(*words)


def quote(value: object) -> str:
    """A value in the syntax of the configuration file."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@cache
def bus_key_file() -> Path:
    """The file with the key that signs the messages between the servers of this process."""
    folder = Path(tempfile.mkdtemp(prefix="qa-test-key-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "bus.key").write_text(secrets.token_hex(32) + "\n")
    return folder / "bus.key"


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
        self._clients: set[Client] = set()
        values: dict[str, object] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": self.socket,
            "dir": self.directory,
            "save": "",
            "enable-debug-command": "yes",
            "repl-diskless-sync-delay": 0,  # by default a primary waits 5 s for more replicas
            "logfile": self.log,
        }
        if worker is not None:
            values["qa.worker-command"] = worker
        if module is not None:
            values["qa.bus-key-file"] = bus_key_file()
            values["qa.model-cache-dir"] = COMPILED
        values.update(settings or {})
        lines = [f"{name} {quote(value)}" for name, value in values.items()]
        if module is not None:
            lines.append(f"loadmodule {quote(module)} {module_args}".rstrip())
        (self.directory / "server.conf").write_text("\n".join(lines) + "\n")

    def launch(self) -> None:
        """Starts it."""
        with (self.directory / "stderr.log").open("ab") as stderr:
            self.process = subprocess.Popen(
                [str(self.binary), str(self.directory / "server.conf")],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env=server_environment(),
            )
        watch(self, self._ended)

    def may_end(self) -> None:
        """Allow the server to end: waits do not fail when it ends."""
        unwatch(self)

    def _ended(self) -> str:
        """How the server has ended; empty while it runs."""
        if self.process is None or self.process.poll() is None:
            return ""
        return f"the server on port {self.port} ended with {self.process.returncode}:\n{self.output()}"

    def wait_started(self) -> None:
        """Waits until the server answers."""
        try:
            eventually(self._answers, START_SECONDS)
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"server did not start:\n{self.output()}") from error

    def start(self) -> Self:
        """Starts the server and waits until it answers."""
        self.launch()
        self.wait_started()
        return self

    def failed_start(self) -> tuple[int, str]:
        """Starts the server, which must end by itself. Returns its exit status and its output; removes its folder."""
        self.launch()
        try:
            assert self.process is not None
            return self.process.wait(START_SECONDS), self.output()
        finally:
            self.__exit__(None, None, None)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.BusyLoadingError:
                return False
            except redis.AuthenticationError:
                return True

    def output(self) -> str:
        """The end of its log, and its stderr."""
        paths = (self.log, self.directory / "stderr.log")
        parts = [path.read_text(errors="replace") for path in paths if path.exists()]
        return "\n".join(part[-4000:] for part in parts)

    def client(self, **options: Any) -> Any:
        """A new redis.Redis (whose execute_command has no types), which is closed when the server ends."""
        options.setdefault("socket_timeout", 30)
        options.setdefault("decode_responses", True)
        # Otherwise redis-py looks up its own version, which takes most of the time that a new client needs.
        options.setdefault("driver_info", None)
        client = Client(unix_socket_path=str(self.socket), **options)
        client.opened = self._clients
        self._clients.add(client)
        return client

    @cached_property
    def observer(self) -> Any:
        """A client that stays open, for commands that can use any connection."""
        return self.client()

    @property
    def pid(self) -> int:
        """Its process id."""
        if self.process is None:
            raise AssertionError("server is not running")
        return self.process.pid

    def info(self, section: str = "everything") -> dict[str, Any]:
        """The fields of INFO, over a separate connection that stays open, because tests poll INFO."""
        return dict(self.observer.info(section))

    def field(self, name: str) -> Any:
        """One field of the module's INFO sections, without the prefix."""
        return self.fields(name)[0]

    def fields(self, *names: str) -> tuple[Any, ...]:
        """Several fields from one reply."""
        info = self.info("modules")
        return tuple(info[f"qa_{name}"] for name in names)

    def signal_worker(self, number: int) -> int:
        """Sends a signal to the worker and returns its process id; during a restart it waits for the new one.

        Between two workers the process id is 0. A signal to process 0 would reach the whole test run.
        """
        pid = int(eventually(lambda: self.field("worker_pid")))
        os.kill(pid, number)
        return pid

    @contextmanager
    def stopped_worker(self) -> Iterator[None]:
        """Stops the real worker within the block; the module does not replace it, even if the block takes long."""
        setting = "qa.worker-silence-ms"
        patience = execute(self, "CONFIG", "GET", setting)[setting]
        execute(self, "CONFIG", "SET", setting, 600_000)
        pid = self.signal_worker(signal.SIGSTOP)
        try:
            yield
        finally:
            before = beats(self.observer)
            resume(pid)
            eventually(lambda: beats(self.observer) > before)  # until this beat, the worker's silence exceeds the limit
            execute(self, "CONFIG", "SET", setting, patience)

    def let_go(self, name: str = "go") -> None:
        """Resumes the job that the fake worker holds under this name."""
        (self.directory / name).touch()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until the worker is ready."""
        eventually(lambda: self.field("worker_state") == "ready", seconds)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the server; its directory stays."""
        unwatch(self)
        if self.process is None:
            return
        self.observer.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.process = None

    def restart(self) -> None:
        """Stops the server and starts it again on the same data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        for client in list(self._clients):
            client.close()
        if kind is not None:
            sys.stderr.write(f"--- log of the server on port {self.port}\n{self.output()}\n")
        shutil.rmtree(self.directory, ignore_errors=True)
