"""Repairs what events have missed: at start, after a failover, after a full queue, and when a reader has arrived.

Looks at every document of the shard and brings it through splitting and tokenizing where that is not done for its
current text; then works off the garbage. When the reader has changed, cached answers of the old one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context
from typing import Any

from qa_cluster.gears import api as rg
from qa_cluster.gears.functions import garbage, partitions, split, tokenize
from qa_cluster.gears.functions import reader as readers

from qa_cluster.errors import QAError
from qa_cluster.keys import (
    ANSWER_PREFIX,
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    paragraphs_key,
    parse_tagged,
)

SETTLE_SECONDS = 0.05
SCAN_COUNT = 500


class _Sweep:
    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.revision: str | None = None


_state = _Sweep()


def request() -> None:
    """Have the shard swept soon. Requests that come together, or while a sweep runs, are one more sweep."""
    if _state.task is not None:
        _state.again = True
        return
    _state.task = asyncio.get_running_loop().create_task(_sweep_until_settled(), context=Context())


def on_registered() -> None:
    """Events may have been missed, the change of the reader's files among them."""
    readers.forget()
    request()


def on_reader_file(_record: dict[str, Any]) -> None:
    """The tokenizer or the manifest of the shard's reader was written or removed."""
    readers.forget()
    request()


async def _sweep_until_settled() -> None:
    try:
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            _state.again = False
            await sweep()
            if not _state.again:
                return
    except Exception as error:  # nobody awaits this task: its error is told here or nowhere
        rg.log(f"sweep failed: {error}", "warning")
    finally:
        _state.task = None


async def sweep() -> dict[str, int]:
    """Look at all documents of the shard; how many there were in each state."""
    counts: dict[str, int] = {}
    _drop_answers_of_another_reader()
    for key in scan(DOCUMENT_PREFIX + "*"):
        found = parse_tagged(key, DOCUMENT_PREFIX)
        if found is not None and not rg.execute("EXISTS", paragraphs_key(*found)):
            await _tried(counts, split.split(*found))
    for key in scan(PARAGRAPHS_PREFIX + "*"):
        found = parse_tagged(key, PARAGRAPHS_PREFIX)
        if found is not None:
            await _tried(counts, split.split(*found))
    for key in scan(SENTENCE_PREFIX + "*"):
        found = parse_tagged(key, SENTENCE_PREFIX)
        if found is not None:
            await _tried(counts, tokenize.tokenize(*found))
    for tag in await partitions.local_tags():
        await garbage.collect(tag)
    await _forward_untagged()
    return counts


async def _forward_untagged() -> None:
    """Texts under keys without a tag whose documents are not there yet. It takes all shards: without one it ends."""
    for key in scan(PARAGRAPHS_PREFIX + "*"):
        if len(key) > len(PARAGRAPHS_PREFIX) and parse_tagged(key, PARAGRAPHS_PREFIX) is None:
            try:
                await split.forward(key, only_new=True)
            except (QAError, rg.error) as error:
                rg.log(f"sweep: {error}", "warning")
                return


def _drop_answers_of_another_reader() -> None:
    """A stock GET takes what is cached: after a change of the reader nothing of the old one may be."""
    reader = readers.if_loaded()
    if reader is None:
        return
    if _state.revision not in (None, reader.manifest.revision):
        for key in scan(ANSWER_PREFIX + "{*"):
            rg.execute("UNLINK", key)
    _state.revision = reader.manifest.revision


async def _tried(counts: dict[str, int], work: Any) -> None:
    """One document that cannot be repaired must not keep the others from it."""
    try:
        status = await work
    except (QAError, rg.error) as error:
        rg.log(f"sweep: {error}", "warning")
        status = "failed"
    counts[status] = counts.get(status, 0) + 1
    await asyncio.sleep(0)


def scan(pattern: str) -> Iterator[str]:
    """Keys of the shard; one that is not UTF-8 is none of ours."""
    cursor = "0"
    while True:
        cursor, found = rg.execute("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        yield from (key for key in found if isinstance(key, str))
        if str(cursor) == "0":
            return
