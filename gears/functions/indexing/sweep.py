"""Does the work that events have missed: at start, after a failover or a full queue, when a reader or slot has come.

A sweep looks at every document of the shard and splits and tokenizes those whose current text, splitter or tokenizer is
not the one of their sentences and tokens. Then it removes the index of an earlier version. It also removes cached
answers that are from another reader or from another version of their document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from qa_cluster.errors import InvalidInput, QAError
from qa_cluster.gears.functions.indexing import earlier_index, late, split, tokenize
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import (
    ANSWER_PREFIX,
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    document_key,
    paragraphs_key,
    parse_answer_key,
    parse_tagged,
)
from qa_cluster.reading.readings import is_valid

SETTLE_SECONDS = 0.05
SCAN_COUNT = 500
ANSWERS_PER_STEP = 100


@dataclass
class _Sweeping:
    """The sweep under way, and what the next one must do: partitions (None: all) and a check of the cached answers."""

    task: asyncio.Task[None] | None = None
    tags: set[str] | None = field(default_factory=set)
    answers: bool = False
    complaint: str = ""


def request(tags: Collection[str] | None = None) -> None:
    """Request a sweep of the shard, or of some partitions, soon. Requests during a sweep lead to one more sweep."""
    sweeping = state.of(_Sweeping)
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
    if waited := late.settled(view):
        request(waited)
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
            try:
                await sweep(tags)
            except BaseException:
                sweeping.answers = True
                request(tags)
                raise
        sweeping.complaint = ""
    except Exception as error:  # nothing awaits this task, so its error must be logged here
        if str(error) != sweeping.complaint:
            sweeping.complaint = str(error)
            rg.log(f"sweep failed: {error}", "warning")
    finally:
        sweeping.task = None


async def sweep(tags: Collection[str] | None = None) -> dict[str, int]:
    """Check the cached answers, then all documents of the shard or of some partitions; count these by state."""
    counts: dict[str, int] = {}
    view = slots.current(0)
    if not view.is_primary or not view.ranges:
        return counts
    await _drop_invalid_answers(tags)
    if tags is not None and not tags:
        return counts
    for key in scan(DOCUMENT_PREFIX + "*"):
        found = parse_tagged(key, DOCUMENT_PREFIX)
        if _wanted(found, tags) and found is not None and not await _exists(paragraphs_key(*found), found[1]):
            await _tried(counts, found[1], split.split(*found))
    for prefix, work in ((PARAGRAPHS_PREFIX, _split_and_tokenize), (SENTENCE_PREFIX, tokenize.tokenize)):
        for key in scan(prefix + "*"):
            found = parse_tagged(key, prefix)
            if _wanted(found, tags) and found is not None:
                await _tried(counts, found[1], work(*found))
    for tag in tags or await partitions.local_tags():
        await _tried({}, tag, earlier_index.remove(tag))
    if tags is None:
        await _forward_untagged()
    return counts


async def _split_and_tokenize(document_id: str, tag: str) -> str:
    """Split a document and, if it has new sentences, tokenize it at once: until then, questions do not find it."""
    status = await split.split(document_id, tag)
    if status == "stored":
        await tokenize.tokenize(document_id, tag)
    return status


def _wanted(found: tuple[str, str] | None, tags: Collection[str] | None) -> bool:
    return found is not None and (tags is None or found[1] in tags)


async def _exists(key: str, tag: str) -> bool:
    try:
        return bool(rg.execute("EXISTS", key))
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        late.add(tag)
        return True


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
            sentence, _, model = parse_answer_key(key)
            value, version = rg.execute_many(
                [("GET", key), ("HGET", document_key(sentence.document, sentence.tag), "version")]
            )
            revision = revisions.get(model)
            if value is not None and (revision is None or not is_valid(value, version or "", revision)):
                rg.execute("UNLINK", key)
        except InvalidInput:
            continue
        except rg.error as error:
            if not slots.is_redirect(error):
                raise
            late.add(sentence.tag)
    await asyncio.sleep(0)


async def _tried(counts: dict[str, int], tag: str, work: Awaitable[Any]) -> None:
    """Await the work on one document and count its status; an error must not stop the work on the others."""
    try:
        status = str(await work)
    except (QAError, rg.error) as error:
        status = "failed"
        if slots.is_redirect(error):
            late.add(tag)
        else:
            rg.log(f"sweep: {error}", "warning")
    counts[status] = counts.get(status, 0) + 1
    await asyncio.sleep(0)


def scan(pattern: str) -> Iterator[str]:
    """The keys of the shard that match; those that are not UTF-8 are left out, because none of ours is."""
    cursor = "0"
    while True:
        cursor, found = rg.execute("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        yield from (key for key in found if isinstance(key, str))
        if str(cursor) == "0":
            return
