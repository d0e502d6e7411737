"""The limits of API keys over HTTP: counts requests and sentences, and says how the limits stand.

The fields are those of the IETF's draft `draft-ietf-httpapi-ratelimit-headers`: `RateLimit-Policy` names the limits,
`RateLimit` what is left of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from qa_cluster.access.limits import CONCURRENT, REQUESTS, SENTENCES, Count, KeyUse, Reserved, Use
from qa_cluster.access.records import ApiKey
from qa_cluster.documents.sentence_limit import most_sentences

from .error_map import HttpProblem, RawHeaders
from .messages import Scope

# Texts longer than this are looked at on a thread.
_LOOP_CHARS = 100_000
_UNITS = {CONCURRENT: ';qu="concurrent-requests"', SENTENCES: ';qu="sentences"'}
_WORDS = {
    REQUESTS: "{limit} requests a second",
    CONCURRENT: "{limit} requests at the same time",
    SENTENCES: "{limit} sentences a day",
}


def rate_headers(counts: Iterable[Count]) -> RawHeaders:
    """The fields that say what the limits are and how they stand."""
    policies, standings = [], []
    for count in counts:
        window = f";w={count.window_seconds}" if count.window_seconds else ""
        reset = f";t={count.reset_seconds}" if count.window_seconds else ""
        policies.append(f'"{count.name}";q={count.limit}{window}{_UNITS.get(count.name, "")}')
        standings.append(f'"{count.name}";r={count.left}{reset}')
    if not policies:
        return []
    return [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(standings).encode())]


def _too_many(key: ApiKey, name: str, counts: Iterable[Count], seconds: int) -> HttpProblem:
    found = next(count for count in counts if count.name == name)
    return HttpProblem(
        "too-many-requests",
        f"key {key.id} may have {_WORDS[name].format(limit=found.limit)}: try again in {seconds} s",
        headers=[(b"retry-after", b"%d" % seconds), *rate_headers(counts)],
    )


class Meter:
    """What one request has used. `headers` go into its response."""

    def __init__(self, key: ApiKey) -> None:
        self._key = key
        self._counting: KeyUse | None = None
        self._use: Use | None = None
        self.headers: RawHeaders = []

    async def begin(self, counting: KeyUse) -> None:
        """Count the request, or raise HttpProblem (429)."""
        self._counting = counting
        use = await counting.begin(self._key)
        if use.refused:
            raise _too_many(self._key, use.refused, use.counts, use.retry_after_seconds)
        self._use = use
        self.headers = rate_headers(use.counts)

    async def end(self) -> None:
        """The request is over. It must be called before its response is sent, so that the client may send the next."""
        use, self._use = self._use, None
        if use is not None and self._counting is not None:
            await self._counting.end(self._key, use)


async def reserve_sentences(scope: Scope, counting: KeyUse, text: str) -> Reserved | None:
    """Count the sentences of a text that will be written with the request's key; HttpProblem (429) if it may not.

    It counts more than there are; `settle_sentences` corrects it. None if the key has no such limit.
    """
    key: ApiKey = scope["state"]["key"]
    if key.limits.sentences_per_day is None:
        return None
    most = await asyncio.to_thread(most_sentences, text) if len(text) > _LOOP_CHARS else most_sentences(text)
    reserved = await counting.reserve(key, most)
    if reserved.refused:
        raise _too_many(key, SENTENCES, [reserved.count], reserved.count.reset_seconds)
    return reserved


async def settle_sentences(scope: Scope, counting: KeyUse, reserved: Reserved | None, written: int) -> None:
    """Correct the count to the sentences that were written."""
    if reserved is not None:
        await counting.settle(scope["state"]["key"], reserved, written)
