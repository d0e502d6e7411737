"""Does the work that events have missed: at start, after a failover or a full queue, when a reader or slot has come.

Documents that have changed are noted as pending until they are indexed, by the client that puts them or by the module:
a sweep looks at these and at no others, so it is over soon. After it, `checkup` looks at all documents of partitions of
which not every change was noted, in the background. Only where a partition was made by another splitter, analyzer or
layout does the sweep itself look at all of its documents, and takes them over. It also removes cached answers that are
from another reader or from another version of their document, and those whose keys name questions in another way than
this worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from itertools import islice

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.indexing import answer_names, checkup, earlier, late, marks
from qa_cluster.gears.functions.indexing.scanning import scan
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.shard import naming, partitions, slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import (
    ANSWER_PREFIX,
    DOCUMENT_PREFIX,
    PENDING_PREFIX,
    document_key,
    index_key,
    layout_key,
    parse_answer_key,
    parse_tagged,
    pending_key,
    slot,
)
from qa_cluster.reading.readings import is_valid

SETTLE_SECONDS = 0.05
PENDING_PER_STEP = 100
ANSWERS_PER_STEP = 100


@dataclass
class _Sweeping:
    """The sweep under way, and what the next one must do: partitions (None: all) and a check of the cached answers.

    Of those that have moved, all documents are to be looked at.
    """

    task: asyncio.Task[None] | None = None
    tags: set[str] | None = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    answers: bool = False
    complaint: str = ""


def request(tags: Collection[str] | None = None, moved: Collection[str] = ()) -> None:
    """Request a sweep of the shard, or of some partitions, soon. Requests during a sweep lead to one more sweep.

    While the slots of those in `moved` were on their way, not every change was noted.
    """
    sweeping = state.of(_Sweeping)
    sweeping.moved |= set(moved)
    if tags is None:
        sweeping.tags = None
    elif sweeping.tags is not None:
        sweeping.tags |= set(tags)
    if sweeping.task is None:
        sweeping.task = asyncio.get_running_loop().create_task(_sweep_until_settled(), context=Context())


def request_answers() -> None:
    """Request a check of the cached answers soon: a reader has come, gone, or become the default."""
    state.of(_Sweeping).answers = True
    request(set())


def go_on(view: View) -> None:
    """Sweep the partitions that waited for their slots to settle, and whatever an error has left undone."""
    waited, moved = late.settled(view)
    if waited:
        request(waited, moved)
    elif state.of(_Sweeping).task is None and _is_wanted():
        request(set())


def _is_wanted() -> bool:
    sweeping = state.of(_Sweeping)
    return sweeping.tags is None or bool(sweeping.tags) or sweeping.answers


async def _sweep_until_settled() -> None:
    sweeping = state.of(_Sweeping)
    try:
        while _is_wanted():
            await asyncio.sleep(SETTLE_SECONDS)
            tags, sweeping.tags, sweeping.answers = sweeping.tags, set(), False
            moved, sweeping.moved = sweeping.moved, set()
            try:
                marks.remove_marks(moved)
                await sweep(tags)
                checkup.request(tags, await _unnoted(tags))
            except BaseException:
                sweeping.answers = True
                request(tags, moved)
                raise
        sweeping.complaint = ""
    except Exception as error:  # nothing awaits this task, so its error must be logged here
        if str(error) != sweeping.complaint:
            sweeping.complaint = str(error)
            rg.log(f"sweep failed: {error}", "warning")
    finally:
        sweeping.task = None


async def sweep(tags: Collection[str] | None = None) -> None:
    """Check the cached answers, then index what is pending on the shard or in some partitions, and take over others."""
    view = slots.current(0)
    if not view.is_primary or not view.ranges:
        return
    await _drop_foreign_names(tags)
    await _drop_invalid_answers(tags)
    local = await partitions.local_tags() if tags is None else tags
    for tag in [*local, *(_noted_elsewhere(local) if tags is None else ())]:
        if slot(tag) in view.leaving | view.coming:
            late.add(tag, moved=True)
        try:
            await _index_pending(tag)
        except rg.error as error:
            if not late.is_moving(tag, error):
                marks.complain(tag, error)
    if tags is None or tags:
        await _take_over(tags)


async def _unnoted(tags: Collection[str] | None) -> Collection[str] | None:
    """The partitions of a sweep (None: all) of which not every change was noted since all documents were looked at."""
    if not marks.is_noting():
        marks.remove_marks(await partitions.local_tags() if tags is None else tags)
        return tags
    view, local = slots.current(), await partitions.local_tags()
    unmarked = marks.unmarked(local if tags is None else [tag for tag in tags if view.has(slot(tag))])
    if tags is not None or len(unmarked) < len(local):
        return unmarked
    # Documents outside of all partitions have no mark: a look at all partitions is one at them, too.
    return None if local or await partitions.count() or partitions.is_unset() else ()


def _noted_elsewhere(local: Collection[str]) -> list[str]:
    """The tags of notes of documents under tags that are no partition's."""
    found = (key[len(PENDING_PREFIX) + 1 : -1] for key in scan(PENDING_PREFIX + "{*}"))
    return [tag for tag in found if tag not in local]


