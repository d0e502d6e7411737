"""Pre-tokenizes, in bulk, all sentences that are stored on the shards, and shows its progress.

A script runs it: ``from qa_cluster.gears.functions.indexing.pretokenize import run; run()``. Each shard works on its
own sentences and keeps the hash `progress:{h}` up to date: ``shard``, ``state`` (running, done), ``done`` and ``total``
(documents), ``sentences``, ``tokenized``, ``failed``, ``started`` and ``updated`` (seconds since 1970).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from qa_cluster.errors import ModelError, QAError
from qa_cluster.gears.functions.indexing import batches, scanning, tokenize
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.shard import locks
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import DOCUMENT_PREFIX, document_key, parse_tagged, progress_key

SHOW_SECONDS = 0.25
CONCURRENCY = 2


def run(*, force: bool = False, collection: str = "") -> None:
    """Pre-tokenize on all shards; the result of each is a JSON object with its final progress.

    Without ``force``, it skips documents that the current reader's tokenizer has already tokenized. With a
    ``collection``, it takes the documents of that one only.
    """
    rg.GearsBuilder("ShardsIDReader").map(partial(_on_shard, force=force, collection=collection)).run(
        convertToStr=False
    )


def start(*, force: bool = False, collection: str = "") -> None:
    """The same in the background: it returns at once, and `progress:{h}` shows the progress."""
    rg.GearsBuilder("ShardsIDReader").map(partial(_start_on_shard, force=force, collection=collection)).run(
        convertToStr=False
    )


@dataclass
class _Background:
    """The pre-tokenizations in the background; asyncio may drop a task to which nothing refers."""

    tasks: set[asyncio.Task[str]] = field(default_factory=set)


async def _start_on_shard(shard_id: str, *, force: bool, collection: str) -> str:
    task = asyncio.get_running_loop().create_task(_on_shard(shard_id, force=force, collection=collection))
    tasks = state.of(_Background).tasks
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return str(shard_id)


async def _on_shard(shard_id: str, *, force: bool, collection: str) -> str:
    async with locks.held("pretokenize"):
        if loaded.if_loaded() is None:
            raise ModelError(f"shard {shard_id} has no reader: load a model first")
        keys = scanning.scan(DOCUMENT_PREFIX + "*")
        documents = [
            found
            for key in keys
            if (found := parse_tagged(key, DOCUMENT_PREFIX)) and collection in ("", found[0].collection)
        ]
        progress = _Progress(shard_id, len(documents))
        queue = iter(documents)
        await asyncio.gather(*(_work(queue, progress, force=force) for _ in range(CONCURRENCY)))
        return progress.finish()


async def _work(queue: Any, progress: _Progress, *, force: bool) -> None:
    for document_id, tag in queue:
        try:
            await batches.index(document_id, tag)
            status = await tokenize.tokenize(document_id, tag, force=force)
            sentences = int(rg.execute("HGET", document_key(document_id, tag), "sentences") or 0)
        except (QAError, rg.error) as error:
            rg.log(f"pretokenize: document {document_id[:100]!r}: {error}", "warning")
            status, sentences = "failed", 0
        progress.add(status, sentences)


class _Progress:
    """The counts of one shard; they are written to its key a few times a second."""

    def __init__(self, shard_id: str, total: int) -> None:
        self._key = progress_key(rg.hashtag())
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
        rg.execute("HSET", self._key, *(part for pair in self._values.items() for part in pair))
