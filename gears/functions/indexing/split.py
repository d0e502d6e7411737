"""Has documents indexed when their text is written or removed, and forwards texts without a tag to their partitions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents.stored import check_document_id
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.indexing import batches, late
from qa_cluster.gears.functions.shard import partitions
from qa_cluster.gears.functions.shard.calls import run_pipeline
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import PARAGRAPHS_PREFIX, paragraphs_key, parse_tagged, partition_of

MAX_ATTEMPTS = 5
MAX_FORWARDING = 16
# How long an event waits for its document. The document keeps its turn after that, and the next event may come.
EVENT_SECONDS = 5.0


@dataclass
class _Forwarding:
    """Limits the runs that forward texts to their partitions, each of which involves all shards."""

    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FORWARDING))


async def on_paragraphs(record: dict[str, Any]) -> str:
    """Handle a text that was written or removed, under a document's key or under one without a tag."""
    key = record["key"]
    if not isinstance(key, str) or len(key) == len(PARAGRAPHS_PREFIX):
        return "no document"
    found = parse_tagged(key, PARAGRAPHS_PREFIX)
    if found is None:
        await forward(key)
        return "forwarded"
    return await late.unless_moving(found[1], _index(*found))


async def _index(document_id: str, tag: str) -> str:
    """Index a document that has changed; ``queued`` while others are before it, ``postponed`` if these are too many."""
    if batches.is_full():
        late.add(tag)
        return "postponed"
    future = batches.start(document_id, tag)
    done, _ = await asyncio.wait({future}, timeout=EVENT_SECONDS)
    if not done:
        future.add_done_callback(lambda late_one: _log_late(tag, late_one))
        return "queued"
    return future.result()


def _log_late(tag: str, future: asyncio.Future[str]) -> None:
    error = future.exception()
    if error is not None and not late.is_moving(tag, error):
        rg.log(f"index: {error}", "warning")


async def forward(key: str, *, only_new: bool = False) -> None:
    """Write the text under a key without a tag, or remove it, in the partition that its document belongs to.

    With ``only_new``, an existing document stays as it is, because nothing shows which of the two texts is newer.
    """
    write = _write_new if only_new else _write
    errors: list[str] = []
    # Hundreds of runs over all shards at once would delay each other until they are considered dead.
    async with state.of(_Forwarding).turn:
        for _ in range(MAX_ATTEMPTS):
            builder = rg.GearsBuilder("KeysReader").flatmap(_read_untagged).repartition(_key_of).map(write)
            _, errors = await run_pipeline(builder, key, noScan=True, readValue=False)
            if not errors:
                return
    raise InvalidInput(f"key {key[:100]!r} could not be passed on to its partition: {errors[0]}")


async def _read_untagged(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The text with the document's own key; nothing on shards that do not serve the key."""
    key = record["key"]
    try:
        text = rg.execute("GET", key)
    except rg.error as error:
        if "not permitted" in str(error):
            return []
        raise
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"text under {key[:100]!r} is not valid UTF-8: no question is answered from it")
    document_id = check_document_id(key[len(PARAGRAPHS_PREFIX) :])
    known = await partitions.count()
    if known is None:
        raise InvalidInput(f"key {key[:100]!r} has no partition: set the number of partitions first")
    return [{"key": paragraphs_key(document_id, partition_of(document_id, known)), "text": text}]


def _key_of(record: dict[str, Any]) -> str:
    return str(record["key"])


def _write(record: dict[str, Any]) -> None:
    """Write or remove the text; the event of this change does the rest."""
    if record["text"] is None:
        rg.execute("DEL", record["key"])
    elif rg.execute("GET", record["key"]) != record["text"]:
        rg.execute("SET", record["key"], record["text"])


def _write_new(record: dict[str, Any]) -> None:
    if record["text"] is not None:
        rg.execute("SET", record["key"], record["text"], "NX")
