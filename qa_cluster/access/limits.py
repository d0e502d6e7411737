"""Counts the use of API keys in the cluster, so that all services share one count.

The use of a key is stored on one shard, under the key's id. Each change of a count is one atomic script. While this
shard is unavailable:

- Each service counts requests on its own. The limits of requests only protect the cluster from load, so an unavailable
  shard must not block requests that the other shards can answer.
- A service refuses the writes of a key with a daily limit, because it does not know how many sentences other services
  have counted.
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
    """The state of a limit. The limit holds for a window, such as a second or a day.

    Attributes:
        name: `REQUESTS`, `CONCURRENT` or `SENTENCES`.
        left: how much of the limit is left in this window.
        reset_seconds: for a limit per day, the time until the day ends. For a limit per second, the time until `limit`
            requests may start at once; after a refusal, the time until one request may start. 0 for the limit of
            concurrent requests.
        window_seconds: the length of the window; 0 for the limit of concurrent requests.
    """

    name: str
    limit: int
    left: int
    reset_seconds: int = 0
    window_seconds: int = 0


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """The outcome of counting a request.

    Attributes:
        counts: the state of each limit of the key.
        refused: the name of the limit that refuses the request; empty if the request is allowed.
        retry_after_seconds: the time after which the client may retry a refused request; without meaning if the request
            is allowed.
        member: identifies the request while it is in flight; empty if the key has no limit of concurrent requests.
        here: whether only this process counted the request.
    """

    counts: tuple[LimitState, ...]
    refused: str = ""
    retry_after_seconds: int = 0
    member: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True)
class ReservedSentences:
    """Sentences that were counted before they are written.

    Attributes:
        sentences: the number of sentences to count.
        day: the day (UTC) for which the sentences count, in days since 1970.
        count: the state of the daily limit after the sentences were counted.
        refused: whether the key had already reached its daily limit, so that no sentence was counted.
    """

    sentences: int
    day: int
    count: LimitState
    refused: bool


class KeyUse:
    """Counts the use of keys for one process. The entry of a request in flight expires after `lease_seconds`.

    `lease_seconds` must exceed the longest duration of a request.
    """

    def __init__(self, shards: Shards, lease_seconds: float) -> None:
        self._shards = shards
        self._lease_ms = ceil(lease_seconds * 1000)
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self._here: dict[str, _LocalCounts] = {}

    async def begin(self, key: ApiKey) -> CountedRequest:
        """Count a request that starts; a refused request does not count. Call `end` when the request ends."""
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
        """End a counted request. If the shard cannot be reached, the request counts until its lease expires."""
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
        """Count sentences before they are written. If the key has already reached its daily limit, count none.

        Raises:
            ClusterError: the shard cannot count them.
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
        """Correct the key's count for the day of the reservation to the number of sentences that were written.

        The count of a day that has ended is not corrected.
        """
        more = written - reserved.sentences
        if more:
            try:
                await self._run(ScriptCall("count_sentences", (api_use_key(key.id),), (0, more, reserved.day)))
            except QAError:
                return  # the reserved number then counts; it is an upper bound

    async def _run(self, call: ScriptCall) -> Any:
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._shards.run(call, COUNT_SECONDS)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the shard that counts did not respond in {COUNT_SECONDS:g} s") from error


class _LocalCounts:
    """The counts of this process while the shard is unavailable, by the same rules as `begin_api_use.lua`."""

    def __init__(self) -> None:
        self.running = 0
        self._paced = 0.0

    def begin(self, rate: int, most: int) -> tuple[int, int, int, int]:
        """Count a request and return the same reply as the script.

        `rate` is the limit of requests per second, and `most` is the limit of concurrent requests. 0 means no limit.
        """
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
