"""Looks at all documents of partitions, in the background, for texts that a stock client has written or removed unseen.

That is needed once where the module notes such changes (`marks`), and after every sweep where it cannot. It takes texts
in portions and pauses after each as long as that took. Such changes are found late, but nobody waits.

The answers of sentences without a document are dropped after every sweep; that reads no document.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextvars import Context
from dataclasses import dataclass, field

from qa_cluster.errors import InputTooLong, InvalidInput, QAError
from qa_cluster.gears.functions.indexing import batches, late, marks, split, tokenize
from qa_cluster.gears.functions.indexing.batches import Name
from qa_cluster.gears.functions.indexing.scanning import pages, scan
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import (
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    answers_key,
    paragraphs_key,
    parse_tagged,
)

PORTION = 64


@dataclass
class _Checkup:
    """The work under way, and the partitions (None: all) whose documents or loose answers the next one is about."""

    task: asyncio.Task[None] | None = None
    tags: set[str] | None = field(default_factory=set)
    loose: set[str] | None = field(default_factory=set)


def request(swept: Collection[str] | None, looks: Collection[str] | None) -> None:
    """Request what comes after a sweep of the shard or of some partitions, soon, with a look at all documents of some.

    Requests during such work lead to more of it.
    """
    checkup = state.of(_Checkup)
    marks.give_up(looks)
    checkup.tags, checkup.loose = _both(checkup.tags, looks), _both(checkup.loose, swept)
    if checkup.task is None and _is_wanted(checkup):
        checkup.task = asyncio.get_running_loop().create_task(_work_until_done(checkup), context=Context())


def _both(tags: set[str] | None, more: Collection[str] | None) -> set[str] | None:
    return None if tags is None or more is None else tags | set(more)


def _is_wanted(checkup: _Checkup) -> bool:
    return checkup.tags is None or checkup.loose is None or bool(checkup.tags or checkup.loose)


async def _work_until_done(checkup: _Checkup) -> None:
    try:
        while _is_wanted(checkup):
            tags, checkup.tags = checkup.tags, set()
            loose, checkup.loose = checkup.loose, set()
            view = slots.current(0)
            if not view.is_primary or not view.ranges:
                continue
            if tags is None or tags:
                await _look(tags)
            await _forget_loose_answers(loose)
            if loose is None:
                await _forward_untagged()
    except Exception as error:  # nothing awaits this task; the next sweep requests another look
        rg.log(f"looking at all documents failed: {error}", "warning")
    finally:
        checkup.task = None


async def _look(tags: Collection[str] | None) -> None:
    """Look at all documents of partitions; those of which that was complete need not be looked at again.

    What is refused would be refused again, so it is dealt with.
    """
    local = set(await partitions.local_tags())
    chosen = local if tags is None else local & set(tags)
    marks.begin_look(chosen)
    counts, undone = await look(tags, patient=True)
    if marks.is_noting() and (marked := marks.set_marks(chosen - undone)):
        names = ", ".join(marked)
        rg.log(f"all documents of partitions {names} are checked: from now on their changes are noted")
    if undone:
        rg.log(f"some of {counts.total()} documents could not be checked, of partitions {', '.join(sorted(undone))}")


async def look(tags: Collection[str] | None, *, patient: bool = False) -> tuple[Counter[str], set[str]]:
    """Index what is not indexed as it should be, of all partitions or of some; count documents by what was done.

    The tags are those of the partitions with documents that may be indexed another time. A patient look works half of
    the time only.
    """
    counts: Counter[str] = Counter()
    undone: set[str] = set()
    for prefix, choose in ((DOCUMENT_PREFIX, _without_text), (PARAGRAPHS_PREFIX, _all)):
        for page in pages(prefix + "*"):
            begun = time.monotonic()
            found = [parse_tagged(key, prefix) for key in page]
            names = choose([name for name in found if name is not None and (tags is None or name[1] in tags)])
            for first in range(0, len(names), PORTION):
                done, failed = await tried(names[first : first + PORTION])
                counts += done
                undone |= failed
                if patient:
                    await asyncio.sleep(time.monotonic() - begun)
                    begun = time.monotonic()
            await asyncio.sleep(0)
    return counts, undone


def _all(names: list[Name]) -> list[Name]:
    return names


def _without_text(names: list[Name]) -> list[Name]:
    replies = rg.execute_many([("EXISTS", paragraphs_key(*name)) for name in names], keep_errors=True)
    return [name for name, reply in zip(names, replies, strict=True) if reply != 1]


async def tried(names: Sequence[Name]) -> tuple[Counter[str], set[str]]:
    """Index documents and count what was done; an error must not stop the work on the others.

    Texts that nobody can index as they are count as ``refused``. Others may be indexed another time: ``failed`` and
    ``moving``; the tags are theirs.
    """
    counts: Counter[str] = Counter()
    undone: set[str] = set()
    for (_, tag), outcome in zip(names, await batches.index_all(names), strict=True):
        if isinstance(outcome, str):
            counts[outcome] += 1
            continue
        if late.is_moving(tag, outcome):
            counts["moving"] += 1
            undone.add(tag)
            continue
        refused = isinstance(outcome, InvalidInput | InputTooLong)
        counts["refused" if refused else "failed"] += 1
        if not refused:
            undone.add(tag)
        rg.log(f"sweep: {outcome}", "warning")
    return counts, undone


async def _forget_loose_answers(tags: Collection[str] | None) -> None:
    """Nobody knows whether sentences without a document have changed meanwhile: their answers are made anew."""
    if tags is not None and not tags:
        return
    for page in pages(SENTENCE_PREFIX + "*"):
        found = [parse_tagged(key, SENTENCE_PREFIX) for key in page]
        names = [name for name in found if name is not None and (tags is None or name[1] in tags)]
        answered = rg.execute_many([("EXISTS", answers_key(*name)) for name in names], keep_errors=True)
        for name, reply in zip(names, answered, strict=True):
            try:
                if reply != 0:
                    await late.unless_moving(name[1], tokenize.forget_answers(*name))
            except rg.error as error:
                marks.complain(name[1], error)
        await asyncio.sleep(0)


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
