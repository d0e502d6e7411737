"""The question pipeline: caches, rank, read in waves, answer. Used by the REST service and by the cluster client.

The constant part of an answer is one JSON object (`Outcome.body`); it leaves out what differs from one request to the
next, so a cached answer is not encoded again. Identical questions that are asked at the same time, with no write in
between, share one task (a *flight*); it is cancelled when the last of their callers has gone. When slots move or a
primary fails meanwhile, the whole question is tried again within its deadline.

While shards are down, a question with ``coverage=partial`` is answered by the others. No cache keeps such an answer.
Whole answers that this process has kept stand meanwhile, if all their documents are on shards that are up: nobody else
can have changed them unnoticed, and what they lack is what the new answer would lack, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from time import perf_counter, time
from typing import Any

import orjson

from qa_cluster.config import PARTIAL
from qa_cluster.errors import DeadlineExceeded, ModelError, NotFound
from qa_cluster.keys import document_key
from qa_cluster.ranking.bm25 import Candidate, Ranking
from qa_cluster.reading.choosing import Scored, choose, orders
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.readings import SentenceReading, is_read, parse_readings
from qa_cluster.routing.admission import Admission
from qa_cluster.routing.shard_calls import read_sentences
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.tracing import current, step
from qa_cluster.types import AskResult, CacheUse, Index, Model, Timings, Usage
from qa_cluster.waves import certainty, is_sure, wave_ends

from .answer_cache import AnswerCache, StoredAnswer
from .assembly import Assembled, CitedDocument, assemble, cited, is_current, parse_cited_document
from .collections import Collections
from .freshness import Freshness
from .loaded_readers import LoadedReaders
from .near_cache import NearCache
from .questions import AskLimits, AskOptions, Question, check_question
from .searcher import Ranker, index_of, retrying_without, shards_without

MAX_VERSION_TRIES = 3
# When a shard lacks the model, another model may have replaced it a moment ago: the question is tried again.
MAX_MODEL_TRIES = 3
MODEL_PAUSE_SECONDS = 0.05

# Digest, generation and writes, cache mode, coverage, whether it is the last try, and a number that no other flight has
# where it may not be joined.
_FlightKey = tuple[str, int, int, str, str, bool, int]


class CacheMiss(NotFound):
    """The caller asked for cached answers only and there is none."""

    resp_code = "CACHEMISS"


@dataclass(slots=True)
class Clock:
    """How long each stage of one question took, in seconds."""

    cache: float = 0.0
    rank: float = 0.0
    read: list[float] = field(default_factory=list)

    def timings(self, begun: float) -> Timings:
        """The times in milliseconds; the total runs from `begun` to now."""
        return Timings(
            round(self.cache * 1000, 3),
            round(self.rank * 1000, 3),
            tuple(round(wave * 1000, 3) for wave in self.read),
            round((perf_counter() - begun) * 1000, 3),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one request: the constant part as JSON, and the parts that belong to this request alone."""

    question: Question
    body: bytes
    etag: str
    cache: CacheUse
    timings: Timings
    answerable: bool
    digest: str
    partial: bool = False

    def encode(self, request_id: str) -> bytes:
        """The whole result as JSON, as `AskResult` reads it."""
        head = orjson.dumps(
            {
                "id": request_id,
                "object": "qa.result",
                "created": int(time()),
                "question": self.question.text,
                "normalized_question": self.question.folded,
            }
        )
        tail = orjson.dumps({"cache": self.cache, "timings_ms": self.timings})
        return b"%b,%b,%b" % (head[:-1], self.body[1:-1], tail[1:])

    def result(self, request_id: str) -> AskResult:
        """The whole result, typed."""
        return AskResult.from_json(self.encode(request_id))


