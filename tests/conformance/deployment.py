"""Servers that `launch.py` has started, and the tested clients for each shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import redgrease
import redgrease.client
import redis
import redisai
from redis.crc import key_slot

from tests.harness.polling import eventually

ROOT = Path(__file__).resolve().parents[2]
# `make conformance` installs the packages that the worker's environment lacks into this folder.
WORKER_PACKAGES = Path(sys.prefix) / "worker-packages"


def worker_python() -> Path:
    """The Python for the worker, preferably of an environment with torch."""
    chosen = os.environ.get("QA_TEST_WORKER_PYTHON")
    if chosen:
        return Path(chosen)
    known = (ROOT / ".venv-export" / "bin" / "python", ROOT / ".venv" / "bin" / "python")
    return next((path for path in known if path.exists()), known[-1])


def pairs(flat: list[Any]) -> dict[str, Any]:
    """Convert a flat array of pairs to a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Deployment:
    """One server or a cluster. `tags` has a hash tag for each shard."""

    def __init__(self, server: str, shards: int) -> None:
        self.server = server
        self.shards = shards
        self.name = f"{server}-{'standalone' if shards == 1 else f'{shards} shards'}"
        command = [str(worker_python()), "-m", "tests.conformance.launch", "--server", server]
        command += ["--shards", str(shards), "--packages", str(WORKER_PACKAGES)]
        self.launcher = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert self.launcher.stdout is not None
        line = self.launcher.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not start: exit status {self.launcher.wait()}")
        told = json.loads(line)
        self.missing = str(told.get("missing", ""))
        if self.missing:
            self.stop()
            return
        self.ports: list[int] = told["ports"]
        self.version = str(told["version"])
        self.torch = bool(told["torch"])
        self.same_python = tuple(told["python"]) == sys.version_info[:2]
        self.nodes = [redis.Redis(port=port, decode_responses=True, socket_timeout=60) for port in self.ports]
        self.tags = [self._tag(shard) for shard in range(shards)]

    def _tag(self, shard: int) -> str:
        """A hash tag of the shard, found without the module."""
        if self.shards == 1:
            return "06S"
        slots: Any = self.nodes[shard].execute_command("CLUSTER SLOTS")
        own = [(first, last) for first, last, primary, *_ in slots if primary[1] == self.ports[shard]]
        return next(tag for tag in map(str, range(100_000)) if any(a <= key_slot(tag.encode()) <= b for a, b in own))

    def key(self, name: str, shard: int = 0) -> str:
        """A key with this name that belongs to the shard."""
        return f"{name}{{{self.tags[shard]}}}"

    def ai(self, shard: int = 0, **options: Any) -> redisai.Client:
        """A redisai client of the shard."""
        return redisai.Client(port=self.ports[shard], socket_timeout=60, **options)

    def gears(self, shard: int = 0) -> redgrease.client.Gears:
        """A redgrease client of the shard."""
        return redgrease.client.Redis(port=self.ports[shard], socket_timeout=60).gears

    def raw(self, *words: Any, shard: int = 0) -> Any:
        """Send a command unchanged to the shard, and decode the texts in the reply."""
        return self.nodes[shard].execute_command(*words)

    def cluster(self) -> redis.RedisCluster:
        """A client of the whole cluster."""
        return redis.RedisCluster(host="127.0.0.1", port=self.ports[0], decode_responses=True, socket_timeout=60)

    def registrations(self, shard: int = 0) -> list[dict[str, Any]]:
        """The reply to `RG.DUMPREGISTRATIONS`, with dictionaries instead of pairs."""
        found = []
        for flat in self.raw("RG.DUMPREGISTRATIONS", shard=shard):
            entry = pairs(flat)
            found.append({**entry, "RegistrationData": pairs(entry["RegistrationData"])})
        return found

    def statistics(self, shard: int = 0) -> dict[str, Any]:
        """`RegistrationData` of the only registration."""
        (entry,) = self.registrations(shard)
        return dict(entry["RegistrationData"])

    def wait_registered(self, count: int = 1) -> None:
        """Wait until every shard has `count` registrations."""
        for shard in range(self.shards):
            eventually(partial(self._has_registered, shard, count))

    def _has_registered(self, shard: int, count: int) -> bool:
        return len(self.registrations(shard)) == count

    def clean(self) -> None:
        """Remove the registrations of all shards, then all keys."""
        for shard in range(self.shards):
            for entry in self.registrations(shard):
                try:
                    self.raw("RG.UNREGISTER", entry["id"], shard=shard)
                except redis.ResponseError as error:
                    # the removal on an earlier shard has removed this registration everywhere
                    if "not registered" not in str(error):
                        raise
        for node in self.nodes:
            eventually(lambda node=node: not node.execute_command("RG.DUMPREGISTRATIONS"))  # type: ignore[misc]
            # wait, because running functions may still write
            eventually(lambda node=node: not self._busy(node), 60)  # type: ignore[misc]
            node.flushall()

    @staticmethod
    def _busy(node: Any) -> bool:
        info = node.info("everything")
        return any(info[f"qa_{name}"] for name in ("queued_clients", "queued_events", "queued_notices", "in_flight"))

    def stop(self) -> None:
        """End the servers."""
        for node in getattr(self, "nodes", ()):
            node.close()
        assert self.launcher.stdin is not None
        self.launcher.stdin.close()
        self.launcher.wait(30)
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()
