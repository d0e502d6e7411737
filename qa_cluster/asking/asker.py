"""The question pipeline of one process. The REST service and the cluster client use it.

The pipeline checks a question, makes its reading plan, and then uses a cached answer, joins a running computation or
computes the answer. The steps are in separate files in `answers/`: single flight (`single_flight`), caches (`caching`),
ranking and reading (`answering`).

The constant part of an answer is one JSON object (`Outcome.body`). The constant part lacks the fields that differ
between requests, so a cached answer is not encoded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, time

from qa_cluster.deadline import deadline
from qa_cluster.errors import ModelError, NotFound
from qa_cluster.options.questions import PARTIAL, AskOptions
from qa_cluster.ranking.meaning import WORDS
from qa_cluster.reading.plan import PLANS, ReadingPlan, ReadingStage, StageOptions
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.tracing import current, step
from qa_cluster.types import AskResult, CacheUse, Timings, answer_head, answer_json

from .answers.answering import Clock, retrying_without
from .answers.caching import CachedAnswers, SharedOutcome
from .answers.single_flight import SingleFlight
from .collections import Collections
from .document_fields import DocumentFields
from .editors.feedback import UnansweredLog
from .editors.guidance import Guidance, pin_digest
from .freshness import Freshness
from .loaded_readers import ASK_AGAIN_SECONDS, STAGE_ASK_AGAIN_SECONDS, LoadedReaders
from .questions import AskLimits, Question, check_question
from .remote_encoder import RemoteEncoder

# A shard may lack the reader of a question, because a different reader has just replaced this reader. The question is
# then retried, at most `MAX_MODEL_TRIES` times.
MAX_MODEL_TRIES = 3
MODEL_PAUSE_SECONDS = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one request: the constant part as JSON (`body`), and the parts that differ between requests.

    Attributes:
        body: the part of the answer that is the same for all requests (`answer_body`), as JSON.
        etag: the weak ETag of `body`.
        cache: whether the answer comes from a cache, from which cache, and its age.
        timings: the durations of the steps of this request.
        answerable: whether the question has a pin, or its best answer reaches the no-answer threshold.
        digest: the name of the answer in caches.
        partial: whether shards were left out.
    """

    question: Question
    body: bytes
    etag: str
    cache: CacheUse
    timings: Timings
    answerable: bool
    digest: str
    partial: bool = False

    @property
    def head(self) -> bytes:
        """The part of the JSON that depends only on the question."""
        return answer_head(self.question.text, self.question.folded)

    def encode(self, request_id: str) -> bytes:
        """Return the whole result as JSON, in the form of `AskResult`."""
        return answer_json(request_id, int(time()), self.head, self.body, cache=self.cache, timings=self.timings)

    def result(self, request_id: str) -> AskResult:
        """Return the whole result as an object."""
        return AskResult.from_json(self.encode(request_id))


