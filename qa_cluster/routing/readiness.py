"""Checks, while a request waits, whether the servers and the workers of its shards can answer.

A shard is detected as down only after a while (`qa_cluster.asking.freshness`), because a server may be back soon. A
request that may leave out shards does not wait so long. While its work is not done, it probes the shards with
``INFO qa_worker`` and ``CLUSTER INFO``. The request leaves out a shard only on a clear sign:

- the server refuses connections, or loads its data;
- the server has just started and refuses commands, because it has not found the cluster yet;
- the server has not replied to the service's regular checks for a while (`mark_hung`);
- the worker has ended and the next one is not ready;
- the worker has sent no heartbeat for `HUNG_WORKER_MS`.

A late reply to the request is no such sign: a long job may be in front of the request. Heartbeats and checks do not
wait behind jobs. Each side measures the silence of the next one only while its own event loop is on time: the service
that of a server, and a server that of its worker. So a busy host, on which all processes are late, hides no shard.

A shard that cannot answer is probed in the background until it can.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.topology import Address

from .connection import Connection, ConnectionLost, NoReply

_PROBE_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
# A worker sends heartbeats every 0.5 s, from a thread of its own. Code of the worker may delay this thread.
HUNG_WORKER_MS = 1500
# While a request waits for shards, it checks so often whether one of them cannot answer.
_TURN_SECONDS = 0.05
_STATE = re.compile(rb"qa_worker_state:(\w+)")
_SILENCE = re.compile(rb"qa_worker_silence_ms:(\d+)")
# Error codes of a server that is not ready to answer questions.
_NOT_READY = frozenset({"LOADING", "MASTERDOWN"})
_Result = TypeVar("_Result")


class ShardNotReady(ClusterError):
    """The server or the worker of a shard cannot answer; `address` is the address of the shard."""

    def __init__(self, address: Address, why: str) -> None:
        super().__init__(f"shard {address} cannot answer: {why}")
        self.address = address


class ReadyShards:
    """Which shards of one cluster can answer now.

    Attributes:
        servers: why each server cannot answer, by its address.
        workers: why each worker cannot answer, by the address of its server.
    """

    def __init__(self, connect: Callable[[Address], Awaitable[Connection]], patience_seconds: float) -> None:
        self._connect = connect
        self._patience = patience_seconds
        self._probes: dict[Address, asyncio.Task[None]] = {}
        self._responded: dict[Address, float] = {}
        self._following: asyncio.Task[None] | None = None
        self.servers: dict[Address, str] = {}
        self.workers: dict[Address, str] = {}

    async def patiently(
        self, work: Coroutine[Any, Any, _Result], shards: Collection[Address], *, workers: bool = False
    ) -> _Result:
        """Return the result of `work`. If one of the shards cannot answer, cancel `work` and raise ShardNotReady.

        With `workers`, a shard can answer only if its worker is also ready.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,), timeout=self._patience)
            while not task.done():
                self._start_probes(shards)
                await asyncio.wait((task,), timeout=_TURN_SECONDS)
                if not task.done():
                    self.check(shards, workers=workers)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def check(self, shards: Collection[Address], *, workers: bool = False) -> None:
        """Raise ShardNotReady if one of the shards is known to be unable to answer."""
        for address in shards:
            why = self.servers.get(address) or (self.workers.get(address) if workers else None)
            if why:
                raise ShardNotReady(address, why)

    def mark_hung(self, address: Address, why: str, since: float) -> None:
        """Note that a server has not replied since a time of the event loop, unless it has replied to a probe."""
        if address not in self.servers and self._responded.get(address, -1.0) < since:
            self.servers[address] = why
            self._begin_following()

    async def probe(self, shards: Collection[Address]) -> None:
        """Probe the servers and workers of these shards. Skip a shard that was ready less than the patience ago."""
        probes = self._start_probes(shards)
        if probes:
            await asyncio.wait(probes)

    def _start_probes(self, shards: Collection[Address]) -> list[asyncio.Task[None]]:
        """The probes of these shards that run now."""
        now = asyncio.get_running_loop().time()
        probes: list[asyncio.Task[None]] = []
        for address in shards:
            if now - self._responded.get(address, -1.0) < self._patience:
                continue
            if address not in self._probes:
                self._probes[address] = asyncio.create_task(self._probe(address))
            probes.append(self._probes[address])
        return probes

    def keep(self, served: Collection[Address]) -> None:
        """Forget the shards that are missing in the current topology."""
        for known in (self.servers, self.workers, self._responded):
            for address in [address for address in known if address not in served]:
                del known[address]

    async def aclose(self) -> None:
        """End the probes."""
        tasks = [*self._probes.values(), *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _probe(self, address: Address) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            found = await self._ask(address)
        finally:
            self._probes.pop(address, None)
        if found is None:
            return
        server, worker = found
        if not server and not worker:
            self._responded[address] = begun
        for known, why in ((self.servers, server), (self.workers, worker)):
            known.pop(address, None)
            if why:
                known[address] = why
        self._begin_following()

    async def _ask(self, address: Address) -> tuple[str, str] | None:
        """Return why the server and why the worker cannot answer; None if no reply arrives in time.

        A reason is empty if the server or worker can answer.
        """
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                connection = await self._connect(address)
                replies = [await reply for reply in connection.send_many([("INFO", "qa_worker"), ("CLUSTER", "INFO")])]
        except (TimeoutError, NoReply):
            return None
        except ClusterError as error:
            return str(error), ""
        for reply in replies:
            if isinstance(reply, ConnectionLost) or (isinstance(reply, ReplyError) and reply.code in _NOT_READY):
                return str(reply), ""
        worker, cluster = (reply if isinstance(reply, bytes) else b"" for reply in replies)
        if b"cluster_state:fail" in cluster:
            return "for this server, the cluster is down", ""
        return "", _why_not_ready(worker)

    def _begin_following(self) -> None:
        if (self.servers or self.workers) and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="shards that are not ready")

    async def _follow(self) -> None:
        """Probe the shards that cannot answer until they can."""
        while self.servers or self.workers:
            await asyncio.sleep(_AGAIN_SECONDS)
            self._start_probes({*self.servers, *self.workers})


def _why_not_ready(worker: bytes) -> str:
    """Why the worker cannot answer, from ``INFO qa_worker``; empty if it can."""
    state, silence = _STATE.search(worker), _SILENCE.search(worker)
    if state is not None and state[1] != b"ready":
        return f"its worker is {state[1].decode()}"
    if silence is not None and int(silence[1]) >= HUNG_WORKER_MS:
        return f"its worker has sent no heartbeat for {int(silence[1]) / 1000:.1f} s"
    return ""
