"""Answers questions from the caches, and caches the answers that the shards compute.

There are two caches: the near cache of this process, and the answer cache on the shards. An answer is cached only if
its freshness can be proved later:

- The answer covers all shards.
- The plan's readers have computed the answer, from a ranking with the plan's retriever.
- The terms of all partitions come from this process's version of the analyzer.
- Every partition watches the question for writes since the ranking.

While shards are down, no new answer is cached. The near cache still answers a question with ``coverage=partial`` if all
documents that the answer shows are on shards that are up.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter

from qa_cluster.errors import ModelError, NotFound
from qa_cluster.off_loop import off_loop
from qa_cluster.options.questions import PARTIAL, AskOptions
from qa_cluster.reading.plan import ReadingPlan
from qa_cluster.routing.readiness import ShardNotReady
from qa_cluster.routing.shards import Shards
from qa_cluster.tracing import step
from qa_cluster.types import CacheUse

from ..freshness import Freshness
from ..questions import Question
from .answer_cache import AnswerCache, StoredAnswer
from .answering import Answering, Clock
from .near_cache import NearCache


class CacheMiss(NotFound):
    """The caller asked only for cached answers, and the answer is not cached."""

    resp_code = "CACHEMISS"


@dataclass(frozen=True, slots=True)
class SharedOutcome:
    """An answer, cached or computed, that all callers of the same question share.

    Attributes:
        body: the part of the answer that is the same for all requests (`answer_body`), as JSON.
        cache: whether the answer comes from a cache, from which cache, and its age.
        score: the score of the best answer; None if there is no answer, or if the outcome comes from a cache.
        unsure: whether there is no answer, or the best answer is unsure; false if the outcome comes from a cache.
    """

    body: bytes
    etag: str
    answerable: bool
    cache: CacheUse
    clock: Clock
    partial: bool = False
    score: float | None = None
    unsure: bool = False


class CachedAnswers:
    """Returns answers from the caches; if an answer is not cached, lets the shards compute it and caches it."""

    def __init__(
        self, shards: Shards, freshness: Freshness, near: NearCache, answers: AnswerCache, answering: Answering
    ) -> None:
        self._shards = shards
        self._freshness = freshness
        self._near = near
        self._answers = answers
        self._answering = answering

    def near_hit(self, digest: str, coverage: str) -> SharedOutcome | None:
        """Return the answer with this digest from the near cache; None if it is missing or may be stale.

        With the `coverage` ``partial``, the result is also None if the answer shows a document on a shard that is down.
        """
        away: frozenset[str] = frozenset()
        if not self._freshness.drained():
            if coverage != PARTIAL or not (down := self._shards.down) or not self._freshness.drained_without_down():
                return None
            away = frozenset(shard.name for shard in down)
        entry = self._near.get(digest, self._freshness.generation)
        if entry is None or entry.answer.shards & away:
            return None
        use = CacheUse("hit", "near", self._near.age(entry), self._near.ttl(entry))
        return SharedOutcome(entry.answer.body, entry.etag, entry.answer.answerable, use, Clock())

    async def answer(
        self, question: Question, plan: ReadingPlan, digest: str, *, generation: int, last_try: bool
    ) -> SharedOutcome:
        """Return the answer from the answer cache, or let the shards compute it.

        Args:
            digest: the name of the answer.
            generation: `Freshness.generation` before the digest was computed. If it has changed since, the near cache
                never returns this answer, because the digest may belong to an earlier pin.
            last_try: whether to accept an answer of readers that the plan does not name.

        Raises:
            CacheMiss: the question has the option ``cache=only``, and its answer is not cached.
            ModelError: `last_try` is false, and readers that the plan does not name computed the answer.
        """
        begun = perf_counter()
        clock = Clock()
        mode, collection = question.options.cache, question.options.collection
        cacheable = mode != "off" and await self._freshness.drain()
        with self._freshness.pending_answer(digest) as pending:
            if cacheable and mode in ("use", "only"):
                stored = await self._stored(digest, question.options)
                clock.cache = perf_counter() - begun
                if stored is not None:
                    use = CacheUse("hit", "shard", int(stored.age_seconds), int(stored.ttl_seconds))
                    etag = await off_loop(len(stored.body), _etag, digest, stored.body)
                    if not pending.invalidated:
                        self._near.put(digest, stored, etag=etag, generation=generation)
                    return SharedOutcome(stored.body, etag, stored.answerable, use, clock)
            if mode == "only":
                raise CacheMiss("the answer is not cached, and with cache=only it is not computed")
            seconds = question.timeout_seconds - (perf_counter() - begun)
            computed = await self._answering.answer(
                question, plan, clock, digest=digest if cacheable else "", seconds=seconds
            )
            if computed.unplanned and not last_try:
                raise ModelError(computed.unplanned)
            # The digest names an answer of the plan's readers, so an answer of other readers is not cached.
            tokens = None if computed.unplanned or pending.invalidated else computed.tokens
            ttl = self._answers.ttl_seconds
            etag = await off_loop(len(computed.body), _etag, digest, computed.body)
            if tokens is not None:
                self._answers.put(digest, computed.body, tokens, collection)
                stored = StoredAnswer(computed.body, 0.0, ttl, computed.answerable, computed.shards)
                self._near.put(digest, stored, etag=etag, generation=generation)
            status = mode if mode in ("off", "refresh") else "miss"
            use = CacheUse(status, "none", 0, 0 if tokens is None else ttl)
            best = (computed.score, computed.unsure)
            return SharedOutcome(computed.body, etag, computed.answerable, use, clock, computed.partial, *best)

    async def _stored(self, digest: str, options: AskOptions) -> StoredAnswer | None:
        """Return the answer from the answer cache; None if it is missing.

        For a question with ``coverage=partial``, the result is also None if a shard is not ready.
        """
        with step("cache", {"qa.cache.tier": "shard"}) as looked:
            stored, reading = None, self._answers.get(digest, options.collection)
            if options.coverage == PARTIAL:
                with suppress(ShardNotReady):
                    every = [shard.address for shard in self._shards.all]
                    stored = await self._shards.readiness.patiently(reading, every)
            else:
                stored = await reading
            if looked is not None:
                looked.note({"qa.cache.hit": stored is not None})
        return stored


def _etag(digest: str, body: bytes) -> str:
    """Return a weak ETag. It is weak because cache tier and timings differ between responses."""
    return f'W/"{blake2b(body, digest_size=8, key=digest.encode()).hexdigest()}"'