@dataclass(frozen=True, slots=True)
class _Made:
    """The result of a flight: body, ETag, whether there is an answer, where it came from and how long it took."""

    body: bytes
    etag: str
    answerable: bool
    cache: CacheUse
    clock: Clock
    partial: bool = False


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer of the shards: its JSON, the reader's revision, and the tokens by which it may be kept, None for never.

    `without` are the shards that were not asked.
    """

    assembled: Assembled
    body: bytes
    revision: str
    tokens: Mapping[str, int] | None
    without: frozenset[Shard]


class _Flight:
    """One task that identical questions share."""

    def __init__(self, task: asyncio.Task[_Made]) -> None:
        self.task = task
        self.waiting = 0


class Asker:
    """Answers questions from the shards of one cluster."""

    def __init__(
        self,
        shards: Shards,
        freshness: Freshness,
        near: NearCache,
        answers: AnswerCache,
        readers: LoadedReaders,
        *,
        ranker: Ranker,
        collections: Collections,
        follow: Callable[[], Awaitable[None]],
        limits: AskLimits,
        waves: Sequence[int],
        admission: Admission,
    ) -> None:
        self._shards = shards
        self._freshness = freshness
        self._near = near
        self._answers = answers
        self._waves = tuple(waves)
        self._flights: dict[_FlightKey, _Flight] = {}
        self._solo = 0
        self._ranker = ranker
        self._collections = collections
        self._follow = follow
        self._readers = readers
        self.limits = limits
        self.admission = admission

    async def ask(self, text: object, options: AskOptions | None = None) -> Outcome:
        """Answer a question within its deadline."""
        begun = perf_counter()
        question = check_question(text, options or AskOptions(), self.limits)
        clock = Clock()
        if (recorded := current()) is not None:
            recorded.note({"qa.question": question.text})
        try:
            async with asyncio.timeout(question.timeout_seconds):
                tries = 0
                while True:
                    try:
                        return await self._ask(question, clock, begun, last_try=tries >= MAX_MODEL_TRIES)
                    except ModelError:
                        if tries >= MAX_MODEL_TRIES or self._readers.default_or_none is None:
                            raise
                    tries += 1
                    await asyncio.sleep(MODEL_PAUSE_SECONDS)
                    await self._readers.reread()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the question was not answered in {question.timeout_seconds * 1000:g} ms (timeout_ms)"
            ) from error

    async def _ask(self, question: Question, clock: Clock, begun: float, *, last_try: bool) -> Outcome:
        # The answer must take account of every change before the question, of the model's too.
        options = question.options
        with step("cache", {"qa.cache.tier": "near"}) as looked:
            fresh = await self._freshness.drain(without_down=options.coverage == PARTIAL)
            await self._follow()
            await self._collections.check(options.collection, shards_without(self._shards, options.coverage))
            manifest = await self._readers.find(options.model)
            digest = self._digest(question, manifest)
            may_hit = fresh and options.cache in ("use", "only")
            found = self.near_hit(digest, options.coverage) if may_hit else None
            if looked is not None:
                looked.note({"qa.cache.hit": found is not None, "qa.cache.mode": options.cache})
        if options.cache in ("use", "only"):
            clock.cache = perf_counter() - begun
            if found is not None:
                body, etag, use, answerable = found
                return Outcome(question, body, etag, use, clock.timings(begun), answerable, digest)
        made = await self._fly(question, manifest, digest, joint=fresh, last_try=last_try)
        clock = replace(made.clock, cache=max(made.clock.cache, clock.cache))
        return Outcome(
            question, made.body, made.etag, made.cache, clock.timings(begun), made.answerable, digest, made.partial
        )

    def _digest(self, question: Question, manifest: Manifest) -> str:
        """The name of the question's answer in caches."""
        reader = f"{manifest.model_id}@{manifest.reading_revision}"
        calibration = manifest.calibration
        # they are part of the name because a new fit can change them while the weights stay the same
        numbers = (manifest.no_answer_threshold, manifest.wave_threshold, manifest.rank_weight)
        return question.digest(reader, self._waves, (*numbers, calibration.a, calibration.b))

    def near_hit(self, digest: str, coverage: str) -> tuple[bytes, str, CacheUse, bool] | None:
        """The near cache's answer, if it is certain that it is still valid.

        With ``coverage=partial`` it may be one that was kept before a shard went down, if no document of it is there.
        """
        away: frozenset[str] = frozenset()
        if not self._freshness.drained():
            if coverage != PARTIAL or not (down := self._shards.down) or not self._freshness.drained_without_down():
                return None
            away = frozenset(shard.name for shard in down)
        entry = self._near.get(digest, self._freshness.generation)
        if entry is None or entry.shards & away:
            return None
        use = CacheUse("hit", "near", self._near.age(entry), self._near.ttl(entry))
        return entry.body, entry.etag, use, entry.answerable

    @property
    def flights(self) -> int:
        """The number of flights under way."""
        return len(self._flights)

    async def _fly(self, question: Question, manifest: Manifest, digest: str, *, joint: bool, last_try: bool) -> _Made:
        # A request may join a flight only if it is certain that nothing has changed since the flight began.
        self._solo += not joint
        now = (self._freshness.generation, self._freshness.writes)
        mode = (question.options.cache, question.options.coverage)
        key = (digest, *now, *mode, last_try, 0 if joint else self._solo)
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._make(question, manifest, digest, last_try=last_try)))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda task: self._landed(key, flight))
            shared: AbstractContextManager[Any] = nullcontext()
        else:
            shared = step("shared", {"qa.shared": True})  # its parts are in the trace of the one who asked first
        flight.waiting += 1
        try:
            with shared:
                return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._flights.pop(key, None)
                flight.task.cancel()

    def _landed(self, key: _FlightKey, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.cancelled():
            flight.task.exception()  # retrieved here, so that asyncio does not report it when every caller has gone

    async def _make(self, question: Question, manifest: Manifest, digest: str, *, last_try: bool) -> _Made:
        begun = perf_counter()
        clock = Clock()
        mode, collection = question.options.cache, question.options.collection
        generation = self._freshness.generation
        cacheable = mode != "off" and await self._freshness.drain()
        with self._freshness.keeping(digest) as keeping:
            if cacheable and mode in ("use", "only"):
                with step("cache", {"qa.cache.tier": "shard"}) as looked:
                    stored = await self._answers.get(digest, collection)
                    if looked is not None:
                        looked.note({"qa.cache.hit": stored is not None})
                clock.cache = perf_counter() - begun
                if stored is not None:
                    return self._stored(digest, stored, clock, None if keeping.dropped else generation)
            if mode == "only":
                raise CacheMiss("the question is not cached, and cache=only asks for nothing else")
            shards_without(self._shards, question.options.coverage)  # it is not to wait for a refusal
            async with self.admission.turn(question.timeout_seconds - (perf_counter() - begun)):
                answered: _Answered = await retrying_without(
                    self._shards,
                    question.options.coverage,
                    lambda without: self._answer(question, manifest, clock, digest if cacheable else "", without),
                )
            assembled, body, tokens = answered.assembled, answered.body, answered.tokens
            if answered.revision != manifest.reading_revision and not last_try:
                raise ModelError(
                    f"{manifest.name} should have read with {manifest.reading_revision}, but the shards read with"
                    f" {answered.revision}"
                )
            etag = _etag(digest, body)
            status = {"off": "off", "refresh": "refresh"}.get(mode, "miss")
            # While some shards still have the previous reader, the answer is not what the digest names: it is not kept.
            if tokens is None or keeping.dropped or answered.revision != manifest.reading_revision:
                use = CacheUse(status, "none", 0, 0)
                return _Made(body, etag, assembled.answerable, use, clock, bool(answered.without))
            self._answers.put(digest, body, tokens, collection)
            ttl = self._answers.ttl_seconds
            self._near.put(
                digest,
                body,
                etag=etag,
                generation=generation,
                age_seconds=0,
                ttl_seconds=ttl,
                answerable=assembled.answerable,
                shards=frozenset(shard for answer in assembled.answers for shard in answer.shards),
            )
            return _Made(body, etag, assembled.answerable, CacheUse(status, "none", 0, ttl), clock)

    def _stored(self, digest: str, stored: StoredAnswer, clock: Clock, generation: int | None) -> _Made:
        """An answer that a shard has kept; it is kept here, too, unless its question was dropped a moment ago."""
        etag = _etag(digest, stored.body)
        if generation is not None:
            self._near.put(
                digest,
                stored.body,
                etag=etag,
                generation=generation,
                age_seconds=stored.age_seconds,
                ttl_seconds=stored.ttl_seconds,
                answerable=stored.answerable,
                shards=stored.shards,
            )
        use = CacheUse("hit", "shard", int(stored.age_seconds), int(stored.ttl_seconds))
        return _Made(stored.body, etag, stored.answerable, use, clock)

    async def _answer(
        self, question: Question, manifest: Manifest, clock: Clock, kept_as: str, without: frozenset[Shard]
    ) -> _Answered:
        """Rank and read; once more when a document changed between the two.

        It asks all shards but those `without`. With `kept_as`, the answer's name, its
        question is watched from before the first sentence is read.
        """
        kept_as = "" if without else kept_as
        for attempt in range(MAX_VERSION_TRIES):
            clock.read.clear()
            begun = perf_counter()
            ranking = await self._ranker.rank(
                question.text, question.retriever_k, question.chosen, question.options.collection, without
            )
            clock.rank = perf_counter() - begun
            (readings, spans, waves), tokens = await asyncio.gather(
                self._read(question, ranking, manifest, clock), self._watch(kept_as, ranking, question)
            )
            chosen = choose(spans, manifest.calibration)
            places = cited(chosen, question.options)
            with step("documents", {"qa.documents": len(places)}):
                records = await self._records([place.reading for place in places])
            if attempt + 1 == MAX_VERSION_TRIES or all(is_current(place, records) for place in places):
                break
        assembled = assemble(chosen, records, manifest, question.options)
        revisions = {reading.model for reading in readings} or {manifest.reading_revision}
        model = Model(manifest.model_id, _weights(revisions), manifest.precision)
        usage = _usage(ranking, readings, waves)
        body = _body(assembled, model, index_of(ranking, self._shards, without), usage)
        return _Answered(assembled, body, "+".join(sorted(revisions)), tokens, without)

    async def _watch(self, kept_as: str, ranking: Ranking, question: Question) -> Mapping[str, int] | None:
        if not kept_as:
            return None
        with step("watch"):
            return await self._answers.watches.watch(
                kept_as, ranking, question.retriever_k, question.chosen, question.options.collection
            )

    async def _read(
        self, question: Question, ranking: Ranking, manifest: Manifest, clock: Clock
    ) -> tuple[list[SentenceReading], list[Scored], int]:
        """Read the candidates in waves; return the readings, all their spans, and the number of waves.

        A sentence that was read as a neighbour in an earlier wave is not read again.
        """
        readings: list[SentenceReading] = []
        spans: list[Scored] = []
        ranked = {item.sentence: item.score for item in ranking.candidates}
        done = waves = 0
        ends = wave_ends(
            self._waves if question.options.waves else (), min(question.retriever_k, len(ranking.candidates))
        )
        for until in ends:
            begun = perf_counter()
            unread = [item for item in ranking.candidates[done:until] if not is_read(item.sentence, readings)]
            with step("wave", {"qa.wave": waves + 1, "qa.sentences": len(unread)}):
                found = await self._read_wave(question, unread, manifest) if unread else []
            readings += found
            spans += orders(found, ranked, manifest.rank_weight)
            clock.read.append(perf_counter() - begun)
            done, waves = until, waves + 1
            if is_sure(certainty(item.order for item in spans), manifest.wave_threshold):
                break
        return readings, spans, waves

    async def _read_wave(
        self, question: Question, candidates: Sequence[Candidate], manifest: Manifest
    ) -> list[SentenceReading]:
        by_shard: dict[Shard, list[Candidate]] = {}
        for candidate in candidates:
            by_shard.setdefault(self._shards.shard_of_key(candidate.sentence), []).append(candidate)
        asked = [
            read_sentences(self._shards, shard, manifest.name, question.text, [item.sentence for item in items])
            for shard, items in by_shard.items()
        ]
        replies = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        readings: list[SentenceReading] = []
        for (shard, items), reply in zip(by_shard.items(), replies, strict=True):
            found = parse_readings([item.sentence for item in items], reply, shard.name)
            readings += [reading for reading in found if reading is not None]
        return readings

    async def _records(self, readings: Sequence[SentenceReading]) -> dict[str, CitedDocument]:
        keys = {
            reading.sentence.document_id: document_key(reading.sentence.document, reading.sentence.tag)
            for reading in readings
        }
        replies = await self._shards.execute_many(
            [(key, ("HMGET", key, "version", "title", "metadata")) for key in keys.values()]
        )
        records = {}
        for document_id, reply in zip(keys, replies, strict=True):
            record = parse_cited_document(reply)
            if record is not None:
                records[document_id] = record
        return records


def _body(assembled: Assembled, model: Model, index: Index, usage: Usage) -> bytes:
    """The constant part of a result."""
    return orjson.dumps(
        {
            "model": model,
            "answerable": assembled.answerable,
            "no_answer_score": assembled.no_answer_score,
            "answers": [answer.to_dict() for answer in assembled.answers],
            "index": index,
            "usage": usage,
        }
    )


def _usage(ranking: Ranking, readings: Sequence[SentenceReading], waves: int) -> Usage:
    return Usage(
        len(ranking.candidates),
        len(readings),
        sum(reading.cached for reading in readings),
        waves,
        any(reading.truncated for reading in readings),
        sum(reading.windows for reading in readings),
    )


def _etag(digest: str, body: bytes) -> str:
    """A weak ETag, because cache tier and timings differ from one response to the next."""
    return f'W/"{blake2b(body, digest_size=8, key=digest.encode()).hexdigest()}"'


def _weights(reading_revisions: Iterable[str]) -> str:
    """The weights' part of the reading revisions; there are several while the shards change models."""
    return "+".join(sorted({revision.partition("+")[0] for revision in reading_revisions}))
