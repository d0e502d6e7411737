"""Which partitions this shard holds.

Their tags follow from the number of partitions, one key on one shard: the first who needs it asks all shards, and who
comes meanwhile waits for the same reply. While nobody has set it, the tags seen in keys are taken. Which of them are
here is read from the server's slot table, again when a command was refused because its slot has moved.
"""

from __future__ import annotations

import time
from typing import Any

from qa_cluster.gears import api as rg
from qa_cluster.gears.builder import GearsBuilder
from qa_cluster.gears.functions import locks
from qa_cluster.gears.functions.calls import run_pipeline

from qa_cluster.keys import PARTITIONS_KEY, partition_tags, slot

MAX_TABLE_AGE_SECONDS = 2.0
ASK_AGAIN_SECONDS = 2.0


class _Partitions:
    def __init__(self) -> None:
        self.count: int | None = None
        self.asked_at = 0.0
        self.seen: set[str] = set()
        self.local: tuple[str, ...] = ()
        self.table_at = 0.0


_state = _Partitions()


def saw(tag: str) -> None:
    """A key of this partition is on this shard."""
    if tag not in _state.seen:
        _state.seen.add(tag)
        _state.table_at = 0.0


def moved() -> None:
    """A command was refused because its slot is elsewhere: read the slot table again."""
    _state.table_at = 0.0


async def count() -> int | None:
    """The number of partitions of the cluster; None while nobody has set it."""
    if _state.count is None:
        async with locks.held("partitions"):
            if _state.count is None and time.monotonic() - _state.asked_at > ASK_AGAIN_SECONDS:
                _state.count = _read() or await _ask()
                _state.asked_at = time.monotonic()
                _state.table_at = 0.0
    return _state.count


async def local_tags() -> tuple[str, ...]:
    """Tags of the partitions on this shard."""
    known = await count()
    if time.monotonic() - _state.table_at > MAX_TABLE_AGE_SECONDS:
        _state.table_at = time.monotonic()
        ranges = _own_slots()
        # A document under another tag is in no partition: whole answers that hold it could not be told from stale ones.
        tags = partition_tags(known) if known else sorted(_state.seen)
        _state.local = tuple(tag for tag in tags if any(first <= slot(tag) <= last for first, last in ranges))
    return _state.local


def _read(_record: Any = None) -> int:
    """The number, if its key is on this shard, else 0."""
    try:
        value = rg.execute("GET", PARTITIONS_KEY)
    except rg.error as error:
        if "not permitted" in str(error) or "MOVED" in str(error):
            return 0
        raise
    return int(value) if value else 0


async def _ask() -> int | None:
    """Asks all shards; a shard that cannot be reached only delays the answer to the next time."""
    replies, errors = await run_pipeline(GearsBuilder("ShardsIDReader").map(_read))
    if errors:
        rg.log(f"number of partitions: {errors[0]}", "warning")
    return max((int(reply) for reply in replies), default=0) or None


def _own_slots() -> list[tuple[int, int]]:
    try:
        own = rg.execute("CLUSTER", "MYID")
    except rg.error as error:
        if "cluster support disabled" not in str(error):
            raise
        return [(0, 16383)]
    return [(first, last) for first, last, master, *_ in rg.execute("CLUSTER", "SLOTS") if master[2] == own]
