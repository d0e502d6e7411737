"""Embeds all documents of this shard that lack vectors, in the background.

The work starts after documents were indexed, after an encoder or a partition has arrived, and every `CHECK_SECONDS`.
The index of each collection lists the documents without complete vectors of the encoder (``QA.INDEX.UNEMBEDDED``). So
no other state is needed: after a restart, a failover or a migration, the owner of the partition continues. After a
change of the encoder, no document has vectors with the new digest, so all documents are embedded again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.readers.encoder import ShardEncoder
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import is_redirect
from qa_cluster.gears.shard.commands import as_bytes
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import DEFAULT_COLLECTION, DocumentName, collection_prefix, collections_key, index_key
from qa_cluster.shard_functions import EMBEDDING_SETTING

from .document_vectors import DocumentVectors
from .passages import Name
from .quarantine import Quarantine

CHECK_SECONDS = 30.0
# The delay of the task after a wake-up, so that documents that are indexed at about the same time share runs of the
# encoder.
SETTLE_SECONDS = 0.1
DOCUMENTS_PER_STEP = 64
COUNT_SECONDS = 2.0

OnEmbedded = Callable[[int, Mapping[Name, QAError]], None]


class BackgroundEmbedding:
    """The background task, and the number of documents without vectors.

    Attributes:
        waiting: the number of documents of this shard without vectors of its encoder, at the last count. Any thread may
            read it.
    """

    def __init__(self, shard: ShardContext, readers: ShardReaders, vectors: DocumentVectors) -> None:
        self._commands = shard.commands
        self._partitions = shard.partitions
        self._locks = shard.locks
        self._readers = readers
        self._vectors = vectors
        self._quarantine = Quarantine(shard.commands)
        self._is_on = shard.commands.setting(EMBEDDING_SETTING) != "0"
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._counted_at = -COUNT_SECONDS
        self._last_error = ""
        self.waiting = 0

    def wake(self) -> None:
        """Make the task search for documents without vectors soon. The first call starts the task."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._wake.set()

    def indexed(self, names: Sequence[Name]) -> None:
        """Handle newly indexed documents: end their quarantine, count them as documents without vectors, and wake the
        task.
        """
        self._quarantine.forget(names)
        if self._readers.encoder() is not None:
            self.waiting += len(names)
        if self._task is not None:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await asyncio.sleep(SETTLE_SECONDS)
            try:
                # the heartbeat reports the count even if background embedding is off
                await (self.embed_all() if self._is_on else self._count())
                self._last_error = ""
            except Exception as error:  # no other code awaits this task, so it must log its errors and continue
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    self._commands.log(f"embedding: {error!r}", "warning")

    async def embed_all(self, collection: str = "", on_step: OnEmbedded = lambda documents, failed: None) -> None:
        """Embed all documents without vectors. Documents in quarantine are skipped.

        Without an encoder, no document is embedded. If the shard gets a different encoder meanwhile, the method wakes
        the background task and returns early. Raises GearsError after the work if an index could not be processed, but
        not if the slot of the index is migrating or on another shard.

        Args:
            collection: the collection whose documents are embedded; empty: all collections.
            on_step: called with the number of newly embedded documents, and with the errors of failed documents by
                document. In each call, either the number is 1 or there are failed documents.
        """
        encoder = self._readers.encoder()
        if encoder is None:
            self.waiting = 0
            return
        problem: GearsError | None = None
        for tag in await self._partitions.local_tags():
            for each in self._collections(tag) if not collection else (collection,):
                try:
                    async with self._locks.held(f"embed:{tag}:{each}"):
                        await self._embed_index(tag, each, encoder, on_step)
                except GearsError as error:
                    if not is_redirect(error):  # after a redirect, the new owner of the slot continues
                        problem = error  # a damaged index must not stop the other partitions
                if self._readers.encoder() is not encoder:
                    self._wake.set()
                    return
        await self._count()
        if problem is not None:
            raise problem

    async def _embed_index(self, tag: str, collection: str, encoder: ShardEncoder, on_step: OnEmbedded) -> None:
        key, cursor = index_key(tag, collection), "0"
        while self._readers.encoder() is encoder:
            listing = ("QA.INDEX.UNEMBEDDED", key, encoder.manifest.digest, cursor, DOCUMENTS_PER_STEP)
            cursor, found = self._commands.execute(*listing)
            names = [
                (DocumentName(collection_prefix(collection) + document), tag)
                for document in found
                if isinstance(document, str)
            ]
            if allowed := [name for name in names if self._quarantine.allows(name)]:
                if time.monotonic() - self._counted_at > COUNT_SECONDS:
                    await self._count()
                outcomes = await self._vectors.embed(allowed, encoder, partial(self._embedded, on_step))
                failed = {name: error for name, error in outcomes.items() if isinstance(error, QAError)}
                for name, error in failed.items():
                    self._quarantine.add(name, error)
                if failed:
                    on_step(0, failed)
            if str(cursor) == "0":
                return

    def _embedded(self, on_step: OnEmbedded, name: Name) -> None:
        self._quarantine.forget([name])
        self.waiting = max(0, self.waiting - 1)
        on_step(1, {})

    async def count(self, collection: str = "") -> int:
        """Return the number of documents without vectors of the shard's encoder. Return 0 if there is no encoder.

        With a `collection`, count only the documents of this collection; if it is empty, count all documents.
        """
        encoder = self._readers.encoder()
        if encoder is None:
            return 0
        keys = [
            index_key(tag, each)
            for tag in await self._partitions.local_tags()
            for each in (self._collections(tag) if not collection else (collection,))
        ]
        replies = self._commands.execute_many([("QA.INDEX.INFO", key) for key in keys], keep_errors=True)
        return sum(lacking_vectors(reply, encoder.manifest.digest) for reply in replies)

    async def _count(self) -> None:
        self._counted_at = time.monotonic()
        self.waiting = await self.count()

    def _collections(self, tag: str) -> list[str]:
        """Return the names of a partition's collections, first the default collection.

        If the list of collections cannot be read, return only the default collection.
        """
        try:
            found = self._commands.execute("HKEYS", collections_key(tag))
        except GearsError:  # the slot is migrating, or a client has replaced the list
            found = []
        return [DEFAULT_COLLECTION, *(name for name in found if isinstance(name, str))]


def lacking_vectors(reply: object, digest: bytes) -> int:
    """Return the number of documents without complete vectors of an encoder, from the reply to ``QA.INDEX.INFO``."""
    if not isinstance(reply, list):  # the index is missing, or on another shard
        return 0
    facts = dict(zip(reply[::2], reply[1::2], strict=False))
    embedded = 0
    for encoder in facts.get("vectors", ()):
        of_encoder = dict(zip(encoder[::2], encoder[1::2], strict=False))
        if as_bytes(of_encoder.get("digest")) == digest:
            embedded = int(of_encoder["documents"])
    return max(0, int(facts["filled_documents"]) - embedded)
