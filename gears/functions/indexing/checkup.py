"""Looks at all documents of the shard, in the background, for what no event told: texts that a stock client has written
or removed while no worker was there.

It takes texts in portions and pauses after each as long as that took. Such changes are found late, but nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextvars import Context
from dataclasses import dataclass, field

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.indexing import batches, late, split, tokenize
from qa_cluster.gears.functions.indexing.batches import Name
from qa_cluster.gears.functions.indexing.scanning import pages, scan
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import DOCUMENT_PREFIX, PARAGRAPHS_PREFIX, SENTENCE_PREFIX, paragraphs_key, parse_tagged

PORTION = 64


@dataclass
class _Checkup:
    """The look under way, and the partitions at which the next one looks (None: all)."""

    task: asyncio.Task[None] | None = None
    tags: set[str] | None = field(default_factory=set)


def request(tags: Collection[str] | None) -> None:
    """Request a look at the shard, or at some partitions, soon. Requests during one lead to one more."""
    checkup = state.of(_Checkup)
    if tags is None:
        checkup.tags = None
    elif checkup.tags is not None:
        checkup.tags |= set(tags)
    if checkup.task is None and (checkup.tags is None or checkup.tags):
        checkup.task = asyncio.get_running_loop().create_task(_look_until_done(), context=Context())


async def _look_until_done() -> None:
    checkup = state.of(_Checkup)
    try:
        while checkup.tags is None or checkup.tags:
            tags, checkup.tags = checkup.tags, set()
            view = slots.current(0)
            if view.is_primary and view.ranges:
                await look(tags, patient=True)
                if tags is None:
                    await _forward_untagged()
    except Exception as error:  # nothing awaits this task; the next sweep requests another look
        rg.log(f"looking at all documents failed: {error}", "warning")
    finally:
        checkup.task = None


async def look(tags: Collection[str] | None, *, patient: bool = False) -> Counter[str]:
    """Index what is not indexed as it should be, of all partitions or of some; count documents by what was done.

    A patient look works half of the time only.
    """
    counts: Counter[str] = Counter()
    for prefix, choose in ((DOCUMENT_PREFIX, _without_text), (PARAGRAPHS_PREFIX, _all)):
        for page in pages(prefix + "*"):
            begun = time.monotonic()
            found = [parse_tagged(key, prefix) for key in page]
            names = choose([name for name in found if name is not None and (tags is None or name[1] in tags)])
            for first in range(0, len(names), PORTION):
                counts += await tried(names[first : first + PORTION])
                if patient:
                    await asyncio.sleep(time.monotonic() - begun)
                    begun = time.monotonic()
            await asyncio.sleep(0)
    await _forget_loose_answers(tags)
    return counts


def _all(names: list[Name]) -> list[Name]:
    return names


def _without_text(names: list[Name]) -> list[Name]:
    replies = rg.execute_many([("EXISTS", paragraphs_key(*name)) for name in names], keep_errors=True)
    return [name for name, reply in zip(names, replies, strict=True) if reply != 1]


async def tried(names: Sequence[Name]) -> Counter[str]:
    """Index documents and count what was done; an error must not stop the work on the others."""
    counts: Counter[str] = Counter()
    for (_, tag), outcome in zip(names, await batches.index_all(names), strict=True):
        if isinstance(outcome, str):
            counts[outcome] += 1
        elif late.is_moving(tag, outcome):
            counts["moving"] += 1
        else:
            counts["failed"] += 1
            rg.log(f"sweep: {outcome}", "warning")
    return counts


async def _forget_loose_answers(tags: Collection[str] | None) -> None:
    """Nobody knows whether sentences without a document have changed meanwhile: their answers are made anew."""
    for key in scan(SENTENCE_PREFIX + "*"):
        name = parse_tagged(key, SENTENCE_PREFIX)
        if name is not None and (tags is None or name[1] in tags):
            await late.unless_moving(name[1], tokenize.forget_answers(*name))


async def _forward_untagged() -> None:
    """Forward texts under keys without a tag whose documents do not exist yet; stop at the first failure.

    Every text needs all shards, so that the next one would probably fail too.
    """
    for key in scan(PARAGRAPHS_PREFIX + "*"):
        if len(key) > len(PARAGRAPHS_PREFIX) and parse_tagged(key, PARAGRAPHS_PREFIX) is None:
            try:
                await split.forward(key, only_new=True)
            except (QAError, rg.error) as error:
                rg.log(f"sweep: {error}", "warning")
                return
