"""Splits documents into sentences when their text is written, and gives texts written with a plain SET their record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents import (
    MAX_TEXT_LENGTH,
    DocumentInput,
    DocumentRecord,
    adopt_document,
    check_document,
    check_document_id,
    document_version,
    forget_document,
    forget_version,
    parse_delete,
    parse_put,
    parse_record,
    read_record,
    split_document,
)
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.gears.functions.indexing import late, tokenize
from qa_cluster.gears.functions.shard import locks, partitions
from qa_cluster.gears.functions.shard.calls import run_pipeline, run_script
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import PARAGRAPHS_PREFIX, document_name, paragraphs_key, parse_tagged, partition_of
from qa_cluster.sentences import SPLITTER_VERSION, split_sentences

MAX_ATTEMPTS = 5
MAX_FORWARDING = 16


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
    return await late.unless_moving(found[1], split(*found))


async def split(document_id: str, tag: str) -> str:
    """Make sure that a document's current text is split; return what was done.

    Every attempt ends in a compare-and-set, so if the text changes meanwhile, it is simply tried again.
    """
    partitions.saw(tag)
    async with locks.held(f"split:{tag}:{document_id}"):
        for _ in range(MAX_ATTEMPTS):
            status = await _attempt(document_id, tag)
            if status != "stale":
                return status
    raise InvalidInput(f"document {document_id[:100]!r} changes faster than it can be split: gave up for this event")


async def _attempt(document_id: str, tag: str) -> str:
    key = paragraphs_key(document_id, tag)
    text, reply = rg.execute_many([("GET", key), read_record(document_id, tag)])
    record = parse_record(reply)
    if text is None:
        call = forget_document(document_id, tag)
        return parse_delete(await asyncio.to_thread(run_script, call)).status
    if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
        if record is not None:
            await asyncio.to_thread(run_script, forget_version(document_id, tag, record.version))
        raise _unreadable(document_id, text)
    document = await asyncio.to_thread(_as_stored, document_id, text, record)
    if record is None or record.version != document.version:
        call = adopt_document(document, tag, record.version if record is not None else "")
        adopted = parse_put(await asyncio.to_thread(run_script, call))
        if adopted.status in ("stale", "conflict"):
            return "stale"
        if adopted.status == "homeless":
            raise InvalidInput(
                f"no collection {document.collection!r}: the text of document {document.document_id[:100]!r} stays, but"
                " no question is answered from it; create the collection and write the text again"
            )
    elif record.sentences is not None and record.splitter == SPLITTER_VERSION:
        return "unchanged"
    spans = await asyncio.to_thread(split_sentences, text)
    sentences = [text[start:end] for start, end in spans]
    call = split_document(document_id, tag, document.version, spans, sentences, splitter=SPLITTER_VERSION)
    status = str((await asyncio.to_thread(run_script, call))[0])
    if status == "unchanged" or (status == "stored" and not spans):
        # No sentence was written, so no event starts the indexing. One under way may have failed, as its splitter was
        # another.
        await tokenize.tokenize(document_id, tag)
    return status


def _unreadable(document_id: str, text: str | bytearray) -> InvalidInput | InputTooLong:
    if isinstance(text, str):
        return InputTooLong(
            f"text of document {document_id[:100]!r} has {len(text)} code points, limit {MAX_TEXT_LENGTH}"
        )
    return InvalidInput(f"text of document {document_id[:100]!r} is not valid UTF-8: no question is answered from it")


def _as_stored(document_id: str, text: str, record: DocumentRecord | None) -> DocumentInput:
    """The document with its stored text, title and metadata: a plain SET has changed only the text."""
    name = document_name(document_id)
    if record is None:
        return check_document(name.id, text, collection=name.collection)
    check_document_id(name.id)
    version = document_version(record.title, record.metadata, text)
    return DocumentInput(name.id, record.title, record.metadata, text, version, name.collection)


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
