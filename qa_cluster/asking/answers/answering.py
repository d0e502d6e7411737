"""Computes the answer to one question: ranks the corpus, reads the best sentences, and fetches the cited documents.

If a cited document has changed since it was read, or if all ranked sentences are gone, the question is ranked and read
again. After `MAX_VERSION_TRIES` tries, answers from changed documents are left out. If slots move or a primary fails,
the whole question is retried within its deadline. While shards are down, the other shards answer a question with
``coverage=partial``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from time import perf_counter
from typing import Any

import orjson

from qa_cluster.config import Settings
from qa_cluster.errors import CannotWrite, InputTooLong, NoWorker, ReplyError, WorkerLost
from qa_cluster.keys import document_key
from qa_cluster.off_loop import off_loop
from qa_cluster.options.questions import PARTIAL
from qa_cluster.ranking.bm25 import Candidate, Ranking
from qa_cluster.ranking.ranker import Ranker
from qa_cluster.reading.plan import ReadingPlan, ReadingStage, certainty, is_sure, wave_ends
from qa_cluster.reading.readings import SentenceReading, is_read, parse_readings
from qa_cluster.routing.admission import Admission
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.readiness import ShardNotReady
from qa_cluster.routing.shards import NotWhole, ShardDown, Shards, shard_facts
from qa_cluster.shard_functions import READ_TRIGGER
from qa_cluster.topology import Shard
from qa_cluster.tracing import ShardTimes, TracedStep, step
from qa_cluster.types import UNSURE, Answer, Index, Model, Timings, Usage, answer_body

from ..editors.guidance import pinned_answer
from ..questions import Question
from .answer_cache import Watches
from .assembly import (
    CitedDocument,
    ScoredSpan,
    assemble,
    choose,
    cited,
    is_current,
    orders,
    parse_cited_document,
    with_earlier,
)

MAX_VERSION_TRIES = 3
# Error codes of a shard whose worker has ended.
_WORKER_GONE = frozenset({NoWorker.resp_code, WorkerLost.resp_code})


@dataclass(slots=True)
class Clock:
    """The duration of each step of one question, in seconds: the look-up in caches, the ranking, and each wave.

    `read` has one entry per wave, in order.
    """

    cache: float = 0.0
    rank: float = 0.0
    read: list[float] = field(default_factory=list)

    def timings(self, begun: float) -> Timings:
        """Return the durations in milliseconds. The total is the time from `begun` to now.

        `begun` is a time on the clock of `time.perf_counter`.
        """
        return Timings(
            milliseconds(self.cache),
            milliseconds(self.rank),
            tuple(map(milliseconds, self.read)),
            milliseconds(perf_counter() - begun),
        )


@dataclass(frozen=True, slots=True)
class ComputedAnswer:
    """An answer that the shards have just computed.

    Attributes:
        body: the part of the answer that is the same for all requests (`answer_body`), as JSON.
        shards: the names of the shards that hold the documents that the answer shows.
        tokens: for each partition, the token under which it watches the question (`answer_cache`); None: the answer
            must not be cached.
        unplanned: a text that names the reader that was used instead of the plan's reader; empty if the plan's readers
            have read.
        partial: whether shards were left out.
        score: the score of the best answer; None: there is no answer.
        unsure: whether there is no answer, or the best answer is unsure.
    """

    body: bytes
    answerable: bool
    shards: frozenset[str]
    tokens: Mapping[str, int] | None
    unplanned: str
    partial: bool
    score: float | None = None
    unsure: bool = False


@dataclass(slots=True)
class StageReading:
    """The candidates of one stage, and what the stage has read so far.

    Attributes:
        candidates: the sentences that the stage may read, the best first.
        readings: the readings of the sentences that were read so far.
        spans: the spans of `readings`, each with its `order`.
    """

    stage: ReadingStage
    candidates: Sequence[Candidate]
    readings: list[SentenceReading] = field(default_factory=list)
    spans: list[ScoredSpan] = field(default_factory=list)

    @property
    def certainty(self) -> float:
        """The highest `order` of all spans that the stage has read; minus infinity if it has read no span."""
        return certainty(item.order for item in self.spans)

    @property
    def revisions(self) -> list[str]:
        """The reading revisions (`Manifest.reading_revision`) of the readers that have read the candidates.

        There are several while the shards change readers. If nothing was read, the only element is the reading revision
        of the plan's reader.
        """
        return sorted({reading.model for reading in self.readings} or {self.stage.reader.reading_revision})

    @property
    def unplanned(self) -> str:
        """A text that names the reader that was used instead of the plan's reader.

        The text is empty if only the plan's reader has read, or if nothing was read.
        """
        reader, found = self.stage.reader, self.revisions
        if found == [reader.reading_revision]:
            return ""
        return (
            f"{reader.name} should have read with {reader.reading_revision}, but the shards read with {'+'.join(found)}"
        )

    @property
    def vanished(self) -> bool:
        """Whether all candidates are gone, because their documents have changed since the ranking."""
        return bool(self.candidates) and not self.readings

    def best(self) -> list[Candidate]:
        """Return the candidates that were read, sorted by their best spans.

        Candidates that were only read as neighbours are left out.
        """
        found = {str(reading.sentence): -inf for reading in self.readings}
        for item in self.spans:
            name = str(item.reading.sentence)
            found[name] = max(found[name], item.order)
        read = [candidate for candidate in self.candidates if candidate.sentence in found]
        return sorted(read, key=lambda candidate: -found[candidate.sentence])


class Answering:
    """Computes answers from the shards of one cluster. `admission` limits how many answers are computed at once."""

    def __init__(
        self,
        shards: Shards,
        ranker: Ranker,
        watches: Watches,
        admission: Admission,
        *,
        answer_max_bytes: int = Settings.answer_max_bytes,
    ) -> None:
        self._answer_max_bytes = answer_max_bytes
        self._shards = shards
        self._ranker = ranker
        self._watches = watches
        self._admission = admission

    async def answer(
        self, question: Question, plan: ReadingPlan, clock: Clock, *, digest: str, seconds: float
    ) -> ComputedAnswer:
        """Compute the answer to a question.

        Args:
            clock: gets the durations of the ranking and of the waves.
            digest: the name under which the partitions start to watch the question, and under which the answer will be
                cached; empty: the answer will not be cached.
            seconds: the time until the question's deadline, in seconds.

        Raises:
            ShardDown: the question needs a shard that is down.
            QueueFull: too many questions wait, or this question would not be answered before its deadline.
            InputTooLong: the answers with their metadata are larger than the limit `answer_max_bytes`.
        """
        coverage = question.options.coverage
        # If shards are missing, this raises an error before the question waits for its turn.
        shards_without(self._shards, coverage)
        async with self._admission.turn(seconds):
            answer: ComputedAnswer = await retrying_without(
                self._shards, coverage, lambda without: self._answer(question, plan, clock, digest, without)
            )
            return answer

    async def _answer(
        self, question: Question, plan: ReadingPlan, clock: Clock, digest: str, without: frozenset[Shard]
    ) -> ComputedAnswer:
        options = question.options
        for _ in range(MAX_VERSION_TRIES):
            clock.read.clear()
            begun = perf_counter()
            (ranking,) = await self._ranker.rank_each(
                question.text,
                question.retriever_k,
                question.chosen,
                (options.collection,),
                without,
                unreadable=lambda: self._unreadable(options.coverage, without),
                retriever=plan.retriever,
                distinct=True,
                expansion=question.expansion,
            )
            missing = without | ranking.left_out
            clock.rank = perf_counter() - begun
            stages, tokens = await asyncio.gather(
                self._read(question, plan, ranking, clock),
                self._watch("" if missing else digest, ranking, plan, question),
            )
            decisive = stages[-1]
            chosen = choose(decisive.spans, decisive.stage.calibration)
            places = cited(chosen, options)
            with step("documents", {"qa.documents": len(places)}):
                records = await self._records([place.reading for place in places])
            if not decisive.vanished and all(is_current(place, records) for place in places):
                break
        assembled = assemble(chosen, records, decisive.stage, options)
        answers, answerable = assembled.answers, assembled.answerable
        if question.pin is not None:
            others = [replace(answer, rank=answer.rank + 1) for answer in answers[: options.top_k - 1]]
            answers, answerable = (pinned_answer(question.pin), *others), True
        reader = decisive.stage.reader
        weights = sorted({revision.partition("+")[0] for revision in decisive.revisions})
        size, limit = _shown_bytes(assembled.answers, records), self._answer_max_bytes
        if size > limit:
            raise InputTooLong(
                f"the {len(assembled.answers)} answers take {size} bytes with their metadata, the limit is {limit}"
                " (answer_max_bytes): lower top_k"
            )
        body = await off_loop(
            size,
            answer_body,
            model=Model(reader.model_id, "+".join(weights), reader.precision),
            answerable=answerable,
            no_answer_score=assembled.no_answer_score,
            answers=answers,
            index=index_of(ranking, self._shards, missing),
            usage=_usage(ranking, [reading for stage in stages for reading in stage.readings], len(clock.read)),
        )
        return ComputedAnswer(
            body,
            answerable,
            frozenset(shard for answer in assembled.answers for shard in answer.shards),
            tokens,
            next((stage.unplanned for stage in stages if stage.unplanned), ""),
            bool(missing),
            answers[0].score if answerable else None,
            not answerable or answers[0].confidence == UNSURE,
        )

    def _unreadable(self, coverage: str, without: frozenset[Shard]) -> frozenset[Shard]:
        """Return the shards whose workers cannot read now, if the question may leave these shards out.

        The result is empty if the question must wait for these shards: the question does not have ``coverage=partial``,
        or no other shard would be left.
        """
        away = self._shards.without_worker - without
        return away if coverage == PARTIAL and len(away | without) < len(self._shards.all) else frozenset()

    async def _watch(
        self, digest: str, ranking: Ranking, plan: ReadingPlan, question: Question
    ) -> Mapping[str, int] | None:
        # If the vector that the plan wants is missing, the ranking used words only, and the answer is not cached.
        ranked_by = () if ranking.vector is None else ranking.vector.identity
        if not digest or ranking.reindexing or ranked_by != plan.ranking:
            return None
        with step("watch"):
            return await self._watches.watch(
                digest, ranking, question.retriever_k, question.chosen, question.options.collection
            )

    async def _read(self, question: Question, plan: ReadingPlan, ranking: Ranking, clock: Clock) -> list[StageReading]:
        """Read the stages of the plan, until a stage is sure enough or leaves no candidates for the next stage."""
        ranked = {item.sentence: item.score for item in ranking.candidates}
        candidates = ranking.candidates
        done: list[StageReading] = []
        for stage in plan.stages:
            reading = StageReading(stage, candidates[: stage.candidates])
            await self._read_waves(question, reading, ranked, clock)
            if done:
                reading.spans = with_earlier(reading.spans, done[-1].spans, stage.earlier_weight)
            done.append(reading)
            candidates = reading.best()
            if not candidates or is_sure(reading.certainty, stage.final_threshold):
                break
        return done

    async def _read_waves(
        self, question: Question, reading: StageReading, ranked: Mapping[str, float], clock: Clock
    ) -> None:
        """Read the candidates of a stage in waves, until its reader is sure enough.

        A sentence that an earlier wave has read as a neighbour is not read again. `ranked` has the ranking scores by
        sentence key. The results are added to `reading`, and the duration of each wave is added to `clock`.
        """
        stage, done = reading.stage, 0
        for until in wave_ends(stage.waves, len(reading.candidates)):
            begun = perf_counter()
            unread = [item for item in reading.candidates[done:until] if not is_read(item.sentence, reading.readings)]
            with step("wave", {"qa.wave": len(clock.read) + 1, "qa.sentences": len(unread)}):
                found = await self._read_wave(question, stage.reader.name, unread) if unread else []
            reading.readings += found
            reading.spans += orders(found, ranked, stage.rank_weight)
            clock.read.append(perf_counter() - begun)
            done = until
            if is_sure(reading.certainty, stage.wave_threshold):
                break

    async def _read_wave(
        self, question: Question, reader: str, candidates: Sequence[Candidate]
    ) -> list[SentenceReading]:
        """Return the readings of the candidates that still exist. Each shard that holds candidates is called once.

        `reader` is the full name of the reader.
        """
        by_shard: dict[Shard, list[str]] = {}
        for candidate in candidates:
            by_shard.setdefault(self._shards.shard_of_key(candidate.sentence), []).append(candidate.sentence)
        may_leave_out = question.options.coverage == PARTIAL
        if may_leave_out:  # check before any read starts, because a failed check would lose the results of reads
            self._shards.readiness.check([shard.address for shard in by_shard], workers=True)
        read = self._read_patiently if may_leave_out else self._read_on
        asked = [read(shard, reader, question.text, names) for shard, names in by_shard.items()]
        replies = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        readings: list[SentenceReading] = []
        for (shard, names), reply in zip(by_shard.items(), replies, strict=True):
            readings += [found for found in parse_readings(names, reply, shard.name) if found is not None]
        return readings

    async def _read_patiently(self, shard: Shard, reader: str, text: str, names: list[str]) -> list[Any]:
        """Call `_read_on`; raise ShardNotReady if the server or the worker of the shard cannot answer."""
        readiness = self._shards.readiness
        try:
            return await readiness.patiently(self._read_on(shard, reader, text, names), [shard.address], workers=True)
        except ReplyError as error:
            if error.code not in _WORKER_GONE:
                raise
            raise ShardNotReady(shard.address, str(error)) from error

    async def _read_on(self, shard: Shard, reader: str, text: str, sentences: list[str]) -> list[Any]:
        """Call `qa.read` on a shard and return its replies, one per sentence, in the order of `sentences`.

        `sentences` are sentence keys, and `reader` is the full name of the reader. If the call is traced, the shard
        also sends its times, which are added to the trace.
        """
        with step(READ_TRIGGER, is_call=True) as call:
            if call is None:
                return await self._shards.call_function(shard, READ_TRIGGER, reader, text, *sentences)
            call.note({**shard_facts(shard), "qa.sentences": len(sentences)})
            replies = await self._shards.call_function(shard, READ_TRIGGER, reader, text, *sentences, call.traceparent)
            if len(replies) > len(sentences):
                _put_times(call, replies.pop())
            return replies

    async def _records(self, readings: Sequence[SentenceReading]) -> dict[str, CitedDocument]:
        """Return the documents of the readings by id. Documents that no longer exist are left out."""
        keys = {
            reading.sentence.document_id: document_key(reading.sentence.document, reading.sentence.tag)
            for reading in readings
        }
        replies = await self._shards.execute_many(
            [(key, ("HMGET", key, "version", "title", "metadata")) for key in keys.values()]
        )
        size = sum(len(metadata or b"") for _, _, metadata in replies)
        records = zip(keys, await off_loop(size, _parsed, replies), strict=True)
        return {document_id: record for document_id, record in records if record is not None}


def _put_times(call: TracedStep, reported: object) -> None:
    """Add parts to the traced call, which has just ended: the times that the shard has reported."""
    times, ended = ShardTimes.parse(reported, call.traceparent), perf_counter()
    if times is not None:
        for part in times.parts(ended if call.sent_at is None else call.sent_at, ended):
            call.put(part.name, part.begun, part.ended, part.facts)


def _parsed(replies: Sequence[Any]) -> list[CitedDocument | None]:
    return list(map(parse_cited_document, replies))


def _shown_bytes(answers: Sequence[Answer], records: Mapping[str, CitedDocument]) -> int:
    """Return the approximate size of answers as JSON, in bytes. `records` has their documents by id."""
    return sum(len(answer.context) + records[answer.document_id].metadata_bytes for answer in answers)


def _usage(ranking: Ranking, readings: Sequence[SentenceReading], waves: int) -> Usage:
    return Usage(
        len(ranking.candidates),
        len(readings),
        sum(reading.cached for reading in readings),
        waves,
        any(reading.truncated for reading in readings),
        sum(reading.windows for reading in readings),
    )


def milliseconds(seconds: float) -> float:
    """Convert seconds to milliseconds, rounded to three decimals."""
    return round(seconds * 1000, 3)


# ---- Shards that are down (also used by searches) ----


def shards_without(shards: Shards, coverage: str) -> frozenset[Shard]:
    """Return the shards that a request with this coverage leaves out now.

    Raises:
        ShardDown: the request needs a shard that is down. With ``coverage=partial``: all shards are down.
    """
    down, not_ready = shards.down, shards.not_ready
    if coverage != PARTIAL:
        if lost := shards.lost():
            raise ShardDown(shards.why_down(lost))
        return frozenset()
    if down and len(down) == len(shards.all):
        raise ShardDown(shards.why_down(down))
    # If no shard is ready, the request waits for the shards that may be ready soon.
    return down | not_ready if len(down | not_ready) < len(shards.all) else down


async def retrying_without(shards: Shards, coverage: str, attempt: Callable[[frozenset[Shard]], Awaitable[Any]]) -> Any:
    """Call `Shards.retrying` with an attempt that gets the set of shards to leave out.

    If `coverage` is ``partial``, the next attempt leaves out a shard that:

    - has gone down
    - cannot answer
    - runs no functions, because it cannot write
    """
    unable: set[Shard] = set()

    async def tried() -> Any:
        """Call the attempt.

        With ``coverage=partial``, if a shard cannot answer, the attempt is called again at once without this shard.
        """
        while True:
            without = shards_without(shards, coverage) | unable
            if coverage != PARTIAL:
                return await once(without)
            if len(without) == len(shards.all):
                unable.clear()  # a shard may be able to answer by now
                raise NotWhole("no shard can answer now")
            rest = {shard.address: shard for shard in shards.all if shard not in without}
            try:
                return await shards.readiness.patiently(once(without), rest)
            except ShardNotReady as error:
                if len(rest) == 1 or error.address not in rest:
                    raise NotWhole(str(error)) from error
                unable.add(rest[error.address])
            except (ConnectionLost, ReplyError):
                await shards.readiness.probe(rest)
                if len(rest) == 1 or not shards.readiness.servers.keys() & rest.keys():
                    raise

    async def once(without: frozenset[Shard]) -> Any:
        try:
            return await attempt(without)
        except (ShardDown, CannotWrite) as error:
            shard = next((shard for shard in shards.all if shard.address == error.address), None)
            if coverage != PARTIAL or shard is None or without >= frozenset(shards.all) - {shard}:
                raise
            if isinstance(error, CannotWrite):
                unable.add(shard)
            raise NotWhole(str(error)) from error

    return await shards.retrying(tried, inf)


def index_of(ranking: Ranking, shards: Shards, without: Collection[Shard]) -> Index:
    """Return which state of the documents was ranked, and which shards were left out.

    The `version` of the result is a digest of the epochs of all ranked partitions.
    """
    version = blake2b(orjson.dumps(ranking.epochs, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()
    total, missing = len(shards.all), tuple(sorted(str(shard.address) for shard in without))
    return Index(version, total, total - len(missing), bool(missing), missing)
