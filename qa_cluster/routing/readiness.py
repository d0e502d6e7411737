"""Checks, while a request waits, whether the servers and the workers of its shards can answer.

A shard is detected as down only after some time (`qa_cluster.asking.freshness`), because a server may be back soon. A
request that may leave out shards does not wait that long. Until its work is done, it probes the shards with ``INFO
qa_worker`` and ``CLUSTER INFO``. The request leaves out a shard only in one of these cases:

- The server refuses connections, or loads its data.
- The server reports that the cluster is down, for example because it has just started and has not found the cluster
  yet.
- The server is stopped, or has not replied to the regular checks of this process for some time (`mark_hung`).
- The worker has ended and the next worker is not ready.
- For `hung_seconds`, the worker has sent no heartbeat, and none of its threads has run or waited for a processor.
- The worker has sent no heartbeat for `HUNG_WORKER_MS`, or its event loop has been blocked for this time.

A late reply to the request is not a reason to leave out a shard, because a long job may be in front of the request.
Heartbeats and checks do not wait behind jobs. This process (the REST service or a cluster client) measures the silence
of a server only while its own event loop is on time. In the same way, a server measures the silence of its worker. So
on a busy host, on which all processes are late, no shard is left out by mistake.

The *patience* is the longest time that a request waits for a shard that is gone or stopped. The request probes its
shards after one third of the patience. A stopped process counts as hung after two thirds (`hung_seconds`).

A shard that cannot answer is probed in the background until it can.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.topology import Address

from .connection import Connection, ConnectionLost, NoReply

_PROBE_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
# A worker sends ten heartbeats a second, from a thread of its own. Code of the worker may delay this thread.
HUNG_WORKER_MS = 1500
# While a request waits for shards, it probes them again and again. A shard that was ready at the last probe is probed
# after `_READY_AGAIN_SECONDS`. Any other shard is probed after `_TURN_SECONDS`.
_READY_AGAIN_SECONDS = 0.1
_TURN_SECONDS = 0.05
# The interval between heartbeats, plus some delay.
_BEAT_SECONDS = 0.15
_STATE = re.compile(rb"qa_worker_state:(\w+)")
_TIMES = re.compile(rb"qa_worker_(silence|inactive|loop_silence)_ms:(\d+)")
# Error codes of a server that is not ready to answer questions.
_NOT_READY = frozenset({"LOADING", "MASTERDOWN"})
_Result = TypeVar("_Result")


class ShardNotReady(ClusterError):
    """The server or the worker of a shard cannot answer; `address` is the address of the shard."""

    def __init__(self, address: Address, why: str) -> None:
        super().__init__(f"shard {address} cannot answer: {why}")
        self.address = address


class ReadyShards:
    """Tracks which shards of one cluster can answer now.

    Attributes:
        patience_seconds: the longest time that a request waits for a shard that is gone or stopped.
        hung_seconds: the time after which a stopped process counts as hung.
        servers: the reasons why servers cannot answer, by their addresses.
        workers: the reasons why workers cannot answer, by the addresses of their servers.
    """

    def __init__(self, connect: Callable[[Address], Awaitable[Connection]], patience_seconds: float) -> None:
        self._connect = connect
        self.patience_seconds = patience_seconds
        self._probe_after = patience_seconds / 3
        self.hung_seconds = patience_seconds * 2 / 3
        self._probes: dict[Address, asyncio.Task[None]] = {}
        self._responded: dict[Address, float] = {}
        self._ready_until: dict[Address, float] = {}
        self._following: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.servers: dict[Address, str] = {}
        self.workers: dict[Address, str] = {}

    async def patiently(
        self, work: Coroutine[Any, Any, _Result], shards: Collection[Address], *, workers: bool = False
    ) -> _Result:
        """Return the result of `work`. If one of the shards cannot answer, cancel `work` and raise ShardNotReady.

        With `workers`, a shard can answer only if its worker is also ready.
        """
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        probes_at = loop.time() + self._probe_after
        try:
            while True:
                await self._wait(task, max(_TURN_SECONDS, probes_at - loop.time()))
                if task.done():
                    return task.result()
                self.check(shards, workers=workers)
                if loop.time() >= probes_at:
                    self._start_probes(shards)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> None:
        """Wait until the task is done or one more shard is found that cannot answer, for at most `seconds`."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(changed)
        try:
            await asyncio.wait((task, changed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(changed)

    def check(self, shards: Collection[Address], *, workers: bool = False) -> None:
        """Raise ShardNotReady if one of the shards is known to be unable to answer.

        Without `workers`, only the servers are checked. With `workers`, the workers of the shards are checked, too.
        """
        for address in shards:
            why = self.servers.get(address) or (self.workers.get(address) if workers else None)
            if why:
                raise ShardNotReady(address, why)

    def mark_hung(self, address: Address, why: str, since: float) -> None:
        """Mark a server as hung, unless it has replied to a probe that started after `since`.

        `since` is the time when the check without a reply started, on the clock of the event loop. `why` is the reason
        for messages.
        """
        if address not in self.servers and self._responded.get(address, -1.0) < since:
            self._mark(self.servers, address, why)
            self._begin_following()

    def note_worker(self, address: Address, info: Any) -> None:
        """Record the state of a worker from the reply to ``INFO qa_worker``. An error reply is ignored."""
        if isinstance(info, bytes):
            self._mark(self.workers, address, _Worker.parse(info).why_not_ready(self.hung_seconds))
            self._begin_following()

    def _mark(self, known: dict[Address, str], address: Address, why: str) -> None:
        """Record why a server or worker cannot answer. If `why` is empty, delete the recorded reason.

        `known` is `servers` or `workers`. A new reason wakes the requests that wait in `patiently`.
        """
        if not why:
            known.pop(address, None)
            return
        is_new = address not in known
        known[address] = why
        if is_new:
            for changed in self._waiting:
                if not changed.done():
                    changed.set_result(None)

    async def probe(self, shards: Collection[Address]) -> None:
        """Probe the servers and workers of these shards; return early if a server that cannot answer is found."""
        pending = {self._begin_probe(address) for address in shards}
        while pending and not self.servers.keys() & set(shards):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    def _start_probes(self, shards: Collection[Address]) -> None:
        """Start a probe of each of these shards, except shards that were ready a short time ago."""
        now = asyncio.get_running_loop().time()
        for address in shards:
            if now >= self._ready_until.get(address, -1.0):
                self._begin_probe(address)

    def _begin_probe(self, address: Address) -> asyncio.Task[None]:
        """Return the running probe of a shard; start one if none runs."""
        if address not in self._probes:
            self._probes[address] = asyncio.create_task(self._probe(address))
        return self._probes[address]

    def keep(self, served: Collection[Address]) -> None:
        """Discard the state of shards that are not in the current topology.

        `served` has the addresses of the shards in the current topology.
        """
        for known in (self.servers, self.workers, self._responded, self._ready_until):
            for address in [address for address in known if address not in served]:
                del known[address]

    async def aclose(self) -> None:
        """Cancel the probes."""
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
        if not server:
            self._responded[address] = begun
        if not server and worker.is_beating:
            self._ready_until[address] = begun + min(self._probe_after, _READY_AGAIN_SECONDS)
        self._mark(self.servers, address, server)
        self._mark(self.workers, address, worker.why_not_ready(self.hung_seconds))
        self._begin_following()

    async def _ask(self, address: Address) -> tuple[str, _Worker] | None:
        """Return why the server cannot answer, and the state of its worker; None if no reply arrives in time.

        The reason is empty if the server can answer. If the server cannot answer, the state of its worker is unknown,
        and the returned state is the default state of `_Worker`.
        """
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                connection = await self._connect(address)
                replies = [await reply for reply in connection.send_many([("INFO", "qa_worker"), ("CLUSTER", "INFO")])]
        except (TimeoutError, NoReply):
            return None
        except ClusterError as error:
            return str(error), _Worker()
        for reply in replies:
            if isinstance(reply, ConnectionLost) or (isinstance(reply, ReplyError) and reply.code in _NOT_READY):
                return str(reply), _Worker()
        worker, cluster = (reply if isinstance(reply, bytes) else b"" for reply in replies)
        if b"cluster_state:fail" in cluster:
            return "this server reports that the cluster is down", _Worker()
        return "", _Worker.parse(worker)

    def _begin_following(self) -> None:
        if (self.servers or self.workers) and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="shards that are not ready")

    async def _follow(self) -> None:
        """Probe the shards that cannot answer until they can."""
        while self.servers or self.workers:
            await asyncio.sleep(_AGAIN_SECONDS)
            self._start_probes({*self.servers, *self.workers})


@dataclass(frozen=True, slots=True)
class _Worker:
    """The state of a worker, from ``INFO qa_worker``. Times are in seconds.

    Attributes:
        state: the state that the server reports: ``ready``, or a word that says why the worker cannot answer.
        silence: the time since its last heartbeat.
        inactive: the part of `silence` in which none of its threads ran or waited for a processor.
        loop_silence: the time since its event loop last ran.
    """

    state: str = "ready"
    silence: float = 0.0
    inactive: float = 0.0
    loop_silence: float = 0.0

    @classmethod
    def parse(cls, info: bytes) -> _Worker:
        """Parse the reply. Missing values get their defaults."""
        state, times = _STATE.search(info), {name: int(ms) / 1000 for name, ms in _TIMES.findall(info)}
        return cls(
            "ready" if state is None else state[1].decode(),
            times.get(b"silence", 0.0),
            times.get(b"inactive", 0.0),
            times.get(b"loop_silence", 0.0),
        )

    @property
    def is_beating(self) -> bool:
        """Whether the worker is ready, and its last heartbeat is less than `_BEAT_SECONDS` old."""
        return self.state == "ready" and self.silence < _BEAT_SECONDS

    def why_not_ready(self, hung_seconds: float) -> str:
        """Return why the worker cannot answer; empty if it can. `hung_seconds` is the limit for an inactive worker."""
        if self.state != "ready":
            return f"its worker is {self.state}"
        limit = HUNG_WORKER_MS / 1000
        if self.silence >= limit or self.inactive >= max(hung_seconds, _BEAT_SECONDS):
            return f"its worker has sent no heartbeat for {self.silence:.1f} s"
        if self.loop_silence >= limit:
            return f"the event loop of its worker has been blocked for {self.loop_silence:.1f} s"
        return ""
