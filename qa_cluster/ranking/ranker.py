"""Ranks the sentences of the corpus for a question by the indexes of all partitions.

Each partition has an index of its own. The ranker asks all of them twice, in one pipeline to each shard:

1. how many of their sentences contain each term of the question (`statistics_commands`);
2. with the sums of the whole corpus, for their best sentences (`rank_commands`).

By meaning, a shard computes the vector of the question during the first pipeline, and the second one carries it.

A write may come between the two pipelines. The ranking then scores the new sentences with the earlier frequencies, and
records the state of each index (`RankedPartition.next_id`). An answer from such a ranking is cached only if the indexes
are still in this state (``QA.INDEX.WATCH``). If a partition moves between the pipelines, the second one is refused, and
the caller ranks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn, Protocol

from qa_cluster.errors import ClusterError, MissingRights, ReplyError
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    collection_prefix,
    epoch_key,
    flight_key,
    index_key,
    layout_key,
    partition_tags,
    slot,
)
from qa_cluster.off_loop import off_loop
from qa_cluster.topology import Address, Shard, Topology
from qa_cluster.tracing import step

from .bm25 import FoundSentence, RankedPartition, Ranking, best_of
from .filters import Filter
from .meaning import MEANING, WORDS, QuestionVector
from .terms import ANALYZER_VERSION, question_terms

Command = tuple[str | int | bytes, ...]

# What a user needs on every shard to rank: docs/access.md has the same list.
RIGHTS = "(+mget %R~epoch:* %R~flight:*) (+hget %R~layout:*) (+qa.index.stats +qa.index.rank %R~index:*)"
# Error codes of a server or module that cannot run the commands of a ranking, whenever they are sent again.
_UNABLE = frozenset({"ERR", "WRONGTYPE"})
_COMMANDS_OF_STATISTICS = 3
# An index adds up floats in another order.
ROUNDING = 1e-6
# Bytes of a ranked sentence in the reply of an index.
HIT_BYTES = 64

_log = logging.getLogger(__name__)


class Pipelines(Protocol):
    """The part of `routing.shards.Shards` that a ranking needs."""

    @property
    def topology(self) -> Topology:
        """The last known topology of the cluster."""

    async def execute_pipelines(
        self, commands: Mapping[Address, Sequence[Command]], *, admitted: bool = False
    ) -> list[list[Any]]:
        """Run the commands for each server in a pipeline; an error is returned in the place of a reply."""


class Vectors(Protocol):
    """The part of `asking.remote_encoder.RemoteEncoder` that a ranking needs."""

    async def of(self, text: str, without: Collection[Shard]) -> QuestionVector | None:
        """The vector of a question; None if no shard can compute it now."""


class Ranker:
    """Ranks the corpus of one cluster.

    Attributes:
        rankings: how many rankings this process has made.
    """

    def __init__(self, shards: Pipelines, partitions: int, vectors: Vectors | None = None) -> None:
        self._shards = shards
        self._vectors = vectors
        self.rankings = 0
        self._warned = ""
        self.set_partitions(partitions)

    def set_partitions(self, partitions: int) -> None:
        """Rank this number of partitions from now on."""
        self._tags = partition_tags(partitions)
        self._placed: tuple[Topology | None, dict[Address, list[str]]] = (None, {})

    async def rank(
        self,
        text: str,
        count: int,
        chosen: Filter | None = None,
        collection: str = DEFAULT_COLLECTION,
        without: Collection[Shard] = (),
        *,
        retriever: str = WORDS,
        distinct: bool = False,
    ) -> Ranking:
        """The `count` best sentences of a collection, from the documents that the filter admits.

        Args:
            without: the shards that are not asked: the ranking lacks their documents.
            retriever: by what sentences are ranked (`RETRIEVERS`). If no shard can compute the vector of the question,
                the ranking is by words.
            distinct: whether each passage counts once, with its best sentence.

        Raises:
            ReplyError: a shard refused for the moment, or has redirected: rank again.
            MissingRights: the cluster's user may not rank; the text names what to grant.
            ClusterError: a shard cannot rank, or its reply cannot be read.
        """
        with step("rank") as ranked:
            left_out = {shard.address for shard in without}
            on_shard = {address: tags for address, tags in self._tags_on_shards().items() if address not in left_out}
            tags = [tag for found in on_shard.values() for tag in found]
            terms = question_terms(text) if retriever != MEANING else []
            asked = {address: statistics_commands(found, terms, collection) for address, found in on_shard.items()}
            replies, vector = await asyncio.gather(self._ask(asked), self._vector(text, retriever, without))
            packed = b"" if chosen is None else chosen.packed
            with _readable():
                statistics = parse_statistics(tags, terms, replies, collection)
                commands = iter(rank_commands(statistics, count, packed, vector, distinct=distinct))
                asked = {address: list(islice(commands, len(found))) for address, found in on_shard.items()}
            replies = await self._ask(asked, admitted=True)
            with _readable():
                found = sum(len(reply[3]) for reply in replies)
                ranking = await off_loop(found * HIT_BYTES, ranking_of, statistics, replies, count, vector)
            self._warn_if_reindexing(statistics)
            self.rankings += 1
            if ranked is not None:
                ranked.note({"qa.rank.candidates": len(ranking.candidates)})
            return ranking

    async def _vector(self, text: str, retriever: str, without: Collection[Shard]) -> QuestionVector | None:
        if retriever == WORDS or self._vectors is None:
            return None
        with step("embed"):
            return await self._vectors.of(text, without)

    def _tags_on_shards(self) -> Mapping[Address, list[str]]:
        """The partitions on each shard, by the topology that is known now."""
        topology, found = self._placed
        if topology is not self._shards.topology:
            topology, found = self._shards.topology, {}
            for tag in self._tags:
                found.setdefault(topology.shard_of(slot(tag)).address, []).append(tag)
            self._placed = topology, found
        return found

    async def _ask(self, commands: Mapping[Address, Sequence[Command]], *, admitted: bool = False) -> list[Any]:
        """The replies of all shards in one list; an error reply is raised."""
        replies = await self._shards.execute_pipelines(commands, admitted=admitted)
        for (address, asked), each in zip(commands.items(), replies, strict=True):
            for command, reply in zip(asked, each, strict=True):
                if isinstance(reply, ReplyError):
                    _refuse(address, command, reply)
        return [reply for each in replies for reply in each]

    def _warn_if_reindexing(self, statistics: Statistics) -> None:
        """Log once that partitions have terms of another analyzer version, and again when this state returns."""
        stale = statistics.stale
        warning = f"{len(stale)} partitions, {stale[0][0]} with terms of {stale[0][1]}" if stale else ""
        if warning and not self._warned:
            _log.warning(
                "%s, this process has analyzer %s: until both are of one version, questions may miss sentences, and"
                " their answers are not cached",
                warning,
                ANALYZER_VERSION,
            )
        self._warned = warning


def _refuse(address: Address, command: Command, reply: ReplyError) -> NoReturn:
    """Raise the error for a command that a shard has refused."""
    what = " ".join(map(_text, command[:2]))
    if reply.code == "NOPERM":
        raise MissingRights(
            f"the cluster's user may not rank: shard {address} refused {what}: {reply}. Grant it {RIGHTS}"
        ) from reply
    if reply.code in _UNABLE:
        raise ClusterError(f"shard {address} cannot rank, it refused {what}: {reply}"[:300]) from reply
    raise reply


@contextmanager
def _readable() -> Iterator[None]:
    """Raise ClusterError for replies in an unknown form, such as those of another version of the module."""
    try:
        yield
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ClusterError(f"a shard's replies to a ranking cannot be read: {error!r}"[:300]) from error


@dataclass(frozen=True, slots=True)
class Statistics:
    """How often the terms of a question occur in a collection.

    Attributes:
        tags: the partitions. The attributes below have one element for each partition, in the same order.
        sentences: the number of sentences.
        frequencies: for each term, the number of sentences that contain it.
        analyzers: the version of the analyzer that made the terms; None until the first sweep has ended.
    """

    tags: tuple[str, ...]
    terms: tuple[str, ...]
    epochs: tuple[int, ...]
    sentences: tuple[int, ...]
    frequencies: tuple[tuple[int, ...], ...]
    analyzers: tuple[str | None, ...]
    collection: str = DEFAULT_COLLECTION

    @property
    def sums(self) -> list[int]:
        """For each term, the number of sentences in all these partitions that contain it."""
        return [sum(column) for column in zip(*self.frequencies, strict=True)] or [0] * len(self.terms)

    @property
    def stale(self) -> list[tuple[str, str]]:
        """The tags of partitions whose terms come from another analyzer version, each with a text that names it."""
        return [
            (tag, "an unknown analyzer" if analyzer is None else f"analyzer {analyzer}")
            for tag, sentences, analyzer in zip(self.tags, self.sentences, self.analyzers, strict=True)
            if sentences and analyzer != ANALYZER_VERSION
        ]


def statistics_commands(
    tags: Iterable[str], terms: Sequence[str], collection: str = DEFAULT_COLLECTION
) -> list[Command]:
    """The commands of the first pipeline; `parse_statistics` reads their replies."""
    commands: list[Command] = []
    for tag in tags:
        # A server refuses a command of two keys while their slot is migrating.
        commands.append(("MGET", epoch_key(tag, collection), flight_key(tag)))
        commands.append(("QA.INDEX.STATS", index_key(tag, collection), "TERMS", len(terms), *terms))
        commands.append(("HGET", layout_key(tag), "analyzer"))
    return commands


def parse_statistics(
    tags: Sequence[str], terms: Sequence[str], replies: Sequence[Any], collection: str = DEFAULT_COLLECTION
) -> Statistics:
    """Read the replies to `statistics_commands` for the same tags, terms and collection."""
    epochs, found, analyzers = (replies[first::_COMMANDS_OF_STATISTICS] for first in range(_COMMANDS_OF_STATISTICS))
    return Statistics(
        tuple(tags),
        tuple(terms),
        tuple(int(epoch or 0) for epoch, _ in epochs),
        tuple(each[0] for each in found),
        tuple(tuple(each[2]) for each in found),
        tuple(None if analyzer is None else _text(analyzer) for analyzer in analyzers),
        collection,
    )


def rank_commands(
    statistics: Statistics,
    count: int,
    packed_filter: bytes = b"",
    vector: QuestionVector | None = None,
    *,
    distinct: bool = False,
) -> list[Command]:
    """The commands of the second pipeline, one for each partition; a filter is in its binary form.

    With `distinct`, an index returns only the best sentence of each passage.
    """
    options: Command = (
        *(("FILTER", packed_filter) if packed_filter else ()),
        *(() if vector is None else vector.arguments),
        *(("DISTINCT",) if distinct and vector is not None else ()),
    )
    words = [word for pair in zip(statistics.terms, statistics.sums, strict=True) for word in pair]
    corpus, terms = sum(statistics.sentences), ("TERMS", len(statistics.terms), *words)
    return [
        ("QA.INDEX.RANK", index_key(tag, statistics.collection), count, corpus, *options, *terms)
        for tag in statistics.tags
    ]


def ranking_of(
    statistics: Statistics, replies: Sequence[Any], count: int, vector: QuestionVector | None = None
) -> Ranking:
    """Make a ranking from the replies to `rank_commands`."""
    parts: dict[str, RankedPartition] = {}
    hits: list[tuple[float, float, str, Any, int]] = []
    rows = zip(statistics.tags, statistics.sentences, statistics.frequencies, replies, strict=True)
    for tag, sentences, frequencies, (_, _, _, found, (identity, next_id), places, *passages) in rows:
        parts[tag] = RankedPartition(sentences, frequencies, identity, next_id)
        by_meaning = [0.0] * len(found)
        if vector is not None:
            by_meaning = [vector.score(None if row[0] is None else float(row[0])) for row in passages[0]]
        hits += [
            (float(hit[2]) + meaning, meaning, tag, hit, place)
            for hit, meaning, place in zip(found, by_meaning, places, strict=True)
        ]
    # Only the sentences that may be among the best are scored again.
    least = sorted((hit[0] for hit in hits), reverse=True)[:count][-1] - ROUNDING if hits else 0.0
    prefix = collection_prefix(statistics.collection)
    best = [
        FoundSentence(f"{prefix}{_text(document)}:{{{tag}}}:{number}", list(map(float, weights)), place, meaning)
        for score, meaning, tag, (document, number, _, weights), place in hits
        if score >= least
    ]
    sentences, sums = sum(statistics.sentences), statistics.sums
    return Ranking(
        best_of(best, sentences, sums, count),
        dict(zip(statistics.tags, statistics.epochs, strict=True)),
        sentences,
        statistics.terms,
        tuple(sums),
        parts,
        reindexing=bool(statistics.stale),
        vector=vector,
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
