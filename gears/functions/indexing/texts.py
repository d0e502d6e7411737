"""Handles the events of texts: indexes a document, or forwards a text under an untagged key to its partition.

An *untagged* key is `paragraphs:<document>`, without the tag of a partition. A stock client can write such a key.
"""

from __future__ import annotations

import asyncio
from typing import Any

from qa_cluster.documents.stored import check_document_id
from qa_cluster.errors import ClusterError, InvalidInput, QAError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import (
    COLLECTION_END,
    PARAGRAPHS_PREFIX,
    is_collection,
    paragraphs_key,
    parse_tagged,
    partition_of,
    slot,
)

from .batches import Indexer
from .postponed import PostponedWork

WRITE_REQUEST = "qa.text"
READ_REQUEST = "qa.untagged"
ANSWER_SECONDS = 5.0
MAX_ATTEMPTS = 5
MAX_FORWARDING = 16
# The time that an event handler waits for its document. After this time, the document stays pending, and the next event
# is handled.
EVENT_SECONDS = 5.0


class TextEvents:
    """Handles the events of texts. At most `MAX_FORWARDING` texts are forwarded at once."""

    def __init__(self, shard: ShardContext, indexer: Indexer, postponed: PostponedWork) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._locks = shard.locks
        self._partitions = shard.partitions
        self._indexer = indexer
        self._postponed = postponed
        self._forwarding = asyncio.Semaphore(MAX_FORWARDING)
        shard.commands.answer(WRITE_REQUEST, lambda _, body: self._write(*body))
        shard.commands.answer(READ_REQUEST, lambda _, key: self._read_here(key))

    async def on_text(self, key: Any) -> None:
        """Handle a text that was written or removed, under a document's key or an untagged key."""
        if not isinstance(key, str) or len(key) == len(PARAGRAPHS_PREFIX):
            return
        found = parse_tagged(key, PARAGRAPHS_PREFIX)
        if found is None:
            check_forwardable(key)
            await self.forward(key)
        else:
            await self._postponed.unless_migrating(found[1], self._index(*found))

    async def _index(self, document_id: str, tag: str) -> None:
        """Index a changed document.

        If too many documents are pending, postpone the indexing. After `EVENT_SECONDS`, return and leave the document
        pending.
        """
        if self._indexer.is_full():
            self._postponed.add(tag)
            return
        future = self._indexer.start(document_id, tag)
        done, _ = await asyncio.wait({future}, timeout=EVENT_SECONDS)
        if not done:
            future.add_done_callback(lambda done_later: self._log_failure(tag, done_later))
            return
        future.result()

    def _log_failure(self, tag: str, future: asyncio.Future[str]) -> None:
        error = future.exception()
        if error is not None and not self._postponed.if_migrating(tag, error):
            self._commands.log(f"index: {error}", "warning")

    async def forward(self, key: str, *, only_new: bool = False) -> None:
        """Send the text of an untagged key, or its removal, to the partition of its document.

        With `only_new`, an existing document does not change, because it is unknown which text is newer.
        """
        problem: Exception = ClusterError("the slot of the key has no owner")
        # For each key, forward one text at a time, so that an older text cannot arrive after a newer text.
        async with self._forwarding, self._locks.held(f"forward:{key}"):
            for _ in range(MAX_ATTEMPTS):
                try:
                    await self._forward(key, only_new)
                    return
                except (QAError, GearsError) as error:
                    problem = error
                    self._slots.forget()
        raise InvalidInput(f"key {key[:100]!r} could not be forwarded to its partition: {problem}")

    async def _forward(self, key: str, only_new: bool) -> None:
        text = await self._read_untagged(key)
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"text under {key[:100]!r} is not valid UTF-8: no question is answered from it")
        document_id = check_document_id(key[len(PARAGRAPHS_PREFIX) :])
        known = await self._partitions.count()
        if known is None:
            raise InvalidInput(f"key {key[:100]!r} has no partition: set the number of partitions first")
        tag = partition_of(document_id, known)
        body = (paragraphs_key(document_id, tag), text, only_new)
        owner = self._slots.current().owner(slot(tag))
        if owner is None:
            self._write(*body)
        else:
            # Do not resend this message, because it could overwrite a newer text. The next attempt reads the text
            # again.
            await self._commands.ask(owner, WRITE_REQUEST, body, ANSWER_SECONDS, ANSWER_SECONDS)

    async def _read_untagged(self, key: str) -> Any:
        """Return the text of an untagged key. If the key's slot has migrated, ask the current owner of the slot."""
        owner = self._slots.current().owner(slot(key))
        if owner is None:
            return self._read_here(key)
        return await self._commands.ask(owner, READ_REQUEST, key, ANSWER_SECONDS)

    def _read_here(self, key: str) -> Any:
        text = self._commands.execute("GET", key)
        return bytes(text) if isinstance(text, bytearray) else text

    def _write(self, key: str, text: str | None, only_new: bool) -> None:
        """Write a document's text under `key`, or remove the text if `text` is None.

        An equal text is not written again. With `only_new`, the method only writes, and only if the key does not exist.
        The keyspace event of a change starts the indexing.
        """
        if only_new:
            if text is not None:
                self._commands.execute("SET", key, text, "NX")
        elif text is None:
            self._commands.execute("DEL", key)
        elif self._commands.execute("GET", key) != text:
            self._commands.execute("SET", key, text)


def check_forwardable(key: str) -> None:
    """Raise InvalidInput for an untagged key that contains the name of a collection.

    The text would become a document of the default collection. A user with the right to write
    ``paragraphs:<collection>%/*`` must not write to another collection.
    """
    name, separator, _ = key[len(PARAGRAPHS_PREFIX) :].partition(COLLECTION_END)
    if separator and is_collection(name):
        raise InvalidInput(
            f"key {key[:100]!r} is not copied to a document: a text of a collection needs a key with the tag of its"
            f" partition, {PARAGRAPHS_PREFIX}{name}{COLLECTION_END}<document>:{{tag}}"
        )
