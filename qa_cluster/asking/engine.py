"""Combines what one process needs to ask and write: connections, freshness, caches, manifests of readers, documents.

The REST service and the cluster client each hold one engine. When an engine opens, it reads the topology, the number of
partitions and the manifest of the default reader. When a shard reports a change, the engine reads the number of
partitions and the manifest again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from qa_cluster.access.limits import KeyUse
from qa_cluster.access.store import ApiKeys
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ModelError, ReplyError
from qa_cluster.keys import MAX_PARTITIONS, PARTITIONS_KEY, Partitioning
from qa_cluster.options.questions import AskOptions, SearchOptions
from qa_cluster.ranking.ranker import Ranker
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.plan import DEFAULT_PLAN, StageOptions
from qa_cluster.routing.admission import SPARE_TURNS, Admission
from qa_cluster.routing.connection import Login
from qa_cluster.routing.readiness import ShardNotReady
from qa_cluster.routing.shards import ShardDown, Shards
from qa_cluster.shard_functions import PARTITIONS_TRIGGER
from qa_cluster.topology import Address
from qa_cluster.types import LoadedModel

from .answers.answer_cache import AnswerCache, Watches
from .answers.answering import Answering
from .answers.caching import CachedAnswers
from .answers.near_cache import NearCache
from .answers.submissions import SubmittedQuestions
from .asker import Asker, Outcome
from .collections import Collections
from .document_fields import DocumentFields
from .document_list import DocumentList
from .document_removal import CollectionRemoval
from .document_store import DocumentStore
from .editors.feedback import FeedbackLimits, FeedbackStore, UnansweredLog
from .editors.guidance import Guidance
from .freshness import Freshness
from .loaded_readers import SHARD_TIMEOUT_SECONDS, LoadedReaders, list_models, read_manifest
from .questions import AskLimits
from .remote_encoder import RemoteEncoder
from .remote_pipeline import RemotePipeline
from .searcher import Searcher, SearchOutcome

# A request may take this much longer than its timeout, because its body arrives slowly, the client pauses, or the
# request is retried.
KEY_USE_MARGIN_SECONDS = 60.0

_log = logging.getLogger(__name__)

# The maximum number of this process's questions that the shards answer at the same time is `_QUESTIONS_PER_PARTITION`
# times the number of partitions, but at least `_FEWEST_AT_ONCE` and at most `_QUESTIONS_AT_ONCE`. With more questions,
# the shards would not be faster, and a question with a second wave would wait behind more first waves.
_QUESTIONS_PER_PARTITION = 2
_FEWEST_AT_ONCE = 8
_QUESTIONS_AT_ONCE = 64
_MAX_WAITING_QUESTIONS = 1024
_NEAR_CACHE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine.

    Attributes:
        near_cache_entries: the maximum number of answers in the near cache; 0 turns it off.
        near_cache_ttl_seconds: the time after which answers expire in the near cache of this process.
        whole_answer_ttl_seconds: the time after which answers expire in the answer cache on the shards.
        answer_drift: the relative change of a term's weight that invalidates a cached answer.
        plan: the stages of the reading plan.
        connections_per_shard: the maximum number of this process's connections to one shard for rankings and for
            commands that block. Other commands share one more connection.
        max_waiting_per_shard: the maximum number of new rankings and blocking commands that wait for one of these
            connections.
        pipeline_max_requests: the maximum number of concurrent `qa.pipeline` requests, which contain their own
            contexts.
        shard_patience_seconds: the longest time that a request with ``coverage=partial`` waits for a shard whose server
            or worker is gone or stopped.
        feedback: the limits for feedback and unanswered questions.
    """

    near_cache_entries: int = Settings.near_cache_entries
    near_cache_ttl_seconds: int = Settings.near_cache_ttl_s
    whole_answer_ttl_seconds: int = Settings.whole_answer_ttl_s
    answer_drift: float = Settings.answer_drift
    plan: tuple[StageOptions, ...] = DEFAULT_PLAN
    limits: AskLimits = field(default_factory=AskLimits)
    connections_per_shard: int = _QUESTIONS_AT_ONCE + SPARE_TURNS
    max_waiting_per_shard: int = 256
    pipeline_max_requests: int = Settings.pipeline_max_requests
    shard_patience_seconds: float = Settings.shard_patience_ms / 1000
    feedback: FeedbackLimits = field(default_factory=FeedbackLimits)


