"""Finds which partitions this shard holds.

Their tags follow from the number of partitions, which is in one key on one shard. The first use asks that shard, and
concurrent uses wait for the same reply; later the number is asked for again now and then, because it may change. While
it is not set, the tags seen in keys are used. The server's slot table shows which of the tags are on this shard.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from qa_cluster.gears.functions.shard import locks, slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import PARTITIONS_KEY, partition_tags, slot

REQUEST = "qa.partitions"
ASK_AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 2.0
FOLLOW_SECONDS = 5.0


@dataclass
class _Partitions:
    """The number of partitions, the tags seen in keys, and the tags on this shard with the values they depend on."""

    count: int | None = None
    is_unset: bool = False
    asked_at: float = -FOLLOW_SECONDS
    seen: set[str] = field(default_factory=set)
    local: tuple[str, ...] = ()
    local_of: tuple[View, int | None, int] | None = None


def saw(tag: str) -> None:
    """Note that a key of this partition is on this shard."""
    state.of(_Partitions).seen.add(tag)


async def count() -> int | None:
    """The number of partitions of the cluster; None while it is not set or not known."""
    partitions = state.of(_Partitions)
    if partitions.count is None:
        async with locks.held("partitions"):
            if partitions.count is None and time.monotonic() - partitions.asked_at > ASK_AGAIN_SECONDS:
                await _ask()
    return partitions.count


def is_unset() -> bool:
    """Whether it is known that the number is not set; else the tags seen in keys may be some of many."""
    return state.of(_Partitions).is_unset


async def follow() -> bool:
    """Ask for the number again if the last reply is old; return whether it has changed."""
    partitions = state.of(_Partitions)
    if time.monotonic() - partitions.asked_at < FOLLOW_SECONDS:
        return False
    before = partitions.count
    async with locks.held("partitions"):
        await _ask()
    return partitions.count != before


async def local_tags() -> tuple[str, ...]:
    """The tags of the partitions on this shard; a replica has none."""
    partitions = state.of(_Partitions)
    known = await count()
    view = slots.current()
    if not view.is_primary:
        return ()
    of = (view, known, len(partitions.seen))
    if of != partitions.local_of:
        # A document under another tag is in no partition: no epoch would show that a cached whole answer is stale.
        tags = partition_tags(known) if known else sorted(partitions.seen)
        partitions.local, partitions.local_of = tuple(tag for tag in tags if view.has(slot(tag))), of
    return partitions.local


async def on_partitions(_record: object) -> str:
    """`RG.TRIGGER qa.partitions`: the number, 0 if not known, for clients while the key's shard is down."""
    return str(await count() or 0)


def answer(_sender: str, _body: object) -> int:
    """Answer another shard's `REQUEST` with the number; 0 if it is not set or not known here."""
    found = _read()
    return (state.of(_Partitions).count or 0) if found is None else found


def _read() -> int | None:
    """The number in its key, 0 if that is empty; None if the key is on another shard."""
    try:
        (value,) = slots.read([("GET", PARTITIONS_KEY)])
    except rg.error as error:
        if slots.is_redirect(error):
            return None
        raise
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


async def _ask() -> None:
    """Read the key, or ask its shard; if no shard answers, the number stays as it was."""
    partitions = state.of(_Partitions)
    found = _read()
    view = slots.current()
    owner = view.owner(slot(PARTITIONS_KEY))
    if found is None and owner is not None:
        found = await _answer_of(owner)
    if found is None and partitions.count is None:
        # If the key's shard is down, others may remember the number.
        others = [node for node, _ in view.others if node != owner]
        answers = await asyncio.gather(*(_answer_of(node) for node in others))
        found = next((answer for answer in answers if answer), None)
    partitions.asked_at = time.monotonic()
    if found is not None:
        partitions.count, partitions.is_unset = found or None, not found


async def _answer_of(node: str) -> int | None:
    """The number by another shard; None if that shard does not answer."""
    try:
        return int(await rg.ask_shard(node, REQUEST, None, ANSWER_SECONDS, rg.RESEND_SOON_SECONDS))
    except rg.error as error:
        rg.log(f"number of partitions: {error}", "warning")
        return None
