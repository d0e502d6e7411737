"""Stores the tokens and the vectors of all documents of this shard, and shows the progress.

This is called a *preparation*: `qa-cluster prepare` runs a script that starts it on all shards
(`gears/scripts/own_functions.py`). Each shard prepares its own documents: first the tokens of all, then the vectors.
Without `force`, each step skips documents that already have the result of the step. So after a worker was killed, a
second preparation continues the first. The progress is in the hash `progress:{h}`, where ``h`` is the hash tag of the
shard:

- ``shard``, and ``state`` (running, done);
- ``total``: the number of documents to prepare;
- ``done``: the number of documents whose tokens were stored, were already stored, or could not be stored;
- ``tokenized``: the number of documents whose tokens this preparation has stored so far;
- ``sentences``: the number of sentences of these documents;
- ``to_embed``: the number of documents that lacked vectors when the step of the vectors started; at the end, the number
  of documents that this preparation has embedded or has failed to embed;
- ``embedded``: the number of documents that have got vectors in this preparation so far;
- ``failed``: the number of documents whose tokens or vectors could not be stored;
- ``started`` and ``updated``: seconds since 1970;
- ``failures``: a JSON list of the first failed documents and the reasons.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from qa_cluster.errors import ModelError, QAError
from qa_cluster.gears.functions.indexing.batches import Indexer
from qa_cluster.gears.functions.indexing.scanning import scan
from qa_cluster.gears.functions.indexing.tokenize import SentenceTokens
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import DEFAULT_COLLECTION, DOCUMENT_PREFIX, document_key, document_name, parse_tagged, progress_key

from .background import BackgroundEmbedding
from .passages import Name

SHOW_SECONDS = 0.25
REGULAR_SECONDS = 2.0
CONCURRENCY = 2
# The maximum number of failed documents in the list. The count of failures has no limit.
MOST_NAMED = 20
MAX_REASON_CHARS = 300


class Preparation:
    """The running preparations of this shard.

    The object has references to their tasks, because asyncio may discard a task without references.
    """

    def __init__(
        self,
        shard: ShardContext,
        readers: ShardReaders,
        indexer: Indexer,
        tokens: SentenceTokens,
        embedding: BackgroundEmbedding,
    ) -> None:
        self._commands = shard.commands
        self._locks = shard.locks
        self._readers = readers
        self._indexer = indexer
        self._tokens = tokens
        self._embedding = embedding
        self._tasks: set[asyncio.Task[str]] = set()

    async def start(self, shard_id: str, *, force: bool, collection: str) -> str:
        """Start `run` in the background and return the shard's id at once. `progress:{h}` shows the progress."""
        task = asyncio.get_running_loop().create_task(self.run(shard_id, force=force, collection=collection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return str(shard_id)

    async def run(self, shard_id: str, *, force: bool, collection: str) -> str:
        """Store the missing tokens and vectors of all documents; return the final progress as JSON.

        With `force`, tokens that are already stored are computed and stored again. With a `collection`, documents of
        other collections are skipped. Without an encoder on the shard, no vectors are computed.

        Raises ModelError if the shard has no default reader.
        """
        async with self._locks.held("prepare"):
            if self._readers.if_loaded() is None:
                raise ModelError(f"shard {shard_id} has no reader: load a model first")
            documents = [
                found
                for key in scan(self._commands, DOCUMENT_PREFIX + "*")
                if (found := parse_tagged(key, DOCUMENT_PREFIX)) and collection in ("", found[0].collection)
            ]
            progress = _Progress(self._commands, shard_id, len(documents))
            queue = iter(documents)
            await asyncio.gather(*(self._tokenize(queue, progress, force=force) for _ in range(CONCURRENCY)))
            progress.expect(await self._embedding.count(collection))
            showing = asyncio.get_running_loop().create_task(progress.show_regularly())
            try:
                await self._embedding.embed_all(collection, progress.embedded)
            finally:
                showing.cancel()
            return progress.finish()

    async def _tokenize(self, queue: Iterator[tuple[str, str]], progress: _Progress, *, force: bool) -> None:
        for document_id, tag in queue:
            try:
                await self._indexer.index(document_id, tag)
                status = await self._tokens.tokenize(document_id, tag, force=force)
                record = document_key(document_id, tag)
                found = self._commands.execute("HMGET", record, "sentences", "version", "failed", "failure")
                sentences, version, failed, why = found
                if status == "stale" and failed is not None and failed == version:
                    progress.failed(document_id, str(why))
                    status = "failed"
            except (QAError, GearsError) as error:
                self._commands.log(f"prepare: document {document_id[:100]!r}: {error}", "warning")
                progress.failed(document_id, str(error))
                status, sentences = "failed", 0
            progress.tokenized(status, int(sentences or 0))


class _Progress:
    """The counts of one preparation. They are written to the shard's key `progress:{h}` a few times a second."""

    def __init__(self, shard: ShardCommands, shard_id: str, total: int) -> None:
        self._commands = shard
        self._key = progress_key(shard.hashtag())
        self._shown = 0.0
        self._values: dict[str, Any] = {
            "shard": shard_id,
            "state": "running",
            "done": 0,
            "total": total,
            "sentences": 0,
            "tokenized": 0,
            "failed": 0,
            "embedded": 0,
            "to_embed": 0,
            "failures": "[]",
            "started": round(time.time(), 3),
        }
        self._named: list[str] = []
        self._unembedded = 0
        self._show()

    def tokenized(self, status: str, sentences: int) -> None:
        """Count one document after its step of the tokens.

        `status` is the result of `SentenceTokens.tokenize`, or ``failed``. `sentences` is the number of sentences of
        the document.
        """
        self._values["done"] += 1
        self._values["failed"] += status == "failed"
        if status == "tokenized":
            self._values["tokenized"] += 1
            self._values["sentences"] += sentences
        self._show_often()

    def failed(self, name: str, why: str) -> None:
        """Add a document to the list of failures, unless the list already has `MOST_NAMED` documents."""
        if len(self._named) < MOST_NAMED:
            document = document_name(name)
            where = "" if document.collection == DEFAULT_COLLECTION else f"{document.collection}/"
            self._named.append(f"{where}{document.id}: {why}"[:MAX_REASON_CHARS])
            self._values["failures"] = orjson.dumps(self._named).decode()

    def expect(self, documents: int) -> None:
        """Set the number of documents that lack vectors."""
        self._values["to_embed"] = documents
        self._show()

    def embedded(self, documents: int, failed: Mapping[Name, QAError]) -> None:
        """Count documents in the step of the vectors.

        `documents` is the number of documents that have newly got vectors. `failed` has the errors of the documents
        that cannot get vectors, by document.
        """
        self._values["embedded"] += documents
        self._values["failed"] += len(failed)
        self._unembedded += len(failed)
        for (name, _), error in failed.items():
            self.failed(name, f"no vectors: {error}")
        self._show_often()

    async def show_regularly(self) -> None:
        """Update the key regularly, even during long steps, because a program that watches the progress expects
        updates.
        """
        while True:
            await asyncio.sleep(REGULAR_SECONDS)
            self._show()

    def finish(self) -> str:
        """Write the final progress and return it as JSON."""
        self._values["state"] = "done"
        # The background task may have embedded some of the documents that lacked vectors. `to_embed` no longer counts
        # these documents.
        self._values["to_embed"] = self._values["embedded"] + self._unembedded
        self._show()
        return orjson.dumps(self._values).decode()

    def _show_often(self) -> None:
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._values["updated"] = round(time.time(), 3)
        self._commands.execute("HSET", self._key, *(part for pair in self._values.items() for part in pair))
