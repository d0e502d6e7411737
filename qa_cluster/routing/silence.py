"""Finds out while a request waits whether a shard responds at all: its server, and its worker.

A shard is detected as down only after a while (`qa_cluster.asking.freshness`), because a server may be back soon. A
request that may leave out shards does not wait so long. While its work is not done, it probes the shards with
``INFO qa_worker``. A server answers this at once even if its worker is busy, and says whether the worker is ready. So a
long job in front of the request is no reason to leave out a shard. Only these are:

- the server refuses connections, loads its data, or leaves the probe without a reply;
- the worker has ended and the next one is not ready.

A shard that did not respond is probed in the background until it does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.topology import Address

from .connection import Connection

# The shares of the patience before a probe and for its reply.
_BEFORE, _REPLY = 1 / 3, 2 / 3
_AGAIN_SECONDS = 0.1
_STATE = re.compile(rb"qa_worker_state:(\w+)")
# Error codes of a server that is not ready to answer questions.
_NOT_READY = frozenset({"LOADING", "MASTERDOWN"})
_Result = TypeVar("_Result")


class ShardSilent(ClusterError):
    """The server or the worker of a shard does not respond; `address` is the address of the shard."""

    def __init__(self, address: Address, why: str) -> None:
        super().__init__(f"shard {address} does not respond: {why}")
        self.address = address


class Silence:
    """The shards of one cluster that do not respond now.

    Attributes:
        servers: why each server does not respond, by its address.
        workers: why each worker does not respond, by the address of its server.
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
        """Return the result of `work`; ShardSilent, and `work` is cancelled, if one of the shards does not respond.

        With `workers`, their workers must respond, too.
        """
        task = asyncio.ensure_future(work)
        try:
            while True:
                await asyncio.wait((task,), timeout=self._patience * _BEFORE)
                if not task.done():
                    probing = asyncio.ensure_future(self.probe(shards))
                    await asyncio.wait((task, probing), return_when=asyncio.FIRST_COMPLETED)
                    probing.cancel()
                if task.done():
                    return task.result()
                self.check(shards, workers=workers)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def check(self, shards: Collection[Address], *, workers: bool = False) -> None:
        """Raise ShardSilent if one of the shards is known not to respond."""
        for address in shards:
            why = self.servers.get(address) or (self.workers.get(address) if workers else None)
            if why:
                raise ShardSilent(address, why)

    async def probe(self, shards: Collection[Address]) -> None:
        """Find out which of these servers and their workers respond, unless this was found out a moment ago."""
        now = asyncio.get_running_loop().time()
        probes: list[asyncio.Task[None]] = []
        for address in shards:
            if now - self._responded.get(address, -1.0) < self._patience * _BEFORE:
                continue
            if address not in self._probes:
                self._probes[address] = asyncio.create_task(self._probe(address))
            probes.append(self._probes[address])
        if probes:
            await asyncio.wait(probes)

    def keep(self, served: Collection[Address]) -> None:
        """Forget the shards that are not in the topology any more."""
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
        loop = asyncio.get_running_loop()
        limit = self._patience * _REPLY
        try:
            begun = loop.time()
            found = await self._ask(address, limit)
            if found is None and loop.time() - begun > limit * 1.5:  # this process was late itself: ask again
                found = await self._ask(address, limit)
            server, worker = (f"no reply in {limit:.3g} s", "") if found is None else found
        finally:
            self._probes.pop(address, None)
        if not server and not worker:
            self._responded[address] = begun
        for known, why in ((self.servers, server), (self.workers, worker)):
            known.pop(address, None)
            if why:
                known[address] = why
        if (self.servers or self.workers) and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="silent shards")

    async def _ask(self, address: Address, seconds: float) -> tuple[str, str] | None:
        """Why the server and why the worker does not respond, empty if it does; None if the time is up."""
        try:
            async with asyncio.timeout(seconds):
                reply = await (await self._connect(address)).execute("INFO", "qa_worker")
        except TimeoutError:
            return None
        except ReplyError as error:
            return (str(error), "") if error.code in _NOT_READY else ("", "")
        except ClusterError as error:
            return str(error), ""
        state = _STATE.search(reply) if isinstance(reply, bytes) else None
        return "", "" if state is None or state[1] == b"ready" else f"its worker is {state[1].decode()}"

    async def _follow(self) -> None:
        """Probe the shards that do not respond until they do."""
        while self.servers or self.workers:
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.probe({*self.servers, *self.workers})
