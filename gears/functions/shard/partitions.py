"""The number of partitions, and the partitions on this shard.

The number of partitions is in one key on one shard, and determines the tags of the partitions. The first use asks that
shard, and concurrent uses wait for the same reply. Later, the worker asks again every few seconds, because the number
may change. While the number is unset, the worker uses the tags of known keys. The server's slot table shows which tags
are on this shard.
"""

from __future__ import annotations

import asyncio
import time

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.peers import RESEND_SOON_SECONDS
from qa_cluster.keys import PARTITIONS_KEY, partition_tags, slot

from .locks import Locks
from .slots import Slots, View, is_redirect

REQUEST = "qa.partitions"
ASK_AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 2.0
FOLLOW_SECONDS = 5.0


class Partitions:
    """The partitions of the cluster and of this shard. A worker has one such object.

    Attributes:
        is_unset: whether the number is known to be unset. If the number is unknown instead, this shard may have
            partitions whose tags the worker has not seen.
    """

    def __init__(self, shard: ShardCommands, slots: Slots, locks: Locks) -> None:
        self._shard = shard
        self._slots = slots
        self._locks = locks
        self.is_unset = False
        self._count: int | None = None
        self._asked_at = -FOLLOW_SECONDS
        self._seen: set[str] = set()
        self._local: tuple[str, ...] = ()
        self._local_of: tuple[View, int | None, int] | None = None
        shard.answer(REQUEST, self._answer)

    def note_tag(self, tag: str) -> None:
        """Record that a key with this tag is on this shard. Such tags are used while the number of partitions is unset
        or unknown.
        """
        self._seen.add(tag)

    async def count(self) -> int | None:
        """Return the number of partitions of the cluster; None while it is unset or unknown."""
        if self._count is None:
            async with self._locks.held("partitions"):
                if self._count is None and time.monotonic() - self._asked_at > ASK_AGAIN_SECONDS:
                    await self._ask()
        return self._count

    async def follow(self) -> bool:
        """Read the number of partitions again; return whether the number has changed.

        If the last read was less than `FOLLOW_SECONDS` ago, do nothing and return False.
        """
        if time.monotonic() - self._asked_at < FOLLOW_SECONDS:
            return False
        before = self._count
        async with self._locks.held("partitions"):
            await self._ask()
        return self._count != before

    async def local_tags(self) -> tuple[str, ...]:
        """Return the tags of the partitions on this shard; empty on a replica."""
        known = await self.count()
        view = self._slots.current()
        if not view.is_primary:
            return ()
        local_of = (view, known, len(self._seen))
        if local_of != self._local_of:
            # If the number of partitions is known, tags that do not belong to a partition are ignored. Their documents
            # are in no partition, so no epoch would show that a cached answer about these documents is stale.
            tags = partition_tags(known) if known else sorted(self._seen)
            self._local, self._local_of = tuple(tag for tag in tags if view.has(slot(tag))), local_of
        return self._local

    def _answer(self, _sender: str, _body: object) -> int:
        """Answer a `REQUEST` of another shard with the number of partitions; 0 if it is unset or unknown."""
        found = self._read()
        return (self._count or 0) if found is None else found

    def _read(self) -> int | None:
        """Read the number of partitions from its key: 0 if the key is missing, None if the key is on another shard."""
        try:
            (value,) = self._slots.read([("GET", PARTITIONS_KEY)])
        except GearsError as error:
            if is_redirect(error):
                return None
            raise
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0

    async def _ask(self) -> None:
        """Update the number from its key, or ask the shard that has the key. Without a reply, the number does not
        change."""
        found = self._read()
        view = self._slots.current()
        owner = view.owner(slot(PARTITIONS_KEY))
        if found is None and owner is not None:
            found = await self._answer_of(owner)
        if found is None and self._count is None:
            # If the shard with the key is down, other shards may have the number.
            others = [node for node, _ in view.others if node != owner]
            answers = await asyncio.gather(*(self._answer_of(node) for node in others))
            found = next((answer for answer in answers if answer), None)
        self._asked_at = time.monotonic()
        if found is not None:
            self._count, self.is_unset = found or None, not found

    async def _answer_of(self, node: str) -> int | None:
        """Return the number from another shard; None if that shard does not answer."""
        try:
            return int(await self._shard.ask(node, REQUEST, None, ANSWER_SECONDS, RESEND_SOON_SECONDS))
        except GearsError as error:
            self._shard.log(f"a shard did not report the number of partitions: {error}", "warning")
            return None
