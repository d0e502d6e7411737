"""Stores the tokens of documents, and deletes outdated answers for sentences that clients store without a document.

A sentence without stored tokens is tokenized at its first read. This takes 0.1 ms, while the model takes some
milliseconds. Stored tokens take 130 bytes a sentence. So only `qa-cluster prepare` stores tokens.
"""

from __future__ import annotations

import asyncio
from typing import Any

from qa_cluster.documents.stored import BLOCK_SENTENCES, DocumentRecord, loose_sentences, parse_record, read_record
from qa_cluster.documents.stored import store_tokens as store_call
from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.commands import as_bytes
from qa_cluster.keys import SENTENCE_PREFIX, parse_tagged, tokens_key
from qa_cluster.reading.tokenization import pack_tokens, unpack_tokens

from .document_sentences import read_sentences
from .postponed import PostponedWork

# The maximum number of concurrent documents. It is low because questions use the same processor.
MAX_CONCURRENT = 2
# The number of blocks of tokens in one command. A block has the tokens of `BLOCK_SENTENCES` sentences. The command has
# about 30 kB, and blocks the shard for a fraction of a millisecond.
STEP_BLOCKS = 4


class SentenceTokens:
    """Stores the tokens of documents, and handles sentences that clients store without a document."""

    def __init__(self, shard: ShardContext, readers: ShardReaders, postponed: PostponedWork) -> None:
        self._commands = shard.commands
        self._locks = shard.locks
        self._readers = readers
        self._postponed = postponed
        self._turn = asyncio.Semaphore(MAX_CONCURRENT)

    async def on_sentences(self, key: Any) -> None:
        """Handle the event of a key with sentences that a client has written or removed: delete outdated answers."""
        found = parse_tagged(key, SENTENCE_PREFIX) if isinstance(key, str) else None
        if found is not None:
            await self._postponed.unless_migrating(found[1], self.forget_answers(*found))

    async def forget_answers(self, document_id: str, tag: str) -> bool:
        """Delete the answers of changed sentences without a document.

        Return whether the sentences have no document. If they belong to a document, delete nothing.
        """
        return bool(await asyncio.to_thread(self._commands.run_script, loose_sentences(document_id, tag)))

    async def tokenize(self, document_id: str, tag: str, *, force: bool = False) -> str:
        """Store a document's tokens, if they are not stored yet. With `force`, store them even if they are stored.

        Returns:
            ``tokenized``, ``current`` (the tokens were already stored), ``stale`` (the document is changing or not
                indexed) or ``waiting`` (no reader is loaded).
        """
        async with self._locks.held(f"tokenize:{tag}:{document_id}"), self._turn:
            reader = self._readers.if_loaded()
            if reader is None:
                return "waiting"
            return await asyncio.to_thread(self._tokenize, document_id, tag, reader, force)

    def _tokenize(self, document_id: str, tag: str, reader: Reader, force: bool) -> str:
        name = (document_id, tag)
        reply, count, first = self._commands.execute_many(
            [read_record(*name), ("HLEN", tokens_key(*name)), ("HGET", tokens_key(*name), 0)]
        )
        record = parse_record(reply)
        if record is None or not record.tokenized or not record.analyzer:
            return "stale"
        blocks = -(-(record.sentences or 0) // BLOCK_SENTENCES)
        # The last block is stored first. So if the first block exists, all blocks exist.
        if count == blocks and not force and (not blocks or _is_of(reader, first)):
            return "current"
        return self._store(document_id, tag, record, blocks, reader)

    def _store(self, document_id: str, tag: str, record: DocumentRecord, blocks: int, reader: Reader) -> str:
        document = read_sentences(self._commands, (document_id, tag))
        if document is None or document.record.version != record.version:
            return "stale"
        found = document.sentences
        for end in range(blocks, 0, -STEP_BLOCKS):
            made: dict[int, bytes] = {}
            for block in range(end - 1, max(end - STEP_BLOCKS, 0) - 1, -1):
                sentences = found[block * BLOCK_SENTENCES : (block + 1) * BLOCK_SENTENCES]
                tokens = reader.tokenizer.encode_texts([sentence.text for sentence in sentences])
                made[block] = pack_tokens(tokens, reader.tokenizer.fingerprint)
            call = store_call(document_id, tag, record.version, record.splitter, made)
            if self._commands.run_script(call)[0] != "stored":
                return "stale"
        return "tokenized"


def _is_of(reader: Reader, block: Any) -> bool:
    try:
        return block is not None and unpack_tokens(as_bytes(block), reader.tokenizer.fingerprint) is not None
    except InvalidInput:
        return False
