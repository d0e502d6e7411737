"""Whole answers kept on the shards, shared by all API processes: `answer:{t}:<digest>`.

A stored answer names the tokens by which the partitions watch its question (`watches`). It is valid only while each of
them still does, by that token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from qa_cluster.errors import QAError
from qa_cluster.keys import partition_of, whole_answer_key
from qa_cluster.routing.shards import Shards

from .watches import Watches

MAX_STORES = 256
STORE_TIMEOUT_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer from the cache: the JSON of its constant part, its age and how long it may still be used."""

    body: bytes
    age_seconds: float
    ttl_seconds: float
    answerable: bool


class AnswerCache:
    """Reads and writes whole answers; a cache that fails is a miss, never an error."""

    def __init__(self, shards: Shards, watches: Watches, partitions: int, ttl_seconds: int) -> None:
        self._shards = shards
        self.watches = watches
        self._partitions = partitions
        self.ttl_seconds = ttl_seconds
        self._stores: set[asyncio.Task[None]] = set()

    def set_partitions(self, partitions: int) -> None:
        """The cluster has so many partitions from now on."""
        self._partitions = self.watches.partitions = partitions

    async def get(self, digest: str) -> StoredAnswer | None:
        """The answer of that name, if nothing has happened since that may change it."""
        key = self._key(digest)
        try:
            raw, tokens = await asyncio.gather(self._shards.execute(key, "GET", key), self.watches.tokens(digest))
        except QAError as error:
            _log.warning("answer cache cannot be read: %s", error)
            return None
        if not isinstance(raw, bytes) or tokens is None:
            return None
        try:
            stored = orjson.loads(raw)
            made, ttl, of, answer = stored["made"], stored["ttl"], stored["watched"], stored["answer"]
            answerable = answer["answerable"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        age = max(0.0, time.time() - made)
        if of != tokens or age >= ttl:
            return None
        return StoredAnswer(orjson.dumps(answer), age, ttl - age, bool(answerable))

    def put(self, digest: str, body: bytes, tokens: Mapping[str, int]) -> None:
        """Store an answer in the background; drop it when `MAX_STORES` stores are under way already."""
        if len(self._stores) >= MAX_STORES:
            return
        value = {
            "made": round(time.time(), 3),
            "ttl": self.ttl_seconds,
            "watched": tokens,
            "answer": orjson.Fragment(body),
        }
        task = asyncio.create_task(self._put(self._key(digest), orjson.dumps(value)))
        self._stores.add(task)
        task.add_done_callback(self._stores.discard)

    async def _put(self, key: str, value: bytes) -> None:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                await self._shards.execute(key, "SET", key, value, "EX", self.ttl_seconds)
        except (QAError, TimeoutError) as error:
            _log.warning("answer cache cannot be written: %s", error or "no answer in time")

    async def aclose(self) -> None:
        """Wait for the stores under way; each has a deadline."""
        if self._stores:
            await asyncio.wait(self._stores)

    def _key(self, digest: str) -> str:
        return whole_answer_key(partition_of(digest, self._partitions), digest)