class Engine:
    """Asks and writes on one cluster. `Engine.open` creates an engine, and `aclose` closes it."""

    def __init__(
        self,
        shards: Shards,
        freshness: Freshness,
        partitions: Partitioning,
        manifest: Manifest | None,
        options: EngineOptions,
    ) -> None:
        self.shards = shards
        self.freshness = freshness
        self.partitions = partitions
        self.near = NearCache(
            max_entries=options.near_cache_entries,
            max_bytes=_NEAR_CACHE_BYTES,
            ttl_seconds=options.near_cache_ttl_seconds,
        )
        ttl_seconds = options.whole_answer_ttl_seconds
        watches = Watches(shards, partitions, ttl_seconds, options.answer_drift)
        self._answers = AnswerCache(shards, watches, partitions, ttl_seconds)
        freshness.on_dropped.append(self.near.discard)
        self.readers = LoadedReaders(shards, manifest)
        self.vectors = RemoteEncoder(shards)
        self._ranker = Ranker(shards, partitions, self.vectors)
        self.collections = Collections(shards, freshness, partitions)
        self.fields = DocumentFields(shards, partitions, self.collections)
        self.admission = Admission(questions_at_once(partitions.number), _MAX_WAITING_QUESTIONS)
        self.guidance = Guidance(shards, freshness, self.collections, partitions)
        self.feedback = FeedbackStore(shards, self.collections, partitions, options.feedback)
        self.unanswered = UnansweredLog(shards, self.collections, partitions, options.feedback)
        answering = Answering(
            shards, self._ranker, watches, self.admission, answer_max_bytes=options.limits.answer_max_bytes
        )
        self.asker = Asker(
            shards,
            freshness,
            self.readers,
            CachedAnswers(shards, freshness, self.near, self._answers, answering),
            collections=self.collections,
            fields=self.fields,
            vectors=self.vectors,
            guidance=self.guidance,
            unanswered=self.unanswered,
            follow=self._follow,
            limits=options.limits,
            plan=options.plan,
        )
        self.searcher = Searcher(
            shards,
            self._ranker,
            collections=self.collections,
            fields=self.fields,
            vectors=self.vectors,
            guidance=self.guidance,
            follow=self._follow,
            limits=options.limits,
        )
        self.documents = DocumentStore(shards, partitions, self.collections, self.vectors)
        self.listing = DocumentList(shards, partitions, self.collections, self.fields)
        self.collection_removal = CollectionRemoval(shards, self.collections, self.documents)
        self.api_keys = ApiKeys(shards, freshness, partitions)
        self.key_use = KeyUse(shards, options.limits.timeout_ms_max / 1000 + KEY_USE_MARGIN_SECONDS)
        self.submissions = SubmittedQuestions(shards)
        self.pipeline = RemotePipeline(shards, most=options.pipeline_max_requests)
        self._manifest_changes = freshness.manifest_changes
        self._reloading = asyncio.Lock()

    @classmethod
    async def open(cls, seeds: Sequence[Address], login: Login, options: EngineOptions | None = None) -> Engine:
        """Connect to the cluster. If the shards have no reader, the engine opens, but its questions fail.

        `seeds` are the addresses of one or more servers of the cluster.

        Raises:
            ClusterError: the cluster cannot be reached or is not set up.
            ModelError: the manifest of the default reader is unusable.
        """
        options = options or EngineOptions()
        shards = Shards(
            seeds,
            login,
            connections_per_shard=options.connections_per_shard,
            max_waiting_per_shard=options.max_waiting_per_shard,
            patience_seconds=options.shard_patience_seconds,
        )
        partitions = Partitioning()
        freshness = Freshness(shards, partitions)
        try:
            await shards.open()
            await freshness.start()  # its first checks detect the shards that are down
            partitions.number = await _partitions(shards)
            engine = cls(shards, freshness, partitions, await read_manifest(shards), options)
            await engine.vectors.reread()
            return engine
        except BaseException:
            await freshness.aclose()
            await shards.aclose()
            raise

    async def aclose(self) -> None:
        """Finish the pending writes (cached answers, the log of unanswered questions) and close all connections."""
        await self.vectors.aclose()
        await self.unanswered.aclose()
        await self._answers.aclose()
        await self.freshness.aclose()
        await self.shards.aclose()

    async def ask(self, text: object, options: AskOptions | None = None) -> Outcome:
        """Answer a question with the reading plan of this process, or with the plan or model that the options name."""
        return await self.asker.ask(text, options)

    async def search(self, text: object, options: SearchOptions | None = None) -> SearchOutcome:
        """Return the sentences that match a query best. A search needs no reader."""
        return await self.searcher.search(text, options)

    @property
    def rankings(self) -> int:
        """The number of rankings that this process has computed."""
        return self._ranker.rankings

    async def models(self) -> list[LoadedModel]:
        """Return the models that the shards have loaded, the default reader first."""
        return await list_models(self.shards)

    async def _follow(self) -> None:
        if self.freshness.manifest_changes == self._manifest_changes:
            return
        async with self._reloading:
            changes = self.freshness.manifest_changes
            if changes == self._manifest_changes:
                return
            try:
                await self.readers.reread()
            except ModelError as error:
                _log.warning("the model's manifest cannot be read: %s", error)
                self.readers.default_or_none = None
            await self.vectors.reread()
            await self._follow_partitions()
            self._manifest_changes = changes

    async def _follow_partitions(self) -> None:
        try:
            number = await _partitions(self.shards)
        except ClusterError as error:
            _log.warning("cannot read the number of partitions, keeping the old number: %s", error)
            return
        if number != self.partitions.number:
            _log.warning("the cluster has %d partitions now, it had %d", number, self.partitions.number)
            self.partitions.number = number
            self.admission.at_once = questions_at_once(number)
            self.freshness.invalidate()


