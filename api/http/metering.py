"""The limits of API keys in HTTP: counts requests and sentences, and reports the limits in header fields.

The fields follow the IETF draft `draft-ietf-httpapi-ratelimit-headers`: `RateLimit-Policy` has the limits, `RateLimit`
has the remaining amounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from qa_cluster.access.limits import (
    CONCURRENT,
    REQUESTS,
    SENTENCES,
    CountedRequest,
    KeyUse,
    LimitState,
    ReservedSentences,
)
from qa_cluster.access.records import ApiKey
from qa_cluster.documents.sentence_limit import most_sentences

from .error_map import HttpProblem, RawHeaders
from .messages import Scope

# The sentences of a text with more characters than this are counted in a thread, so that the event loop is not blocked.
_LOOP_CHARS = 100_000
_UNITS = {CONCURRENT: ';qu="concurrent-requests"', SENTENCES: ';qu="sentences"'}
_WORDS = {
    REQUESTS: "{limit} requests per second",
    CONCURRENT: "{limit} concurrent requests",
    SENTENCES: "{limit} sentences per day",
}


def rate_headers(counts: Iterable[LimitState]) -> RawHeaders:
    """Return the header fields with the limits and the remaining amounts; no field if `counts` is empty."""
    policies, remaining = [], []
    for count in counts:
        window = f";w={count.window_seconds}" if count.window_seconds else ""
        reset = f";t={count.reset_seconds}" if count.window_seconds else ""
        policies.append(f'"{count.name}";q={count.limit}{window}{_UNITS.get(count.name, "")}')
        remaining.append(f'"{count.name}";r={count.left}{reset}')
    if not policies:
        return []
    return [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(remaining).encode())]


def _too_many(key: ApiKey, name: str, counts: Iterable[LimitState], seconds: int) -> HttpProblem:
    found = next(count for count in counts if count.name == name)
    return HttpProblem(
        "too-many-requests",
        f"key {key.id} has reached its limit of {_WORDS[name].format(limit=found.limit)}: try again in {seconds} s",
        headers=[(b"retry-after", b"%d" % seconds), *rate_headers(counts)],
    )


class Meter:
    """Counts one request against the limits of its key.

    `headers` are the header fields of the response that report the limits; they are empty until `begin` has returned.
    """

    def __init__(self, key: ApiKey) -> None:
        self._key = key
        self._counting: KeyUse | None = None
        self._use: CountedRequest | None = None
        self.headers: RawHeaders = []

    async def begin(self, counting: KeyUse) -> None:
        """Count the request. If the key has reached a limit, raise HttpProblem (429) and do not count the request."""
        self._counting = counting
        use = await counting.begin(self._key)
        if use.refused:
            raise _too_many(self._key, use.refused, use.counts, use.retry_after_seconds)
        self._use = use
        self.headers = rate_headers(use.counts)

    async def end(self) -> None:
        """End the count of the request. Call this before the response is sent, because a client that has the response
        may send the next request.
        """
        use, self._use = self._use, None
        if use is not None and self._counting is not None:
            await self._counting.end(self._key, use)


async def reserve_sentences(scope: Scope, counting: KeyUse, text: str) -> ReservedSentences | None:
    """Count the sentences of a text before the text is written.

    The count is an upper bound; `settle_sentences` corrects it. The result is None if the key has no daily limit of
    sentences.

    Raises:
        HttpProblem: 429 if the key has already reached its daily limit. A text that only exceeds the rest of the limit
            is counted.
        ClusterError: the sentences cannot be counted.
    """
    key: ApiKey = scope["state"]["key"]
    if key.limits.sentences_per_day is None:
        return None
    most = await asyncio.to_thread(most_sentences, text) if len(text) > _LOOP_CHARS else most_sentences(text)
    reserved = await counting.reserve(key, most)
    if reserved.refused:
        raise _too_many(key, SENTENCES, [reserved.count], reserved.count.reset_seconds)
    return reserved


async def settle_sentences(scope: Scope, counting: KeyUse, reserved: ReservedSentences | None, written: int) -> None:
    """Correct the count of `reserve_sentences` to the number of sentences that were written.

    Do nothing if `reserved` is None, because the key then has no daily limit.
    """
    if reserved is not None:
        await counting.settle(scope["state"]["key"], reserved, written)
