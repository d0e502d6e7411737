"""Everything one process needs to ask and write: connections, freshness, caches, model manifest, documents.

The REST service and the cluster client each hold one. It follows the cluster: topology, partitions and the manifest of
the model are read when it opens, and the manifest again whenever a shard says that it has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from qa_cluster.answer_cache import AnswerCache
from qa_cluster.asking import Asker, Outcome
from qa_cluster.connection import ConnectionLost, Login, ReplyError
from qa_cluster.document_store import DocumentStore
from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.freshness import Freshness
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import MAX_PARTITIONS, PARTITIONS_KEY, manifest_key, partition_tags
from qa_cluster.manifest import Manifest
from qa_cluster.near_cache import NearCache
from qa_cluster.questions import AskLimits, AskOptions
from qa_cluster.shards import Shards
from qa_cluster.topology import Address, Shard

READER_TRIGGER = "qa.reader"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine may use.

    Attributes:
        near_cache_entries, near_cache_bytes: bounds of the near cache; 0 turns it off.
        waves: how many sentences have been read after each wave.
        connections_per_shard: questions that are at one shard at the same time.
        max_waiting_per_shard: questions that may wait for such a connection.
    """

    near_cache_entries: int = 10_000
    near_cache_bytes: int = 64 * 1024 * 1024
    near_cache_ttl_seconds: int = 300
    answer_ttl_seconds: int = 3600
    waves: tuple[int, ...] = (1, 3, 8)
    limits: AskLimits = field(default_factory=AskLimits)
    connections_per_shard: int = 64
    max_waiting_per_shard: int = 256


class Engine:
    """Asks and writes. Made by `Engine.open`, closed by `aclose`."""

    def __init__(
        self, shards: Shards, freshness: Freshness, partitions: int, manifest: Manifest | None, options: EngineOptions
    ) -> None:
        self.shards = shards
        self.freshness = freshness
        self.partitions = partitions
        self.near = NearCache(
            max_entries=options.near_cache_entries,
            max_bytes=options.near_cache_bytes,
            ttl_seconds=options.near_cache_ttl_seconds,
        )
        self._answers = AnswerCache(shards, partitions, options.answer_ttl_seconds)
        self.asker = Asker(
            shards,
            freshness,
            self.near,
            self._answers,
            manifest,
            partitions=partitions,
            follow=self._follow,
            limits=options.limits,
            waves=options.waves,
        )
        self.documents = DocumentStore(shards, partitions)
        self._manifest_changes = freshness.manifest_changes
        self._reloading = asyncio.Lock()

    @classmethod
    async def open(cls, seeds: Sequence[Address], login: Login, options: EngineOptions | None = None) -> Engine:
        """Connect; ClusterError says what the cluster lacks. A model may come later: until then only `ask` fails."""
        options = options or EngineOptions()
        shards = Shards(
            seeds,
            login,
            connections_per_shard=options.connections_per_shard,
            max_waiting_per_shard=options.max_waiting_per_shard,
        )
        freshness = Freshness(shards)
        try:
            await shards.open()
            partitions = await _partitions(shards)
            await freshness.start(partition_tags(partitions))
            return cls(shards, freshness, partitions, await read_manifest(shards), options)
        except BaseException:
            await freshness.aclose()
            await shards.aclose()
            raise

    async def aclose(self) -> None:
        """Finish the cache stores under way and close all connections."""
        await self._answers.aclose()
        await self.freshness.aclose()
        await self.shards.aclose()

    async def ask(self, text: object, options: AskOptions | None = None) -> Outcome:
        """Answer a question, by the model that is on the shards now."""
        return await self.asker.ask(text, options)

    async def _follow(self) -> None:
        if self.freshness.manifest_changes == self._manifest_changes:
            return
        async with self._reloading:
            changes = self.freshness.manifest_changes
            if changes == self._manifest_changes:
                return
            try:
                self.asker.manifest = await read_manifest(self.shards)
            except ModelError as error:
                _log.warning("the model's manifest cannot be read: %s", error)
                self.asker.manifest = None
            await self._follow_partitions()
            self._manifest_changes = changes

    async def _follow_partitions(self) -> None:
        try:
            partitions = await _partitions(self.shards)
        except ClusterError as error:
            _log.warning("partitions stay as they were: %s", error)
            return
        if partitions != self.partitions:
            _log.warning("the cluster has %d partitions now, it had %d", partitions, self.partitions)
            self.partitions = self._answers.partitions = self.documents.partitions = partitions
            self.asker.set_partitions(partitions)
            self.freshness.set_tags(partition_tags(partitions))


async def _partitions(shards: Shards) -> int:
    raw = await shards.execute(PARTITIONS_KEY, "GET", PARTITIONS_KEY)
    if raw is None or not raw.isdigit() or not 1 <= int(raw) <= MAX_PARTITIONS:
        raise ClusterError(f"the cluster has no {PARTITIONS_KEY}: it was not set up for questions (qa-cluster up)")
    return int(raw)


async def read_manifest(shards: Shards) -> Manifest | None:
    """The manifest of the model on the shards, None without a model; ModelError when it is unusable."""
    for shard in shards.all:
        raw = await shard_manifest(shards, shard)
        if raw is not None:
            return Manifest.from_json(raw)
    for shard in shards.all:
        raw = await manifest_in_use(shards, shard)
        if raw is not None:
            return Manifest.from_json(raw)
    return None


async def shard_manifest(shards: Shards, shard: Shard) -> bytes | None:
    """The text of the manifest on one shard, None where there is none."""
    key = manifest_key(shard_tag(shards.topology.ranges_of(shard)))
    try:
        raw = await shards.execute(key, "GET", key)
    except ReplyError as error:
        raise ClusterError(f"shard {shard.address} refused to show its model: {error}") from error
    return raw if isinstance(raw, bytes) else None


async def manifest_in_use(shards: Shards, shard: Shard) -> bytes | None:
    """The manifest of what a shard answers with now, None for nothing.

    While slots move that may be a reader whose keys are on another shard already.
    """
    try:
        reply = await shards.execute_on(shard, "RG.TRIGGER", READER_TRIGGER, blocking=True)
    except (ReplyError, ConnectionLost):
        return None
    found = reply[0] if isinstance(reply, list) and len(reply) == 1 else None
    return found if isinstance(found, bytes) and found else None
