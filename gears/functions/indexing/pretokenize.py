"""Pre-tokenizes all sentences that are stored on this shard, and shows the progress.

A script starts it on all shards (`gears/scripts/own_functions.py`). Each shard works on its own sentences and
keeps the hash `progress:{h}` up to date: ``shard``, ``state`` (running, done), ``done`` and ``total`` (documents),
``sentences``, ``tokenized``, ``failed``, ``started`` and ``updated`` (seconds since 1970).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import orjson

from qa_cluster.errors import ModelError, QAError
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import DOCUMENT_PREFIX, document_key, parse_tagged, progress_key

from .batches import Indexer
from .scanning import scan
from .tokenize import SentenceTokens

SHOW_SECONDS = 0.25
CONCURRENCY = 2


class Pretokenization:
    """The running pre-tokenizations of this shard. It refers to their tasks, because asyncio may drop other tasks."""

    def __init__(self, shard: ShardContext, readers: ShardReaders, indexer: Indexer, tokens: SentenceTokens) -> None:
        self._commands = shard.commands
        self._locks = shard.locks
        self._readers = readers
        self._indexer = indexer
        self._tokens = tokens
        self._tasks: set[asyncio.Task[str]] = set()

    async def start(self, shard_id: str, *, force: bool, collection: str) -> str:
        """`run` in the background: it returns the shard's id at once, and `progress:{h}` shows the progress."""
        task = asyncio.get_running_loop().create_task(self.run(shard_id, force=force, collection=collection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return str(shard_id)

    async def run(self, shard_id: str, *, force: bool, collection: str) -> str:
        """Pre-tokenize; return the final progress as JSON.

        Without `force`, documents that the current reader's tokenizer has already tokenized are skipped. With a
        `collection`, other collections are left out.
        """
        async with self._locks.held("pretokenize"):
            if self._readers.if_loaded() is None:
                raise ModelError(f"shard {shard_id} has no reader: load a model first")
            documents = [
                found
                for key in scan(self._commands, DOCUMENT_PREFIX + "*")
                if (found := parse_tagged(key, DOCUMENT_PREFIX)) and collection in ("", found[0].collection)
            ]
            progress = _Progress(self._commands, shard_id, len(documents))
            queue = iter(documents)
            await asyncio.gather(*(self._work(queue, progress, force=force) for _ in range(CONCURRENCY)))
            return progress.finish()

    async def _work(self, queue: Iterator[tuple[str, str]], progress: _Progress, *, force: bool) -> None:
        for document_id, tag in queue:
            try:
                await self._indexer.index(document_id, tag)
                status = await self._tokens.tokenize(document_id, tag, force=force)
                sentences = int(self._commands.execute("HGET", document_key(document_id, tag), "sentences") or 0)
            except (QAError, GearsError) as error:
                self._commands.log(f"pretokenize: document {document_id[:100]!r}: {error}", "warning")
                status, sentences = "failed", 0
            progress.add(status, sentences)


class _Progress:
    """The counts of one shard, written to its key a few times a second."""

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
            "started": round(time.time(), 3),
        }
        self._show()

    def add(self, status: str, sentences: int) -> None:
        """Count one finished document."""
        self._values["done"] += 1
        self._values["failed"] += status == "failed"
        if status == "tokenized":
            self._values["tokenized"] += 1
            self._values["sentences"] += sentences
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show()

    def finish(self) -> str:
        """Write the final progress and return it as JSON."""
        self._values["state"] = "done"
        self._show()
        return orjson.dumps(self._values).decode()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._values["updated"] = round(time.time(), 3)
        self._commands.execute("HSET", self._key, *(part for pair in self._values.items() for part in pair))