async def _index_pending(tag: str) -> None:
    """Index the documents of a partition that wait. One that cannot be indexed goes on to wait."""
    cursor = "0"
    while True:
        cursor, found = rg.execute("HSCAN", pending_key(tag), cursor, "COUNT", PENDING_PER_STEP)
        names = [parse_tagged(f"{DOCUMENT_PREFIX}{name}:{{{tag}}}", DOCUMENT_PREFIX) for name in found[::2] if name]
        waiting = [name for name in names if name is not None]
        for first in range(0, len(waiting), PENDING_PER_STEP):
            await checkup.tried(waiting[first : first + PENDING_PER_STEP])
        if str(cursor) == "0":
            return


async def _take_over(tags: Collection[str] | None) -> None:
    """Make all documents anew, where need be, of partitions that were not made as this version makes them."""
    view = slots.current()
    chosen = await partitions.local_tags() if tags is None else [tag for tag in tags if view.has(slot(tag))]
    others: list[str] = []
    for tag in chosen:
        made, holding = rg.execute_many(
            [("HGETALL", layout_key(tag)), ("EXISTS", index_key(tag), earlier.statistics_key(tag))], keep_errors=True
        )
        if isinstance(made, rg.error):
            if not late.is_moving(tag, made):
                marks.complain(tag, made)
        elif not marks.is_of_this_version(dict(zip(made[::2], made[1::2], strict=True))):
            others.append(tag)
            if isinstance(holding, int) and holding:
                rg.log(f"partition {tag} is of an earlier version: its documents are being taken over")
    if not others:
        return
    counts, _ = await checkup.look(others)
    removed = await earlier.remove(others)
    for tag in others:
        if not late.is_waiting(tag):
            rg.execute("HSET", layout_key(tag), *(part for pair in marks.LAYOUT.items() for part in pair))
    if counts["stored"] or removed:
        rg.log(
            f"partitions {', '.join(others)}: {counts['stored']} documents are taken over"
            f" ({counts['failed'] + counts['refused']} failed),"
            f" {removed} keys of the earlier version are removed"
        )


async def _drop_foreign_names(tags: Collection[str] | None) -> None:
    """Drop answers whose names this worker would not give, at its start and in partitions that came from elsewhere."""
    if dropped := await answer_names.drop_foreign(await partitions.local_tags() if tags is None else tags):
        rg.log(f"{dropped} cached answers are dropped: their keys name questions in another way (qa.answer-keys)")


async def _drop_invalid_answers(tags: Collection[str] | None) -> None:
    """Remove cached answers that are from another reader or another version of their document: a GET would return them.

    The answers are checked when this worker cannot know that they are valid: at its start, in partitions that came from
    elsewhere, and when a reader has come, gone, or become the default.
    """
    if loaded.if_loaded() is None:
        return
    revisions, known = loaded.revisions(), loaded.answered_by()
    if known == revisions and not tags:
        return
    if known != revisions:
        # After this, all answers by the previous readers have been stored, and no more will be.
        await rg.commands_sent()
    pattern = f"{ANSWER_PREFIX}*" if known is None or known.get("") != revisions.get("") else f"{ANSWER_PREFIX}@*"
    patterns = [pattern] if known != revisions else [f"{ANSWER_PREFIX}*{{{tag}}}_*" for tag in tags or ()]
    for each in patterns:
        keys = iter(scan(each))
        while some := list(islice(keys, ANSWERS_PER_STEP)):
            await _drop_invalid(some, revisions)
    loaded.set_answered_by(revisions)


async def _drop_invalid(keys: list[str], revisions: Mapping[str, str]) -> None:
    for key in keys:
        try:
            sentence, name, model = parse_answer_key(key)
            if not naming.is_ours(name):
                answer_names.drop(sentence.tag, [key])
                continue
            value, version = rg.execute_many(
                [("GET", key), ("HGET", document_key(sentence.document, sentence.tag), "version")]
            )
            revision = revisions.get(model)
            if value is not None and (revision is None or not is_valid(value, version or "", revision)):
                rg.execute("UNLINK", key)
        except InvalidInput:
            continue
        except rg.error as error:
            if not late.is_moving(sentence.tag, error):
                raise
    await asyncio.sleep(0)
