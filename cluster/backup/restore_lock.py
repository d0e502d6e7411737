"""A lease that allows only one restore of a cluster at a time.

A key in the cluster names the process that has the lease.

Two restores at the same time would mix two backups, and each would report a complete restore. (Other clients may write
during a restore.) The key has a TTL, and a thread renews it. If a restore is killed, the key expires within seconds. A
command on the same machine detects at once that the process has ended.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from qa_cluster.config import Settings
from qa_cluster.errors import RequestError
from qa_cluster.keys import RESTORING_KEY

from ..nodes.all_shards import OnStep
from ..nodes.connect import cluster_client
from ..nodes.polling import HEAVY_POLL_SECONDS

LIFE_SECONDS = 20.0
RENEW_SECONDS = 4.0
_NO_KEY = -2  # PTTL of a missing key; -1 is a key without a TTL, which no restore writes
_PROC = Path("/proc")  # does not exist on macOS
_REPLACE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    return 1
end
"""
_REMOVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
"""


class OtherRestore(RequestError):
    """Another process is restoring to this cluster."""


class RestoreLock:
    """A context manager that holds the lease. Entering raises OtherRestore if a different process holds the lease. The
    error names that process. `on_step` gets the texts for the user.
    """

    def __init__(self, settings: Settings, on_step: OnStep = lambda text: None) -> None:
        self._settings = settings
        self._on_step = on_step
        self._own = json.dumps(_this_process() | {"token": secrets.token_hex(8)}).encode()
        self._lost = ""
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="restore lock", daemon=True)
        self._client: Any = None

    def __enter__(self) -> Self:
        self._client = cluster_client(self._settings, self._settings.cluster_url)
        try:
            self._acquire()
        except BaseException:
            self._client.close()
            raise
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._renewing.join(RENEW_SECONDS)  # the thread may wait for a server that does not answer
        with suppress(redis.exceptions.RedisError):  # the key expires anyway
            self._client.eval(_REMOVE, 1, RESTORING_KEY, self._own)
        self._client.close()

    def check(self) -> None:
        """Raise OtherRestore if this restore could not renew the lease in time and another restore now has it."""
        if self._lost:
            raise OtherRestore(
                f"{self._lost}; this restore has stopped, because it could not renew its lease for {LIFE_SECONDS:g} s"
            )

    def _acquire(self) -> None:
        """Take the lease: set the key that names this process.

        If the key of another process exists and that process has ended, replace the key. If this machine cannot detect
        whether that process has ended, wait until the key expires. Raises OtherRestore if that process is running: this
        machine detects it, or that process renews its key during the wait.
        """
        left_before = 0
        while not self._client.set(RESTORING_KEY, self._own, nx=True, px=int(LIFE_SECONDS * 1000)):
            held, left = self._client.get(RESTORING_KEY), self._client.pttl(RESTORING_KEY)
            if held is None or left == _NO_KEY:
                continue
            gone = _is_gone(held)
            if gone and self._client.eval(_REPLACE, 1, RESTORING_KEY, held, self._own, int(LIFE_SECONDS * 1000)):
                return
            if gone is False or left < 0 or left > left_before > 0:
                raise OtherRestore(f"{_described(held)}: nothing was restored; repeat the command when it has ended")
            if not left_before:
                self._on_step(f"{_described(held)}: waiting to see whether it is still running")
            left_before = left
            time.sleep(HEAVY_POLL_SECONDS)

    def _renew(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            # after a failover or a network fault, the loop tries again
            with suppress(redis.exceptions.RedisError, OSError):
                life = int(LIFE_SECONDS * 1000)
                if self._client.eval(_REPLACE, 1, RESTORING_KEY, self._own, self._own, life):
                    continue
                # If the key is missing, no other restore is running: a failover has lost the key, or this process was
                # suspended.
                if not self._client.set(RESTORING_KEY, self._own, nx=True, px=life):
                    self._lost = _described(self._client.get(RESTORING_KEY) or b"{}")
                    return


def _this_process() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = str(os.getuid())
    return {
        "user": user,
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "system": _system(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def _system() -> str:
    """Return a text that names the boot of this machine and the pid namespace of the container. No two running
    processes with the same text have the same process id. Return an empty text on macOS, which has no `/proc`.
    """
    try:
        return f"{(_PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since the boot, as text. Return an empty text if the process is not
    running, is a zombie, or if the machine has no `/proc`.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_gone(held: bytes) -> bool | None:
    """Return whether the process that the key names has ended. `held` is the value of the key. Return None if this
    machine cannot detect it, for example because the process runs on a different machine.
    """
    try:
        value = json.loads(held)
        if not value["system"] or value["system"] != _system():
            return None
        return _started(int(value["pid"])) != str(value["started"])
    except (ValueError, TypeError, KeyError):
        return None


def _described(held: bytes) -> str:
    try:
        value = json.loads(held)
        who = f"{value['user']} on {value['host']} (process {value['pid']}), since {value['since']}"
    except (ValueError, TypeError, KeyError):
        return "another restore is running"
    return f"another restore is running, by {who}"