class Asker:
    """Answers questions from the shards of one cluster.

    Args:
        follow: a function that reads manifests and the number of partitions again if a shard has reported a change.
        plan: the stages (`reading/plan.py`) for questions that do not name a plan.
    """

    def __init__(
        self,
        shards: Shards,
        freshness: Freshness,
        readers: LoadedReaders,
        cached: CachedAnswers,
        *,
        collections: Collections,
        fields: DocumentFields,
        vectors: RemoteEncoder,
        guidance: Guidance,
        unanswered: UnansweredLog,
        follow: Callable[[], Awaitable[None]],
        limits: AskLimits,
        plan: Sequence[StageOptions],
    ) -> None:
        self._shards = shards
        self._freshness = freshness
        self._readers = readers
        self._cached = cached
        self._collections = collections
        self._fields = fields
        self._vectors = vectors
        self._guidance = guidance
        self._unanswered = unanswered
        self._follow = follow
        self._plan = tuple(plan)
        self._left_out: set[str] = set()
        self.flights: SingleFlight[SharedOutcome] = SingleFlight()
        self.limits = limits
        self.near_hit = cached.near_hit

    async def ask(self, text: object, options: AskOptions | None = None) -> Outcome:
        """Answer a question; DeadlineExceeded if the answer is not ready within the question's timeout."""
        begun = perf_counter()
        question = check_question(text, options or AskOptions(), self.limits)
        clock = Clock()
        if (recorded := current()) is not None:
            recorded.note({"qa.question": question.text})
        late = f"the question was not answered in {question.timeout_seconds * 1000:g} ms (timeout)"
        async with deadline(question.timeout_seconds, late):
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

    async def _ask(self, question: Question, clock: Clock, begun: float, *, last_try: bool) -> Outcome:
        # The answer must reflect every change that was made before the question, including changes of readers.
        options = question.options
        with step("cache", {"qa.cache.tier": "near"}) as looked:
            fresh = await self._freshness.drain(without_down=options.coverage == PARTIAL)

            async def prepared(without: frozenset[Shard]) -> tuple[Question, ReadingPlan]:
                await self._follow()
                await self._collections.check(options.collection, without)
                await self._fields.check(question.chosen, options.collection)
                guided = await self._guided(question, without)
                return guided, await self.plan(guided)

            generation = self._freshness.generation
            question, plan = await retrying_without(self._shards, options.coverage, prepared)
            digest = question.digest(plan)
            reads_cache = options.cache in ("use", "only")
            found = self.near_hit(digest, options.coverage) if fresh and reads_cache else None
            if looked is not None:
                looked.note({"qa.cache.hit": found is not None, "qa.cache.mode": options.cache})
        if reads_cache:
            clock.cache = perf_counter() - begun
        if found is None:
            # A question may join a running computation only if nothing has changed since the computation started.
            state = (self._freshness.generation, self._freshness.writes)
            found = await self.flights.run(
                (digest, state, options.cache, options.coverage, last_try),
                lambda: self._cached.answer(question, plan, digest, generation=generation, last_try=last_try),
                joint=fresh,
            )
            clock = replace(found.clock, cache=max(found.clock.cache, clock.cache))
            if found.unsure:
                self._unanswered.note(question.text, options.collection, found.score)
        timings = clock.timings(begun)
        return Outcome(question, found.body, found.etag, found.cache, timings, found.answerable, digest, found.partial)

    async def _guided(self, question: Question, without: frozenset[Shard]) -> Question:
        """Return the question with the pin and the synonyms of its collection. A question with a filter gets no pin.

        The shards in `without` are not asked for pins and synonyms.
        """
        guide = await self._guidance.of(question.options.collection, without)
        pin = guide.pins.get(question.folded) if question.chosen is None else None
        name = f"{pin_digest(pin)} {guide.digest}".strip()
        return replace(question, pin=pin, expansion=guide.expansion(question.text), guide=name) if name else question

    async def plan(self, question: Question) -> ReadingPlan:
        """Return the reading plan of a question, with the readers that the shards have loaded.

        The stages come from the plan that the question names, or else from the process's plan. If the question names a
        model, the plan has only the first stage, and this model reads in it. A later stage is left out while its reader
        is not loaded. The names of cached answers then contain the digest of the shorter plan.

        Raises:
            NotFound: the model that the question names is not loaded.
            InvalidInput: the model that the question names is an encoder.
            ModelError: the reader of the first stage is not loaded, or ``retriever=meaning`` has no encoder.
        """
        options = question.options
        retriever = self._vectors.retriever(options.retriever)
        ranking = () if retriever == WORDS else self._vectors.ranking
        stages: list[ReadingStage] = []
        named = PLANS[options.plan] if options.plan else self._plan
        for template in named[:1] if options.model else named:
            name = options.model or template.model
            try:
                reader = await self._readers.find(name, STAGE_ASK_AGAIN_SECONDS if stages else ASK_AGAIN_SECONDS)
            except NotFound as error:
                if options.model:
                    raise
                if not stages:
                    raise ModelError(f"the first stage of the reading plan has no reader: {error}") from error
                self._warn_left_out(name, error)
                continue
            self._left_out.discard(name)
            stages.append(template.stage(reader, question.retriever_k, stops_early=options.waves))
        return ReadingPlan(tuple(stages), retriever, ranking)

    def _warn_left_out(self, name: str, why: NotFound) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            _log.warning("a stage of the reading plan is left out until its reader is loaded: %s", why)
