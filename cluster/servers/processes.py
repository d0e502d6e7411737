"""Starts and stops processes. A process is identified by its pid and by a marker in its command line.

A pid alone is not enough, because another program may have the same pid later. So this module sends a signal only if
the command line of the pid contains the marker, a path that is unique to the process. It never searches for processes
by name.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.errors import ClusterError

from ..nodes.polling import POLL_SECONDS

_PROC = Path("/proc")  # does not exist on macOS
_EXEC_SECONDS = 0.5
_KILL_WAIT_SECONDS = 5.0
# A server that is writing its first append-only file ignores SIGTERM. So `stop_all` can repeat the signal.
_SIGNAL_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class ProcessRef:
    """A process: its pid, the marker in its command line, and its name in messages."""

    pid: int
    marker: str
    name: str

    def is_running(self) -> bool:
        """Return whether this process is running. Another process that has got the same pid does not count."""
        _reap(self.pid)
        return self.marker in command_line(self.pid)


def command_line(pid: int) -> str:
    """Return the command line of a running process, with its words separated by spaces. Return an empty text if the
    process has ended or is a zombie.
    """
    if not _PROC.is_dir():
        return subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    deadline = time.monotonic() + _EXEC_SECONDS
    while True:
        try:
            line = (_PROC / str(pid) / "cmdline").read_bytes()
            if line or _stat(pid)[0] in "ZX":
                return line.replace(b"\0", b" ").decode(errors="surrogateescape")
        except OSError:
            return ""
        # A running process without a command line is just executing exec, and soon has one.
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.001)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name of the program. The first returned field is the state of the
    process.
    """
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def cpu_ticks(pid: int) -> int | None:
    """Return the processor time that a process has used, in clock ticks; None if the system does not report it."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


def python_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line that runs a module of this package, by default with the Python of this process.

    With -P, Python does not import from the current folder, where a checkout's `qa_cluster` would hide the installed
    package.
    """
    return [python, "-P", "-m", module, *arguments]


def tethered(argv: Sequence[str], number: int) -> list[str]:
    """Return the command line that starts the program `argv`. On Linux, the program receives signal `number` when this
    process dies.
    """
    tether = str(Path(__file__).with_name("tether.py"))
    return [sys.executable, "-S", "-E", tether, str(os.getpid()), str(int(number)), *argv]


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    tether_signal: int | None = None,
) -> int:
    """Start a program in its own session, with its output appended to `log`; return its pid.

    On Linux, the program receives `tether_signal` when this process dies. On other systems, or if `tether_signal` is
    None, the program continues.
    """
    command = list(argv) if tether_signal is None else tethered(argv, tether_signal)
    log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return os.posix_spawn(
            command[0],
            command,
            dict(os.environ if environment is None else environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise ClusterError(f"cannot start {command[0]!r}: {error.strerror}") from error
    finally:
        os.close(output)


def stop_all(running: Sequence[ProcessRef], timeout_seconds: float, *, insist: bool = False) -> None:
    """Stop processes in parallel: first with SIGTERM, and after `timeout_seconds` with SIGKILL. Raises ClusterError,
    which names the processes that even SIGKILL did not stop.

    With `insist`, repeat SIGTERM, for programs that may ignore the first signal. These programs must not abort at the
    second signal.
    """
    for number, wait_seconds in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, _KILL_WAIT_SECONDS)):
        deadline, signal_at = time.monotonic() + wait_seconds, 0.0
        while left := [process for process in running if process.is_running()]:
            now = time.monotonic()
            if now > deadline:
                break
            if now >= signal_at:
                signal_at = now + _SIGNAL_AGAIN_SECONDS if insist else math.inf
                for process in left:
                    _signal(process, number)
            time.sleep(POLL_SECONDS)
        else:
            return
    names = ", ".join(f"{process.name} (pid {process.pid})" for process in left)
    raise ClusterError(f"these processes could not be stopped, even with SIGKILL: {names}")


def _signal(process: ProcessRef, number: signal.Signals) -> None:
    if process.is_running():
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return  # it has ended meanwhile
        except PermissionError as error:
            raise ClusterError(
                f"{process.name} (pid {process.pid}) belongs to another user: stop it as this user"
            ) from error


def _reap(pid: int) -> None:
    """Collect the exit status of a child process, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # the process is not a child of this process
