"""Stores the tokens of documents, in bulk, and drops the answers of sentences that clients keep without a document.

A sentence without stored tokens is tokenized when it is first read. That costs 0.1 ms a sentence where its reading
takes the model some milliseconds, and tokens take 130 bytes a sentence: so only `pretokenize` stores them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents.sentence_offsets import cut_sentences
from qa_cluster.documents.stored import BLOCK_SENTENCES, DocumentRecord, loose_sentences, parse_record, read_record
from qa_cluster.documents.stored import store_tokens as store_call
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.indexing import late
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard import locks
from qa_cluster.gears.functions.shard.calls import run_script
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import SENTENCE_PREFIX, offsets_key, paragraphs_key, parse_tagged, tokens_key
from qa_cluster.reading.tokenization import pack_tokens, unpack_tokens

# Most documents at once: questions share the processor with them.
MAX_CONCURRENT = 2
# Some 30 kB, which hold the shard for a fraction of a millisecond.
STEP_BLOCKS = 4


@dataclass
class _Tokenizing:
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))


async def on_sentences(record: dict[str, Any]) -> str:
    """Handle sentences that a client has written or removed."""
    found = parse_tagged(record["key"], SENTENCE_PREFIX) if isinstance(record["key"], str) else None
    if found is None:
        return "no document"
    return await late.unless_moving(found[1], forget_answers(*found))


async def forget_answers(document_id: str, tag: str) -> str:
    """Drop the answers of sentences that have changed and belong to no document."""
    return "loose" if await asyncio.to_thread(run_script, loose_sentences(document_id, tag)) else "of a document"


async def tokenize(document_id: str, tag: str, *, force: bool = False) -> str:
    """Make sure that a document's tokens are stored; return what was done.

    ``tokenized``, ``current`` (they were already), ``stale`` (it changes or is not indexed: its tokens can wait) or
    ``waiting`` (for a reader).
    """
    async with locks.held(f"tokenize:{tag}:{document_id}"), state.of(_Tokenizing).turn:
        reader = loaded.if_loaded()
        if reader is None:
            return "waiting"
        return await asyncio.to_thread(_tokenize, document_id, tag, reader, force)


def _tokenize(document_id: str, tag: str, reader: Reader, force: bool) -> str:
    name = (document_id, tag)
    reply, count, first = rg.execute_many(
        [read_record(*name), ("HLEN", tokens_key(*name)), ("HGET", tokens_key(*name), 0)]
    )
    record = parse_record(reply)
    if record is None or not record.tokenized or not record.analyzer:
        return "stale"
    blocks = -(-(record.sentences or 0) // BLOCK_SENTENCES)
    # Blocks are stored from the last to the first, so that the first one shows that all of them are there.
    if count == blocks and not force and (not blocks or _is_of(reader, first)):
        return "current"
    return _store(document_id, tag, record, blocks, reader)


def _store(document_id: str, tag: str, record: DocumentRecord, blocks: int, reader: Reader) -> str:
    packed, text = (
        _bytes(reply)
        for reply in rg.execute_many(
            [("GET", offsets_key(document_id, tag)), ("GET", paragraphs_key(document_id, tag))]
        )
    )
    if not packed:
        return "stale"
    width = packed[0]
    found = [placed for placed in cut_sentences(0, width, packed[1:], text) if placed is not None]
    if len(found) != record.sentences:
        return "stale"
    for end in range(blocks, 0, -STEP_BLOCKS):
        made: dict[int, bytes] = {}
        for block in range(end - 1, max(end - STEP_BLOCKS, 0) - 1, -1):
            sentences = found[block * BLOCK_SENTENCES : (block + 1) * BLOCK_SENTENCES]
            tokens = reader.tokenizer.encode_texts([sentence.text for sentence in sentences])
            made[block] = pack_tokens(tokens, reader.tokenizer.fingerprint)
        if run_script(store_call(document_id, tag, record.version, record.splitter, made))[0] != "stored":
            return "stale"
    return "tokenized"


def _is_of(reader: Reader, block: Any) -> bool:
    try:
        return block is not None and unpack_tokens(_bytes(block), reader.tokenizer.fingerprint) is not None
    except InvalidInput:
        return False


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value or b"")