def questions_at_once(partitions: int) -> int:
    """Return the maximum number of questions of this process that the shards answer at the same time."""
    return min(_QUESTIONS_AT_ONCE, max(_FEWEST_AT_ONCE, _QUESTIONS_PER_PARTITION * partitions))


async def _partitions(shards: Shards) -> int:
    try:
        shards.readiness.check([shards.shard_of_key(PARTITIONS_KEY).address])
        raw = await shards.execute(PARTITIONS_KEY, "GET", PARTITIONS_KEY)
    except (ShardDown, ShardNotReady):
        raw = await _remembered_partitions(shards)
        if raw is None:
            raise
    if raw is None or not raw.isdigit() or not 1 <= int(raw) <= MAX_PARTITIONS:
        raise ClusterError(f"the cluster has no {PARTITIONS_KEY}: set it up for questions with qa-cluster up")
    return int(raw)


async def _remembered_partitions(shards: Shards) -> bytes | None:
    """Return the number of partitions that a worker remembers, for use while the shard of `PARTITIONS_KEY` is down.

    The number is returned in decimal digits. The result is None if no worker remembers it.
    """
    for shard in shards.up:
        try:
            async with asyncio.timeout(SHARD_TIMEOUT_SECONDS):
                reply = await shards.execute_on(shard, "RG.TRIGGER", PARTITIONS_TRIGGER, blocking=True)
        except (ReplyError, ClusterError, TimeoutError):
            continue
        if isinstance(reply, list) and len(reply) == 1 and isinstance(reply[0], bytes) and reply[0] != b"0":
            return reply[0]
    return None
