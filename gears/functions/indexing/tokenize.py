"""Tokenizes and indexes the sentences of a document when they are written, away from the event loop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents import DocumentRecord, document_keys, parse_record, read_record
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.indexing import late
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard import locks, partitions
from qa_cluster.gears.functions.shard.calls import run_script
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import SENTENCE_PREFIX, document_key, parse_tagged, sentence_key, tokens_prefix
from qa_cluster.ranking.fields import fields_of
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.ranking.postings import IndexWriter, pack_sentences
from qa_cluster.reading.tokenization import pack_sentence
from qa_cluster.scripts import ScriptCall
from qa_cluster.source_map import filter_metadata

# Most documents at once: questions share the processor with them.
MAX_CONCURRENT = 2


@dataclass
class _Tokenizing:
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))


async def on_sentences(record: dict[str, Any]) -> str:
    """Handle sentences of a document that were written."""
    found = parse_tagged(record["key"], SENTENCE_PREFIX) if isinstance(record["key"], str) else None
    if found is None:
        return "no document"
    return await late.unless_moving(found[1], tokenize(*found))


async def tokenize(document_id: str, tag: str, *, force: bool = False) -> str:
    """Make sure that a document is tokenized and indexed; return what was done.

    ``tokenized``, ``current`` (it was already), ``loose`` (sentences without a document), ``unsplit``, ``stale`` (it
    changed meanwhile: the event of that change continues) or ``waiting`` (for a reader).
    """
    partitions.saw(tag)
    async with locks.held(f"tokenize:{tag}:{document_id}"), state.of(_Tokenizing).turn:
        reader = loaded.if_loaded()
        if reader is None:
            return "waiting"
        reply = rg.execute_many([read_record(document_id, tag)])[0]
        record = parse_record(reply)
        if record is None:
            return await asyncio.to_thread(_tokenize_loose, document_id, tag, reader)
        if record.sentences is None:
            return "unsplit"
        if record.tokenized and record.tokenizer == reader.tokenizer_id and not force:
            return "current"
        return await asyncio.to_thread(_index, document_id, tag, record, reader)


def _index(document_id: str, tag: str, record: DocumentRecord, reader: Reader) -> str:
    packed, flat = rg.execute_many(
        [("HGET", document_key(document_id, tag), "spans"), ("HGETALL", sentence_key(document_id, tag))]
    )
    spans = [(start, end) for start, end in json.loads(packed or "[]")]
    stored = dict(zip(flat[::2], flat[1::2], strict=True))
    sentences = [stored.get(str(i)) for i in range(len(spans))]
    if len(spans) != record.sentences or not all(
        isinstance(text, str) and len(text) == end - start for text, (start, end) in zip(sentences, spans, strict=True)
    ):
        if parse_record(rg.execute_many([read_record(document_id, tag)])[0]) != record:
            return "stale"
        raise InvalidInput(f"sentences of document {document_id[:100]!r} were changed by hand: write its text again")
    texts = [str(text) for text in sentences]
    metadata = json.loads(record.metadata)
    writer = IndexWriter(
        document_id=document_id,
        tag=tag,
        version=record.version,
        splitter=record.splitter,
        tokenizer=reader.tokenizer_id,
        fingerprint=reader.tokenizer.fingerprint,
        spans=spans,
        tokens=reader.tokenizer.encode_texts(texts),
        packed=pack_sentences(texts, fields_of(record.title, metadata, [start for start, _ in spans])),
        fields=pack_fields(filter_metadata(metadata)),
    )
    attempt = ""
    for first, last, kind in writer.steps():
        status, attempt = run_script(writer.call(first, last, kind, attempt))
        if status != "stored":
            return "stale"
    return "tokenized"


def _tokenize_loose(document_id: str, tag: str, reader: Reader) -> str:
    """Tokenize sentences that a client wrote without a document: they can be read, but are not ranked."""
    flat = rg.execute("HGETALL", sentence_key(document_id, tag))
    stored = [(i, text) for i, text in zip(flat[::2], flat[1::2], strict=True) if isinstance(text, str)]
    stored = [(i, text) for i, text in stored if isinstance(i, str) and i.isascii() and i.isdigit()]
    arguments: list[str | bytes | int] = []
    for (i, text), tokens in zip(stored, reader.tokenizer.encode_texts([t for _, t in stored]), strict=True):
        (_, columns), blob = pack_sentence(0, len(text), tokens, reader.tokenizer.fingerprint)
        arguments += [i, text, columns, blob]
    keys = document_keys(document_id, tag)
    run_script(ScriptCall("tokenize_sentences", keys, (tokens_prefix(document_id, tag), *arguments)))
    return "loose"
