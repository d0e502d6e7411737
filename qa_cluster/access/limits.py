"""Counts the use of API keys in the cluster, so that all services share one count.

The use of a key is stored on one shard, under the key's id. Each count is one script and therefore one step. While this
shard is unavailable, each service counts requests on its own: the limits protect the cluster from load, and must not
block the other shards. A service does not know the sentences that other services have counted, so it then refuses
writes with a daily limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from itertools import count
from math import ceil
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, DeadlineExceeded, QAError, ReplyError
from qa_cluster.keys import api_running_key, api_use_key
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.scripts.calls import ScriptCall

from .records import ApiKey

COUNT_SECONDS = 1.0
REQUESTS, CONCURRENT, SENTENCES = "requests", "concurrent", "sentences"
DAY_SECONDS = 86_400

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit and what is left of it, until the window resets; a window of 0 s: the limit of concurrent requests."""

    name: str
    limit: int
    left: int
    reset_seconds: int = 0
    window_seconds: int = 0


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """A counted request, or one that the limit `refused` refuses; `member` is its name while it is in flight."""

    counts: tuple[LimitState, ...]
    refused: str = ""
    retry_after_seconds: int = 0
    member: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True)
class ReservedSentences:
    """Sentences that were counted before they are written; `refused` if the limit of the day is reached."""

    sentences: int
    day: int
    count: LimitState
    refused: bool


class KeyUse:
    """Counts for one process. A request counts for at most `lease_seconds`, which is longer than any request takes."""

    def __init__(self, shards: Shards, lease_seconds: float) -> None:
        self._shards = shards
        self._lease_ms = ceil(lease_seconds * 1000)
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self._here: dict[str, _LocalCounts] = {}

    async def begin(self, key: ApiKey) -> CountedRequest:
        """Count a request that starts; a refused request does not count. Call `end` after it."""
        limits = key.limits
        rate, most = limits.requests_per_second or 0, limits.concurrent or 0
        member = f"{self._prefix}-{next(self._numbers)}"
        names = (api_use_key(key.id), api_running_key(key.id))
        try:
            self._shards.readiness.check([self._shards.shard_of_key(names[0]).address])
            reply = await self._run(ScriptCall("begin_api_use", names, (rate, most, member, self._lease_ms)))
        except QAError as error:
            here = True
            if key.id not in self._here:
                _log.warning("this service counts the requests of key %s on its own now: %s", key.id, error)
            reply = self._here.setdefault(key.id, _LocalCounts()).begin(rate, most)
        else:
            here = False
            self._here.pop(key.id, None)
        refused, left, wait, room = reply
        seconds = max(1, ceil(wait / 1e6))
        counts = []
        if rate:
            counts.append(LimitState(REQUESTS, rate, left, seconds, 1))
        if most:
            counts.append(LimitState(CONCURRENT, most, room))
        return CountedRequest(tuple(counts), ("", REQUESTS, CONCURRENT)[refused], seconds, member if most else "", here)

    async def end(self, key: ApiKey, use: CountedRequest) -> None:
        """End a counted request. If the shard is not reached, the request counts until its lease ends."""
        if not use.member or use.refused:
            return
        if use.here:
            if (here := self._here.get(key.id)) is not None:
                here.running = max(0, here.running - 1)
            return
        name = api_running_key(key.id)
        try:
            self._shards.readiness.check([self._shards.shard_of_key(name).address])
            async with asyncio.timeout(COUNT_SECONDS):
                await self._shards.execute_once(name, "ZREM", name, use.member)
        except (QAError, ReplyError, ConnectionLost, TimeoutError):
            return

    async def reserve(self, key: ApiKey, sentences: int) -> ReservedSentences:
        """Count sentences before they are written: all, or none if the limit of the day was reached before.

        Raises:
            ClusterError: they cannot be counted.
        """
        limit = key.limits.sentences_per_day or 0
        try:
            allowed, day, used, rest = await self._run(
                ScriptCall("count_sentences", (api_use_key(key.id),), (limit, sentences, ""))
            )
        except QAError as error:
            raise ClusterError(
                f"the sentences of key {key.id} cannot be counted, so nothing is written: {error}"
            ) from error
        count = LimitState(SENTENCES, limit, max(0, limit - used), rest, DAY_SECONDS)
        return ReservedSentences(sentences, day, count, not allowed)

    async def settle(self, key: ApiKey, reserved: ReservedSentences, written: int) -> None:
        """Correct the count to the number of sentences that were written."""
        more = written - reserved.sentences
        if more:
            try:
                await self._run(ScriptCall("count_sentences", (api_use_key(key.id),), (0, more, reserved.day)))
            except QAError:
                return  # the earlier count is at least as high

    async def _run(self, call: ScriptCall) -> Any:
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._shards.run(call, COUNT_SECONDS)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the shard that counts did not respond in {COUNT_SECONDS:g} s") from error


class _LocalCounts:
    """The counts of this process while the shard is unavailable; it counts as `begin_api_use.lua` does."""

    def __init__(self) -> None:
        self.running = 0
        self._paced = 0.0

    def begin(self, rate: int, most: int) -> tuple[int, int, int, int]:
        """Return the reply of the script."""
        if most and self.running >= most:
            return 2, 0, 1_000_000, 0
        left, full = 0, 0.0
        if rate:
            now = monotonic() * 1e6
            paced = max(now, self._paced) + 1e6 / rate
            full = paced - now
            if full > 1e6 + 0.5:
                return 1, 0, ceil(full - 1e6), max(most - self.running, 0)
            left = int((1e6 - full) * rate / 1e6 + 0.001)
            self._paced = paced
        self.running += bool(most)
        return 0, left, ceil(full), max(most - self.running, 0)
