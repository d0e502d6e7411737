"""Tells whether a cached answer is still valid: every shard pushes a message to this process when anything changes.

One RESP3 connection per primary is subscribed (`CLIENT TRACKING ON BCAST`) to the epochs of the partitions, their
number and the manifests of the models. A push for any of them increments `generation`; near-cache entries and shared
flights belong to one generation. The epochs themselves are read on the same connections, so that a reply and the pushes
around it arrive in the order in which they happened.

A server writes its pushes at the end of the event loop round in which the write was answered. A client that wrote and
then got one more reply from that shard (all our clients do that before they report success) can therefore be sure that
the push is in the sockets of all API processes; `drained` looks into these sockets before a near-cache hit is served.

Every `CHECK_SECONDS` each server is asked, on its subscription, for some of its epochs. A server that is no longer the
primary of such a partition answers with a redirection and is dropped. While any primary is without a subscription, or
has not answered for `LEASE_SECONDS`, cached whole answers are neither served nor stored.

An epoch is kept together with the run id of the server that counts it: after a restart or failover that lost writes,
the same number would stand for another state.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Sequence
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.keys import PARTITIONS_KEY, epoch_key, slot
from qa_cluster.routing.connection import Argument, Connection, ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard, Topology

EPOCH_PREFIX = "epoch:"
MANIFEST_PREFIX = "bert-qa:manifest"
CHECK_SECONDS = 0.1
CHECKED_EPOCHS = 32
TOPOLOGY_SECONDS = 1.0
LEASE_SECONDS = 1.0
SILENCE_SECONDS = 3.0
DRAIN_ROUNDS = 16

_log = logging.getLogger(__name__)


class Freshness:
    """The current epochs of all partitions, and a number that changes whenever one of them does."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._links: dict[Shard, _Link] = {}
        self._tags: tuple[str, ...] = ()
        self._epochs: dict[str, str] = {}
        self._changes: dict[str, int] = {}
        self._poll = select.poll()
        self._wake = asyncio.Event()
        self._tick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.generation = 0
        self.manifest_changes = 0
        self.pushes = 0
        self.ready = False
        self._confirmed_until = 0.0
        self._topology_due = 0.0
        self._complaint = ""
        self._turn = 0

    async def start(self, tags: Sequence[str]) -> None:
        """Subscribe on every shard; return after the first attempt, whether it succeeded or failed."""
        self._tags = tuple(tags)
        self._shards.on_topology.append(self._topology_changed)
        self._task = asyncio.create_task(self._supervise(), name="freshness")
        await self._tick.wait()

    def set_tags(self, tags: Sequence[str]) -> None:
        """Replace the partitions, by their hash tags."""
        self._tags = tuple(tags)
        self.generation += 1
        self._forget_epochs()

    async def aclose(self) -> None:
        """Close the subscriptions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._topology_changed in self._shards.on_topology:
            self._shards.on_topology.remove(self._topology_changed)
        for link in list(self._links.values()):
            link.connection.close()

    def drained(self) -> bool:
        """Whether every subscription is up and none has unread bytes. It costs one system call."""
        return self.ready and monotonic() < self._confirmed_until and not self._poll.poll(0)

    async def drain(self) -> bool:
        """Let the event loop read what the subscriptions hold; False when it cannot keep up or one is down."""
        for _ in range(DRAIN_ROUNDS):
            if self.drained():
                return True
            if not self.ready or monotonic() >= self._confirmed_until:
                return False
            await asyncio.sleep(0)
        return self.drained()

    async def epochs(self) -> tuple[str, ...] | None:
        """The epoch of every partition, none older than this call; None while a subscription is down."""
        if not await self.drain():
            return None
        found = dict(self._epochs)
        missing = [tag for tag in self._tags if tag not in found]
        if missing and not await self._fetch(missing, found):
            return None
        return tuple(found[tag] for tag in self._tags) if self.ready else None

    async def _fetch(self, tags: Sequence[str], into: dict[str, str]) -> bool:
        waiting = []
        try:
            for tag in tags:
                link = self._links[self._shards.topology.shard_of(slot(epoch_key(tag)))]
                waiting.append((tag, self._changes.get(tag, 0), link, link.connection.send("GET", epoch_key(tag))))
        except (KeyError, ClusterError):
            self._wake.set()
            return False
        complete = True
        for tag, changes, link, future in waiting:
            reply = await future
            if isinstance(reply, ReplyError | ConnectionLost):
                self._wake.set()
                complete = False
                continue
            into[tag] = f"{link.run}:{int(reply or 0)}"
            if self._changes.get(tag, 0) == changes:
                self._epochs[tag] = into[tag]
        return complete

    def _pushed(self, push: list[Any]) -> None:
        if not push or push[0] != b"invalidate":
            return
        self.pushes += 1
        self.generation += 1
        if len(push) < 2 or push[1] is None:  # FLUSHALL
            self._forget_epochs()
            return
        for key in push[1]:
            name = key.decode("utf-8", "replace")
            if name.startswith("epoch:{"):
                tag = name[len("epoch:{") :].partition("}")[0]
                self._epochs.pop(tag, None)
                self._changes[tag] = self._changes.get(tag, 0) + 1
            else:
                self.manifest_changes += 1

    def _forget_epochs(self) -> None:
        self._epochs.clear()
        self.manifest_changes += 1
        for tag in self._tags:
            self._changes[tag] = self._changes.get(tag, 0) + 1

    def _topology_changed(self, _topology: Topology) -> None:
        self.generation += 1
        self._forget_epochs()
        self._wake.set()
        self._settle()

    def _lost(self, connection: Connection) -> None:
        for shard, link in list(self._links.items()):
            if link.connection is connection:
                del self._links[shard]
                self._poll.unregister(link.descriptor)
                self.generation += 1
                self._forget_epochs()
        self._settle()
        self._wake.set()

    def _settle(self) -> None:
        topology = self._shards.topology
        self.ready = topology.whole and all(shard in self._links for shard in topology.shards)

    async def _supervise(self) -> None:
        while True:
            self._wake.clear()
            begun = monotonic()
            try:
                if not self.ready or begun >= self._topology_due:
                    await self._shards.refresh()
                    self._topology_due = begun + TOPOLOGY_SECONDS
                await self._reconcile()
                self._settle()
                self._confirmed_until = begun + LEASE_SECONDS
                self._complaint = ""
            except ClusterError as error:
                self._complain(str(error))
            self._tick.set()
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(0.01)

    def _complain(self, problem: str) -> None:
        """Log a problem once, not ten times a second."""
        if problem != self._complaint:
            self._complaint = problem
            _log.warning("cached answers are bypassed: %s", problem)

    async def _reconcile(self) -> None:
        wanted = set(self._shards.all)
        for shard in [shard for shard in self._links if shard not in wanted]:
            self._links[shard].connection.close()
        for outcome in await asyncio.gather(*(self._check(shard) for shard in wanted), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _check(self, shard: Shard) -> None:
        if shard not in self._links:
            await self._subscribe(shard)
        link = self._links[shard]
        topology = self._shards.topology
        keys = [key for key in map(epoch_key, self._tags) if topology.shard_of(slot(key)) == shard]
        self._turn += 1
        first = self._turn * CHECKED_EPOCHS % max(1, len(keys))
        asked: list[tuple[Argument, ...]] = [("GET", key) for key in (keys[first:] + keys[:first])[:CHECKED_EPOCHS]]
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                for future in link.connection.send_many(asked or [("PING",)]):
                    if isinstance(reply := await future, ConnectionLost | ReplyError):
                        raise reply
        except (TimeoutError, ConnectionLost, ReplyError) as error:
            link.connection.close()
            self._topology_due = 0.0
            raise ClusterError(f"{shard.address} no longer reports changes: {error or 'no answer'}") from error

    async def _subscribe(self, shard: Shard) -> None:
        connection = await Connection.open(
            shard.address.host, shard.address.port, self._shards.login, on_push=self._pushed, on_lost=self._lost
        )
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                prefixes: list[Argument] = []
                for prefix in (EPOCH_PREFIX, MANIFEST_PREFIX, PARTITIONS_KEY):
                    prefixes += ["PREFIX", prefix]
                await connection.execute("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
                info = await connection.execute("INFO", "server")
        except (TimeoutError, ReplyError) as error:
            connection.close()
            raise ClusterError(f"cannot subscribe to changes on {shard.address}: {error or 'no answer'}") from error
        except BaseException:
            connection.close()
            raise
        text = info.decode("utf-8", "replace") if isinstance(info, bytes) else str(info)
        run = text.partition("run_id:")[2][:8]
        link = _Link(connection, run, connection.fileno())
        if link.descriptor < 0:
            raise ClusterError(f"connection to {shard.address} was lost at once")
        self._links[shard] = link
        self._poll.register(link.descriptor, select.POLLIN)
        self.generation += 1
        self._forget_epochs()


class _Link:
    """A subscription: its connection, the run id of the server and the descriptor that is polled."""

    def __init__(self, connection: Connection, run: str, descriptor: int) -> None:
        self.connection = connection
        self.run = run
        self.descriptor = descriptor
