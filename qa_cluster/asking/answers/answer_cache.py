"""The answer cache: whole answers on the shards, shared by all processes, under the keys `answer:{t}:<digest>`.

The indexes watch the questions of cached answers. A partition stops watching a question at the first write that may
change its answer (``docs/inverted-index.md``). When a partition starts to watch a question, it returns a token. A
cached answer contains these tokens. The answer is valid only while every partition still watches the question under the
same token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.documents.stored import store_whole_answer
from qa_cluster.errors import QAError
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    Partitioning,
    index_key,
    whole_answer_key,
)
from qa_cluster.off_loop import off_loop
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.ranking.filters import Filter
from qa_cluster.ranking.ranker import Command
from qa_cluster.ranking.watching import watch_commands
from qa_cluster.routing.shards import Shards
from qa_cluster.scripts.calls import ModuleCall

MAX_STORES = 256
STORE_TIMEOUT_SECONDS = 2.0
# Partitions watch a question this much longer than its answer is cached, because the watch starts before the answer is
# stored.
SLACK_SECONDS = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer from the cache.

    Attributes:
        body: the part of the answer that is the same for all requests (`answer_body`), as JSON.
        ttl_seconds: the time until the answer expires.
        shards: the names of the shards that hold the documents that the answer shows.
    """

    body: bytes
    age_seconds: float
    ttl_seconds: float
    answerable: bool
    shards: frozenset[str]


def _parse(raw: bytes, tokens: Mapping[str, int]) -> StoredAnswer | None:
    """Parse a stored answer.

    The result is None if the answer has expired or is damaged, or if its tokens differ from the current `tokens`.
    """
    try:
        stored = orjson.loads(raw)
        made, ttl, of, answer = stored["made"], stored["ttl"], stored["watched"], stored["answer"]
        answerable = answer["answerable"]
        shown = answer.get("answers", ())
        shards = frozenset(place["shard"] for each in shown for place in (each, *each.get("also_in", ())))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    age = max(0.0, time.time() - made)
    if of != tokens or age >= ttl:
        return None
    return StoredAnswer(orjson.dumps(answer), age, ttl - age, bool(answerable), shards)


class Watches:
    """Manages the watched questions of one cluster. If a question cannot be watched, its answer is not cached.

    Args:
        ttl_seconds: how long answers are cached.
        drift: the relative change of a term's weight that a cached answer tolerates (`watch_commands`).
    """

    def __init__(self, shards: Shards, partitions: Partitioning, ttl_seconds: int, drift: float) -> None:
        self._shards = shards
        self._partitions = partitions
        self._ttl_ms = (ttl_seconds + SLACK_SECONDS) * 1000
        self._drift = drift
        self._complaint = ""

    async def watch(
        self,
        digest: str,
        ranking: Ranking,
        asked: int,
        chosen: Filter | None = None,
        collection: str = DEFAULT_COLLECTION,
    ) -> Mapping[str, int] | None:
        """Let all partitions watch a question.

        Return the token of each partition, by the partition's tag; None if the answer must not be cached.

        Args:
            ranking: the ranking on which the answer is based.
            digest: the name of the answer.
            asked, chosen, collection: see `watch_commands`.
        """
        commands = watch_commands(
            ranking, asked, chosen, collection, name=digest, ttl_ms=self._ttl_ms, drift=self._drift
        )
        return await self._tokens(commands) if commands.keys() == set(self._partitions.tags) else None

    async def tokens(self, digest: str, collection: str = DEFAULT_COLLECTION) -> Mapping[str, int] | None:
        """Return the tokens under which the partitions watch the question with this digest, by the partitions' tags.

        The result is None if a partition does not watch the question, or if a shard does not reply.
        """
        tags = self._partitions.tags
        return await self._tokens({tag: ("QA.INDEX.WATCHED", index_key(tag, collection), digest) for tag in tags})

    async def _tokens(self, commands: Mapping[str, Command]) -> Mapping[str, int] | None:
        try:
            replies: list[Any] = await self._shards.execute_many(
                [(index_key(tag), command) for tag, command in commands.items()]
            )
        except QAError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("answers are not cached: %s", error)
            return None
        self._complaint = ""
        return dict(zip(commands, replies, strict=True)) if all(replies) else None


class AnswerCache:
    """Reads and writes whole answers. If the cache fails, `get` returns None, and `put` raises no error."""

    def __init__(self, shards: Shards, watches: Watches, partitions: Partitioning, ttl_seconds: int) -> None:
        self._shards = shards
        self.watches = watches
        self._partitions = partitions
        self.ttl_seconds = ttl_seconds
        self._stores: set[asyncio.Task[None]] = set()

    async def get(self, digest: str, collection: str = DEFAULT_COLLECTION) -> StoredAnswer | None:
        """Return the answer with this name.

        The result is None if the answer is missing, if it has expired, or if a later write may have changed it.
        """
        key = whole_answer_key(self._partitions.tag_of(digest), digest, collection)
        try:
            raw, tokens = await asyncio.gather(
                self._shards.execute(key, "GET", key), self.watches.tokens(digest, collection)
            )
        except QAError as error:
            _log.warning("the answer cache cannot be read: %s", error)
            return None
        if not isinstance(raw, bytes) or tokens is None:
            return None
        return await off_loop(len(raw), _parse, raw, tokens)

    def put(self, digest: str, body: bytes, tokens: Mapping[str, int], collection: str = DEFAULT_COLLECTION) -> None:
        """Store an answer in the background. If `MAX_STORES` writes are in flight, do nothing.

        `body` is the part of the answer that is the same for all requests (`answer_body`), as JSON. `tokens` are the
        tokens that `Watches.watch` returned for the question.
        """
        if len(self._stores) >= MAX_STORES:
            return
        value = {
            "made": round(time.time(), 3),
            "ttl": self.ttl_seconds,
            "watched": tokens,
            "answer": orjson.Fragment(body),
        }
        tag = self._partitions.tag_of(digest)
        key = whole_answer_key(tag, digest, collection)
        call = store_whole_answer(key, orjson.dumps(value), self.ttl_seconds)
        task = asyncio.create_task(self._put(call))
        self._stores.add(task)
        task.add_done_callback(self._stores.discard)

    async def _put(self, call: ModuleCall) -> None:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                await self._shards.run(call)
        except (QAError, TimeoutError) as error:
            _log.warning("the answer cache cannot be written: %s", error or "timeout")

    async def aclose(self) -> None:
        """Wait for the writes in flight; each has a timeout."""
        if self._stores:
            await asyncio.wait(self._stores)
