"""Ranks the sentences of the corpus for a question with the indexes of all partitions.

Each partition has its own index. The ranker asks all indexes twice, with one pipeline to each shard:

1. How many sentences contain each term of the question (`statistics_commands`)?
2. Which are the best sentences, by the statistics of the whole corpus (`rank_commands`)?

For a ranking by meaning, a shard computes the vector of the question during the first pipeline, and the second pipeline
contains this vector.

A write may come between the two pipelines. The ranking then scores the new sentences with the old frequencies, and
records the state of each index (`RankedPartition.next_id`). An answer from such a ranking is cached only if the indexes
are still in this state (``QA.INDEX.WATCH``). If a partition moves between the pipelines, the second pipeline is
refused, and the caller ranks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn, Protocol

from qa_cluster.errors import ClusterError, MissingRights, ReplyError
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    Partitioning,
    collection_prefix,
    epoch_key,
    flight_key,
    index_key,
    layout_key,
    slot,
)
from qa_cluster.off_loop import off_loop
from qa_cluster.topology import Address, Shard, Topology
from qa_cluster.tracing import step

from .bm25 import Candidate, RankedPartition, Ranking, best_of
from .expansion import Expansion, stems_of_prefix
from .filters import Filter
from .meaning import MEANING, WORDS, QuestionVector
from .terms import ANALYZER_VERSION, question_terms

Command = tuple[str | int | bytes, ...]

# The rights that a user needs on every shard to rank. docs/access.md has the same list.
RIGHTS = "(+mget %R~epoch:* %R~flight:*) (+hget %R~layout:*) (+qa.index.stats +qa.index.rank %R~index:*)"
COMPLETE_RIGHTS = "(+qa.index.complete +qa.index.stats %R~index:*)"
# Error codes of a server or module that can never run the commands of a ranking, so a retry does not help.
_UNABLE = frozenset({"ERR", "WRONGTYPE"})
_COMMANDS_OF_STATISTICS = 3
# Tolerance for rounding differences, because an index adds up floats in a different order.
ROUNDING = 1e-6
# The approximate size of a ranked sentence in the reply of an index, in bytes.
HIT_BYTES = 64

_log = logging.getLogger(__name__)


class Pipelines(Protocol):
    """The part of `routing.shards.Shards` that a ranking uses."""

    @property
    def topology(self) -> Topology:
        """The last known topology of the cluster."""

    async def execute_pipelines(
        self, commands: Mapping[Address, Sequence[Command]], *, admitted: bool = False
    ) -> list[list[Any]]:
        """Run the commands for each server in a pipeline. An error reply is returned in place of the reply.

        The result has a list of replies for each server, in the order of `commands`. Commands that are `admitted` wait
        for a connection regardless of the number of waiting commands. Other commands can be refused with QueueFull.
        """


class Vectors(Protocol):
    """The part of `asking.remote_encoder.RemoteEncoder` that a ranking uses."""

    async def of(self, text: str, without: Collection[Shard]) -> QuestionVector | None:
        """Return the vector of a question; None if no shard can compute it now. Shards in `without` are not asked."""


class Ranker:
    """Ranks the corpus of one cluster. `rankings` counts the rankings of this process."""

    def __init__(self, shards: Pipelines, partitions: Partitioning, vectors: Vectors | None = None) -> None:
        self._shards = shards
        self._vectors = vectors
        self.rankings = 0
        self._warned = ""
        self._partitions = partitions
        self._placed: tuple[Topology | None, tuple[str, ...], dict[Address, list[str]]] = (None, (), {})

    async def rank_each(
        self,
        text: str,
        count: int,
        chosen: Filter | None,
        collections: Sequence[str],
        without: Collection[Shard] = (),
        *,
        unreadable: Callable[[], frozenset[Shard]] = frozenset,
        retriever: str = WORDS,
        distinct: bool = False,
        expansion: Expansion | None = None,
    ) -> list[Ranking]:
        """Return the `count` best sentences of each collection, from documents that satisfy the filter `chosen`.

        The rankings are in the order of `collections`. If `chosen` is None, all documents are ranked. All scores are
        comparable, because they use the statistics of all these collections together.

        Args:
            without: the shards that are not asked; the rankings lack their documents.
            unreadable: called after the shards have ranked; returns the shards whose workers cannot read now. If one of
                their sentences is among the best, all their sentences are left out (`Ranking.left_out`).
            retriever: how sentences are ranked (`RETRIEVERS`). While no shard can compute the vector, ``both`` ranks by
                words only, and ``meaning`` finds no sentence.
            distinct: whether a ranking by meaning has only the best sentence of each passage.
            expansion: the terms of the ranking by words; None: the terms of the text.

        Raises:
            ReplyError: a shard refused the command temporarily, or has redirected it: rank again.
            MissingRights: the cluster's user may not rank; the text names the rights to grant.
            ClusterError: a shard cannot rank, or its reply cannot be parsed.
        """
        with step("rank") as ranked:
            on_shard = self._asked(without)
            terms: Sequence[str] = () if retriever == MEANING else question_terms(text)
            if expansion is not None and retriever != MEANING:
                terms = expansion.terms
            asked = {
                address: [each for name in collections for each in statistics_commands(found, terms, name)]
                for address, found in on_shard.items()
            }
            replies, vector = await asyncio.gather(self._ask(asked), self._vector(text, retriever, without))
            packed = b"" if chosen is None else chosen.packed
            with _readable():
                statistics = _by_collection(on_shard, terms, replies, collections)
                corpus = Corpus.of(statistics, expansion)
                asked = {address: [] for address in on_shard}
                for each in statistics:
                    commands = iter(rank_commands(each, count, packed, vector, distinct=distinct, corpus=corpus))
                    for address, found in on_shard.items():
                        asked[address] += islice(commands, len(found))
            replies = await self._ask(asked, admitted=True)
            with _readable():
                size = sum(len(reply[3]) for reply in replies) * HIT_BYTES
                parts = _regrouped(on_shard, replies, len(statistics))
                away = unreadable()
                rankings = [
                    await off_loop(size, self._readable_ranking, each, part, count, vector, corpus, away)
                    for each, part in zip(statistics, parts, strict=True)
                ]
            for each in statistics:
                self._warn_if_reindexing(each)
            self.rankings += 1
            if ranked is not None:
                ranked.note({"qa.rank.candidates": sum(len(ranking.candidates) for ranking in rankings)})
            return rankings

    async def completions(
        self, prefix: str, count: int, collections: Sequence[str], without: Collection[Shard] = ()
    ) -> list[str]:
        """Return up to `count` terms of the collections that may complete a word, the most frequent first.

        The terms start with the prefix, or belong to words that start with the prefix (`stems_of_prefix`). The shards
        in `without` are not asked. Errors are as in `rank_each`.
        """
        with step("complete"):
            on_shard, own = self._asked(without), stems_of_prefix(prefix)
            asked: dict[Address, list[Command]] = {address: [] for address in on_shard}
            for address, tags in on_shard.items():
                for key in [index_key(tag, name) for name in collections for tag in tags]:
                    asked[address].append(("QA.INDEX.COMPLETE", key, prefix, count))
                    asked[address].append(("QA.INDEX.STATS", key, "TERMS", len(own), *own))
            replies = await self._ask(asked)
            with _readable():
                return most_frequent_terms(own, replies, count)

    def _asked(self, without: Collection[Shard]) -> dict[Address, list[str]]:
        """Return the tags of the partitions on each shard. The shards in `without` are left out."""
        left_out = {shard.address for shard in without}
        return {address: tags for address, tags in self._tags_on_shards().items() if address not in left_out}

    def _readable_ranking(  # noqa: PLR0917 - the arguments of `ranking_of`
        self,
        statistics: Statistics,
        replies: Sequence[Any],
        count: int,
        vector: QuestionVector | None,
        corpus: Corpus,
        away: frozenset[Shard],
    ) -> Ranking:
        """Return the result of `ranking_of`, without sentences that cannot be read now.

        If a shard in `away` has a candidate, the sentences of all shards in `away` are left out.
        """
        ranking = ranking_of(statistics, replies, count, vector, corpus)
        if not away:
            return ranking
        shard_of = self._shards.topology.shard_of
        if not any(shard_of(slot(candidate.sentence)) in away for candidate in ranking.candidates):
            return ranking
        tags = [tag for tag in statistics.tags if shard_of(slot(tag)) in away]
        rest = ranking_of(statistics, replies, count, vector, corpus, left_out=tags)
        return replace(rest, left_out=away)

    async def _vector(self, text: str, retriever: str, without: Collection[Shard]) -> QuestionVector | None:
        if retriever == WORDS or self._vectors is None:
            return None
        with step("embed"):
            return await self._vectors.of(text, without)

    def _tags_on_shards(self) -> Mapping[Address, list[str]]:
        """Return the tags of the partitions on each shard, by the current topology."""
        topology, tags, found = self._placed
        if topology is not self._shards.topology or tags is not self._partitions.tags:
            topology, tags, found = self._shards.topology, self._partitions.tags, {}
            for tag in tags:
                found.setdefault(topology.shard_of(slot(tag)).address, []).append(tag)
            self._placed = topology, tags, found
        return found

    async def _ask(self, commands: Mapping[Address, Sequence[Command]], *, admitted: bool = False) -> list[Any]:
        """Return the replies of all shards in one list. An error reply is raised.

        The replies are in the order of the shards in `commands`. `admitted` is as in `Pipelines.execute_pipelines`.
        """
        replies = await self._shards.execute_pipelines(commands, admitted=admitted)
        for (address, asked), each in zip(commands.items(), replies, strict=True):
            for command, reply in zip(asked, each, strict=True):
                if isinstance(reply, ReplyError):
                    _refuse(address, command, reply)
        return [reply for each in replies for reply in each]

    def _warn_if_reindexing(self, statistics: Statistics) -> None:
        """Log once that partitions have terms of a different analyzer version.

        If this state ends and returns, the method logs it again.
        """
        stale = statistics.stale
        warning = ""
        if stale:
            tag, analyzer = stale[0]
            warning = f"terms of {len(stale)} partitions have a different version ({tag} has terms of {analyzer})"
        if warning and not self._warned:
            _log.warning(
                "%s, this process has analyzer %s: until both versions are equal, questions may miss sentences, and"
                " their answers are not cached",
                warning,
                ANALYZER_VERSION,
            )
        self._warned = warning


def _refuse(address: Address, command: Command, reply: ReplyError) -> NoReturn:
    """Raise the error for a command that a shard has refused.

    Raises:
        MissingRights: the cluster's user may not run the command.
        ClusterError: the server or its module can never run the command.
        ReplyError: any other error of the shard, which may be temporary.
    """
    what = " ".join(map(_text, command[:2]))
    if reply.code == "NOPERM":
        rights = COMPLETE_RIGHTS if command[0] == "QA.INDEX.COMPLETE" else RIGHTS
        raise MissingRights(
            f"the cluster's user may not rank: shard {address} refused {what}: {reply}. Grant it {rights}"
        ) from reply
    if reply.code in _UNABLE:
        raise ClusterError(f"shard {address} cannot rank, it refused {what}: {reply}"[:300]) from reply
    raise reply


@contextmanager
def _readable() -> Iterator[None]:
    """A context that raises ClusterError for replies in an unknown form, for example of a different module version."""
    try:
        yield
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ClusterError(f"a shard's replies to a ranking cannot be read: {error!r}"[:300]) from error


@dataclass(frozen=True, slots=True)
class Statistics:
    """How often the terms of a question occur in a collection.

    Attributes:
        tags: the tags of the partitions. `epochs`, `sentences`, `frequencies` and `analyzers` have one element for each
            partition, in the same order.
        sentences: for each partition, the number of sentences in its index.
        frequencies: for each partition, the number of sentences that contain each term, in the order of `terms`.
        analyzers: for each partition, the version of the analyzer that computed the terms in its index; None until the
            first sweep of the partition has ended.
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
        """The partitions whose terms come from a different version of the analyzer than the version of this process.

        Each entry has the tag of a partition, and a text that names the version. Partitions without sentences are left
        out.
        """
        return [
            (tag, "an unknown analyzer" if analyzer is None else f"analyzer {analyzer}")
            for tag, sentences, analyzer in zip(self.tags, self.sentences, self.analyzers, strict=True)
            if sentences and analyzer != ANALYZER_VERSION
        ]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The statistics that determine the scores of a ranking.

    Attributes:
        sentences: the number of sentences in all partitions of all ranked collections.
        frequencies: for each term, the number of these sentences that contain it.
        weighed: for each term, the frequency that determines its weight.
    """

    sentences: int
    frequencies: tuple[int, ...]
    weighed: tuple[int, ...]

    @classmethod
    def of(cls, statistics: Sequence[Statistics], expansion: Expansion | None = None) -> Corpus:
        """Sum up the statistics of all partitions of all collections.

        `statistics` has one element per collection. With an `expansion`, the frequencies in `weighed` are the result of
        `Expansion.weighed`.
        """
        sentences = sum(sum(each.sentences) for each in statistics)
        sums = tuple(map(sum, zip(*(each.sums for each in statistics), strict=True)))
        weighed = sums if expansion is None or not sums else tuple(expansion.weighed(sentences, sums))
        return cls(sentences, sums, weighed)


def _regrouped(on_shard: Mapping[Address, Sequence[str]], replies: Sequence[Any], collections: int) -> list[list[Any]]:
    """Return the replies for each collection, in the order of partitions, from replies in the order of shards.

    Args:
        on_shard: the tags of the partitions on each shard.
        replies: for each shard, the replies of the first collection for all its partitions, then the replies of the
            second collection, and so on. Each partition has the same number of replies.
        collections: the number of collections.
    """
    parts: list[list[Any]] = [[] for _ in range(collections)]
    at = 0
    each = len(replies) // max(1, collections * sum(map(len, on_shard.values())))
    for tags in on_shard.values():
        for part in parts:
            part.extend(replies[at : at + each * len(tags)])
            at += each * len(tags)
    return parts


def _by_collection(
    on_shard: Mapping[Address, Sequence[str]], terms: Sequence[str], replies: Sequence[Any], collections: Sequence[str]
) -> list[Statistics]:
    tags = [tag for found in on_shard.values() for tag in found]
    parts = _regrouped(on_shard, replies, len(collections))
    return [parse_statistics(tags, terms, part, name) for name, part in zip(collections, parts, strict=True)]


def most_frequent_terms(own: Sequence[str], replies: Sequence[Any], count: int) -> list[str]:
    """Return the `count` most frequent terms.

    Replies of ``QA.INDEX.COMPLETE`` alternate with replies of ``QA.INDEX.STATS`` for the terms `own`. The number of
    sentences with a term is a sum over all indexes. An index counts only its own most frequent completions, so the sum
    for a completion may be too small.
    """
    counts: dict[str, int] = {}
    for _, found in replies[::2]:
        for term, frequency in zip(found[::2], found[1::2], strict=True):
            counts[_text(term)] = counts.get(_text(term), 0) + frequency
    columns = zip(*(row[2] for row in replies[1::2]), strict=True)
    exact = {term: sum(column) for term, column in zip(own, columns, strict=True)} if replies else {}
    counts |= {term: frequency for term, frequency in exact.items() if frequency}
    return sorted(counts, key=lambda term: (-counts[term], term))[:count]


def statistics_commands(
    tags: Iterable[str], terms: Sequence[str], collection: str = DEFAULT_COLLECTION
) -> list[Command]:
    """Return the commands of the first pipeline, three for each partition; `parse_statistics` parses their replies."""
    commands: list[Command] = []
    for tag in tags:
        # The second key never exists, so the server refuses this command while the slot of both keys is migrating.
        commands.append(("MGET", epoch_key(tag, collection), flight_key(tag)))
        commands.append(("QA.INDEX.STATS", index_key(tag, collection), "TERMS", len(terms), *terms))
        commands.append(("HGET", layout_key(tag), "analyzer"))
    return commands


def parse_statistics(
    tags: Sequence[str], terms: Sequence[str], replies: Sequence[Any], collection: str = DEFAULT_COLLECTION
) -> Statistics:
    """Parse the replies to `statistics_commands` for the same tags, terms and collection."""
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
    corpus: Corpus | None = None,
) -> list[Command]:
    """Return the commands of the second pipeline, one for each partition.

    Args:
        statistics: the statistics of the collection.
        count: the number of sentences that each index returns.
        packed_filter: a filter in its binary form; empty: no filter.
        vector: the vector of the question; None: rank by words only.
        distinct: whether an index with a vector returns only the best sentence of each passage.
        corpus: the statistics for the scores; None: those of the collection.
    """
    corpus = corpus or Corpus.of([statistics])
    options: Command = (
        *(("FILTER", packed_filter) if packed_filter else ()),
        *(() if vector is None else vector.arguments),
        *(("DISTINCT",) if distinct and vector is not None else ()),
    )
    words = [word for pair in zip(statistics.terms, corpus.weighed, strict=True) for word in pair]
    terms = ("TERMS", len(statistics.terms), *words)
    return [
        ("QA.INDEX.RANK", index_key(tag, statistics.collection), count, corpus.sentences, *options, *terms)
        for tag in statistics.tags
    ]


def ranking_of(
    statistics: Statistics,
    replies: Sequence[Any],
    count: int,
    vector: QuestionVector | None = None,
    corpus: Corpus | None = None,
    *,
    left_out: Collection[str] = (),
) -> Ranking:
    """Build a ranking of at most `count` candidates from the replies to `rank_commands` with the same corpus.

    Sentences of the partitions with the tags in `left_out` are not candidates.
    """
    corpus = corpus or Corpus.of([statistics])
    parts: dict[str, RankedPartition] = {}
    hits: list[tuple[float, float, str, Any, int]] = []
    rows = zip(statistics.tags, statistics.sentences, statistics.frequencies, replies, strict=True)
    for tag, sentences, frequencies, (_, _, _, found, (identity, next_id), places, *passages) in rows:
        parts[tag] = RankedPartition(sentences, frequencies, identity, next_id)
        if tag in left_out:
            continue
        by_meaning = [0.0] * len(found)
        if vector is not None:
            by_meaning = [vector.score(None if row[0] is None else float(row[0])) for row in passages[0]]
        hits += [
            (float(hit[2]) + meaning, meaning, tag, hit, place)
            for hit, meaning, place in zip(found, by_meaning, places, strict=True)
        ]
    # Score again only the sentences that may be among the best.
    least = sorted((hit[0] for hit in hits), reverse=True)[:count][-1] - ROUNDING if hits else 0.0
    prefix = collection_prefix(statistics.collection)
    best = [
        Candidate(f"{prefix}{_text(document)}:{{{tag}}}:{number}", score, tuple(map(float, weights)), place, meaning)
        for score, meaning, tag, (document, number, _, weights), place in hits
        if score >= least
    ]
    return Ranking(
        best_of(best, corpus.sentences, corpus.weighed, count),
        dict(zip(statistics.tags, statistics.epochs, strict=True)),
        corpus.sentences,
        statistics.terms,
        corpus.frequencies,
        parts,
        reindexing=bool(statistics.stale),
        vector=vector,
        weighed=corpus.weighed if corpus.weighed != corpus.frequencies else (),
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
