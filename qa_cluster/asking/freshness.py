"""Tells whether a cached answer is still valid: every shard pushes a message to this process when anything changes.

One RESP3 connection per primary is subscribed (`CLIENT TRACKING ON BCAST`) to the watched questions, to the epochs of
the partitions, to the models' manifests and to the lists of collections. A question that is dropped names the answer
that a write may have changed: nobody else's answer goes. An epoch moves with every write, and tells whether work that
is under way has seen it.
Whatever is not a write of documents moves `generation`, to which all cached answers of this process belong: another
model, another topology, a collection made or removed, a lost connection.

A server writes its pushes at the end of the event loop round in which the write was answered. A client that wrote and
then got one more reply from that shard (all our clients do that before they report success) can therefore be sure that
the push is in the sockets of all API processes; `drained` looks into these sockets before a near-cache hit is served.

Every `CHECK_SECONDS` each server is asked for its epochs on its subscription: one that is no longer the primary of one
of these partitions answers with a redirection and is dropped. While any primary is without a subscription, or has not
answered for `LEASE_SECONDS`, cached whole answers are neither served nor stored.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.keys import COLLECTIONS_PREFIX, PARTITIONS_KEY, epoch_key, slot
from qa_cluster.routing.connection import Argument, Connection, ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard, Topology

EPOCH_PREFIX = "epoch:"
WATCHED_PREFIX = "watched:"
MANIFEST_PREFIX = "bert-qa:manifest"
CHECK_SECONDS = 0.1
CHECKED_EPOCHS = 32
TOPOLOGY_SECONDS = 1.0
LEASE_SECONDS = 1.0
SILENCE_SECONDS = 3.0
DRAIN_ROUNDS = 16

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Keeping:
    """An answer that is being made: whether its question has been dropped meanwhile."""

    dropped: bool = False


class Freshness:
    """What the shards say of changes.

    Attributes:
        generation: moves when cached answers of this process are void, all of them.
        writes: moves with every write of documents.
        manifest_changes: moves when models or the number of partitions may have changed.
        pushes: how many were received.
        ready: whether every shard reports its changes.
        on_dropped: called with the name of each answer that a write may have changed.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._links: dict[Shard, _Link] = {}
        self._tags: tuple[str, ...] = ()
        self._kept: dict[str, list[Keeping]] = {}
        self._poll = select.poll()
        self._wake = asyncio.Event()
        self._tick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_dropped: list[Callable[[str], None]] = []
        self.generation = 0
        self.writes = 0
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

    @contextmanager
    def keeping(self, digest: str) -> Iterator[Keeping]:
        """While an answer is being made: hears of its question's drop even before the answer is in any cache."""
        keeping = Keeping()
        self._kept.setdefault(digest, []).append(keeping)
        try:
            yield keeping
        finally:
            self._kept[digest].remove(keeping)
            if not self._kept[digest]:
                del self._kept[digest]

    def _pushed(self, push: list[Any]) -> None:
        if not push or push[0] != b"invalidate":
            return
        self.pushes += 1
        if len(push) < 2 or push[1] is None:  # FLUSHALL
            self._forget_all()
            return
        for key in push[1]:
            name = key.decode("utf-8", "replace")
            if name.startswith(WATCHED_PREFIX):
                self._dropped(name.rpartition(":")[2])
            elif name.startswith(EPOCH_PREFIX):
                self.writes += 1
            elif name.startswith(COLLECTIONS_PREFIX):
                self.generation += 1
            else:
                self.generation += 1
                self.manifest_changes += 1

    def _dropped(self, digest: str) -> None:
        for keeping in self._kept.get(digest, ()):
            keeping.dropped = True
        for callback in self.on_dropped:
            callback(digest)

    def _forget_all(self) -> None:
        self.generation += 1
        self.writes += 1
        self.manifest_changes += 1

    def _topology_changed(self, _topology: Topology) -> None:
        self._forget_all()
        self._wake.set()
        self._settle()

    def _lost(self, connection: Connection) -> None:
        for shard, link in list(self._links.items()):
            if link.connection is connection:
                del self._links[shard]
                self._poll.unregister(link.descriptor)
                self._forget_all()
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
                for prefix in (WATCHED_PREFIX, EPOCH_PREFIX, MANIFEST_PREFIX, PARTITIONS_KEY, COLLECTIONS_PREFIX):
                    prefixes += ["PREFIX", prefix]
                await connection.execute("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
        except (TimeoutError, ReplyError) as error:
            connection.close()
            raise ClusterError(f"cannot subscribe to changes on {shard.address}: {error or 'no answer'}") from error
        except BaseException:
            connection.close()
            raise
        link = _Link(connection, connection.fileno())
        if link.descriptor < 0:
            raise ClusterError(f"connection to {shard.address} was lost at once")
        self._links[shard] = link
        self._poll.register(link.descriptor, select.POLLIN)
        self._forget_all()


@dataclass(frozen=True, slots=True)
class _Link:
    """A subscription: its connection and the descriptor that is polled."""

    connection: Connection
    descriptor: int
