"""Finds the best sentences of the corpus: the indexes of all partitions rank, and a search fetches the best sentences.

A search shows sentences as they are when they are fetched. A document may change between ranking and fetching: a
sentence is shown only if the epoch of its partition is still the same, or if its text still has the weights that it was
ranked by. Otherwise the corpus is ranked again; after `MAX_VERSION_TRIES` rankings these sentences are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from math import inf
from time import monotonic, perf_counter, time
from typing import Any

import orjson

from qa_cluster.config import PARTIAL
from qa_cluster.documents.places import Placed
from qa_cluster.documents.stored import FoundDocument, parse_hits, read_hits
from qa_cluster.errors import CannotWrite, ClusterError, DeadlineExceeded, ReplyError
from qa_cluster.keys import DEFAULT_COLLECTION, SentenceRef, epoch_key, parse_sentence, partition_tags, slot
from qa_cluster.ranking.bm25 import Candidate, Ranking, merge
from qa_cluster.ranking.filters import Filter
from qa_cluster.ranking.hits import hit_of
from qa_cluster.ranking.shard_ranking import (
    Command,
    Statistics,
    analyzer_commands,
    parse_statistics,
    rank_commands,
    rank_reply,
    statistics_commands,
)
from qa_cluster.ranking.terms import ANALYZER_VERSION, question_terms
from qa_cluster.routing.shard_calls import rank_on
from qa_cluster.routing.shards import NotWhole, ShardDown, Shards, passes
from qa_cluster.shard_functions import RANK_TRIGGER
from qa_cluster.topology import Address, Shard, Topology
from qa_cluster.tracing import step
from qa_cluster.types import Hit, Index, SearchResult, SearchTimings

from .collections import Collections
from .questions import AskLimits, SearchOptions, check_search

# A document, and the sentences that were fetched from it for one ranked sentence: that one and its neighbours.
_Read = tuple[FoundDocument | None, Sequence[Placed]]
NOTHING: _Read = (None, ())

MAX_VERSION_TRIES = 3
# Most sentences that one script reads, with their neighbours: it then holds its shard for less than a millisecond.
MAX_SCRIPT_SENTENCES = 100
# A longer filter goes to each shard once, to its worker, not once for each partition.
MAX_SENT_FILTER_BYTES = 4096
# What keeps the indexes from being asked may end: rights are given, a shard gets a newer module, a sweep ends.
ASK_INDEXES_AGAIN_SECONDS = 5.0

_ANALYZER = ANALYZER_VERSION.encode()
_log = logging.getLogger(__name__)


class Ranker:
    """The ranking of one cluster.

    It asks the indexes of all partitions itself, twice: for how common the terms are in the whole corpus, and with the
    sums for their best sentences. Between the two a write may come: the ranking then has the new sentences under the
    older frequencies, as the one of a shard's worker has, and tells how far it went (`Part.next_id`); an answer made
    from it is kept only if the indexes still agree with all of that (``QA.INDEX.WATCH``). A partition that moves in
    between refuses the second question, and all is ranked again.

    Where that cannot be, the shards' workers rank (trigger ``qa.rank``): the user may not run the commands or read the
    keys, a shard has an older module, or its sentences were made by another analyzer than this process has.

    Attributes:
        rankings: how many have been made, by ``indexes`` and by ``triggers``.
    """

    def __init__(self, shards: Shards, partitions: int) -> None:
        self._shards = shards
        self.rankings = Counter(indexes=0, triggers=0)
        self._triggers_until = -inf
        self._complaint = ""
        self.set_partitions(partitions)

    def set_partitions(self, partitions: int) -> None:
        """Expect this number of partitions in later rankings."""
        self._partitions = frozenset(partition_tags(partitions))
        self._placed: tuple[Topology | None, dict[Address, list[str]]] = (None, {})

    async def rank(
        self,
        text: str,
        count: int,
        chosen: Filter | None = None,
        collection: str = DEFAULT_COLLECTION,
        without: Collection[Shard] = (),
    ) -> Ranking:
        """The `count` best sentences of a collection, of the documents that the filter admits.

        The shards `without` are not asked: their documents have no part in it. It raises NotWhole when no shard, or
        two, ranked a partition: the caller then tries again.
        """
        with step("rank") as ranked:
            packed = b"" if chosen is None else chosen.packed
            ranking, by = await self._rank(text, count, packed, collection, without)
            self.rankings[by] += 1
            if ranked is not None:
                ranked.note({"qa.rank.by": by, "qa.rank.candidates": len(ranking.candidates)})
            return ranking

    async def _rank(
        self, text: str, count: int, packed: bytes, collection: str, without: Collection[Shard]
    ) -> tuple[Ranking, str]:
        """The ranking, and whether ``indexes`` or ``triggers`` made it."""
        if len(packed) <= MAX_SENT_FILTER_BYTES and monotonic() >= self._triggers_until:
            try:
                ranking = await self._by_indexes(question_terms(text), count, packed, collection, without)
            except _CannotAskIndexes as why:
                self._use_triggers(str(why))
            else:
                self._complaint = ""
                return ranking, "indexes"
        return await self._by_triggers(text, count, packed.hex(), collection, without), "triggers"

    def _use_triggers(self, why: str) -> None:
        self._triggers_until = monotonic() + ASK_INDEXES_AGAIN_SECONDS
        if why != self._complaint:
            self._complaint = why
            _log.warning("questions are ranked by the shards' workers, which takes longer: %s", why)

    async def _by_indexes(
        self, terms: list[str], count: int, packed: bytes, collection: str, without: Collection[Shard] = ()
    ) -> Ranking:
        left_out = {shard.address for shard in without}
        on_shard = {address: tags for address, tags in self._tags_on_shards().items() if address not in left_out}
        tags = [tag for found in on_shard.values() for tag in found]
        asked = {
            address: [*statistics_commands(found, terms, collection), *analyzer_commands(found)]
            for address, found in on_shard.items()
        }
        replies: list[Any] = []
        analyzers: list[Any] = []
        for each, found in zip(await self._asked(asked), on_shard.values(), strict=True):
            replies += each[: -len(found)]
            analyzers += each[-len(found) :]
        with _readable():
            statistics = parse_statistics(tags, terms, replies, collection)
            _check_analyzers(statistics, analyzers)
            commands = iter(rank_commands(statistics, count, packed))
            asked = {address: list(islice(commands, len(found))) for address, found in on_shard.items()}
        replies = [reply for each in await self._asked(asked, admitted=True) for reply in each]
        with _readable():
            return merge([rank_reply(statistics, replies, count)], count)

    def _tags_on_shards(self) -> Mapping[Address, list[str]]:
        """The partitions on each shard, by the topology that is known now."""
        topology, found = self._placed
        if topology is not self._shards.topology:
            topology, found = self._shards.topology, {}
            for tag in self._partitions:
                found.setdefault(topology.shard_of(slot(tag)).address, []).append(tag)
            self._placed = topology, found
        return found

    async def _asked(self, commands: Mapping[Address, Sequence[Command]], *, admitted: bool = False) -> list[list[Any]]:
        """The replies of each server; `_CannotAskIndexes` for an error that no new try would cure."""
        replies = await self._shards.execute_pipelines(commands, admitted=admitted)
        for address, each in zip(commands, replies, strict=True):
            for reply in each:
                if isinstance(reply, ReplyError):
                    if passes(reply):
                        raise reply
                    raise _CannotAskIndexes(f"{address}: {reply}"[:300])
        return replies

    async def _by_triggers(
        self, text: str, count: int, packed: str, collection: str, without: Collection[Shard] = ()
    ) -> Ranking:
        asked = [shard for shard in self._shards.all if shard not in without]
        replies = await asyncio.gather(
            *(rank_on(self._shards, shard, count, text, packed_filter=packed, collection=collection) for shard in asked)
        )
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        parts = [reply for reply in replies if isinstance(reply, dict)]
        try:
            ranking = merge(parts, count)
        except (IndexError, TypeError) as error:
            raise ClusterError(f"a shard's reply to {RANK_TRIGGER} cannot be read: {error!r}") from error
        if len(ranking.epochs) < sum(len(part["epochs"]) for part in parts):
            raise NotWhole("a partition is ranked by two shards: it has just moved")
        missing = self._partitions.difference(ranking.epochs)
        if missing := frozenset(tag for tag in missing if self._shards.shard_of_key(epoch_key(tag)) not in without):
            raise NotWhole(f"{len(missing)} of {len(self._partitions)} partitions are ranked by no shard")
        return ranking


class _CannotAskIndexes(Exception):
    """The shards' workers must rank; it says why."""


@contextmanager
def _readable() -> Iterator[None]:
    """Another version of the module may reply in another form."""
    try:
        yield
    except (TypeError, ValueError, IndexError, AttributeError, ClusterError) as error:
        raise _CannotAskIndexes(f"a shard's replies cannot be read: {error!r}"[:300]) from error


def _check_analyzers(statistics: Statistics, analyzers: Sequence[Any]) -> None:
    """A partition without sentences may have any."""
    for tag, sentences, analyzer in zip(statistics.tags, statistics.sentences, analyzers, strict=True):
        if sentences and analyzer != _ANALYZER:
            made_by = analyzer.decode(errors="replace") if isinstance(analyzer, bytes) else "an unknown analyzer"
            raise _CannotAskIndexes(
                f"partition {tag} has terms of {made_by}, this process has the analyzer {ANALYZER_VERSION}"
            )


def shards_without(shards: Shards, coverage: str) -> frozenset[Shard]:
    """The shards that a request of this coverage does without now; ShardDown if it cannot be answered without them."""
    down = shards.down
    if coverage != PARTIAL:
        if lost := shards.lost():
            raise ShardDown(shards.why_down(lost))
        return frozenset()
    if down and len(down) == len(shards.all):
        raise ShardDown(shards.why_down(down))
    return down


async def retrying_without(shards: Shards, coverage: str, attempt: Callable[[frozenset[Shard]], Awaitable[Any]]) -> Any:
    """`Shards.retrying` for what gets the shards that it does without.

    If `coverage` allows it, it is tried again without a shard that goes down meanwhile, or that runs no functions
    because it cannot write.
    """
    unable: set[Shard] = set()

    async def tried() -> Any:
        without = shards_without(shards, coverage) | unable
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
    """What a ranking without these shards was made from."""
    total = len(shards.all)
    missing = tuple(sorted(str(shard.address) for shard in without))
    return Index(index_version(ranking), total, total - len(missing), bool(missing), missing)


def index_version(ranking: Ranking) -> str:
    """A digest that names the state of the documents that were ranked."""
    return blake2b(orjson.dumps(ranking.epochs, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search without the id of its request."""

    query: str
    terms: tuple[str, ...]
    hits: tuple[Hit, ...]
    sentences: int
    index: Index
    timings: SearchTimings

    def result(self, request_id: str) -> SearchResult:
        """The whole result."""
        return SearchResult(
            request_id, int(time()), self.query, self.terms, self.hits, self.sentences, self.index, self.timings
        )


class Searcher:
    """Finds the sentences of one cluster that match a query best."""

    def __init__(
        self,
        shards: Shards,
        ranker: Ranker,
        *,
        collections: Collections,
        follow: Callable[[], Awaitable[None]],
        limits: AskLimits,
    ) -> None:
        self._shards = shards
        self._ranker = ranker
        self._collections = collections
        self._follow = follow
        self._limits = limits

    async def search(self, text: object, options: SearchOptions | None = None) -> Found:
        """The best sentences for a query, within its deadline."""
        begun = perf_counter()
        options = options or SearchOptions()
        query, chosen = check_search(text, options, self._limits)
        timeout_ms = self._limits.timeout_ms if options.timeout_ms is None else options.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found: Found = await retrying_without(
                    self._shards,
                    options.coverage,
                    lambda without: self._search(query, chosen, options, begun, without),
                )
                return found
        except TimeoutError as error:
            raise DeadlineExceeded(f"the search did not end in {timeout_ms:g} ms (timeout_ms)") from error

    async def _search(
        self, query: str, chosen: Filter | None, options: SearchOptions, begun: float, without: frozenset[Shard]
    ) -> Found:
        await self._follow()
        await self._collections.check(options.collection, without)
        terms = tuple(question_terms(query))
        for _ in range(MAX_VERSION_TRIES):
            ranking_begun = perf_counter()
            ranking = await self._ranker.rank(query, options.top_k, chosen, options.collection, without)
            fetching_begun = perf_counter()
            with step("fetch"):
                documents = await self._documents(ranking.candidates, options.context)
            hits = [
                hit_of(
                    item,
                    *documents.get(item.sentence, NOTHING),
                    terms,
                    ranking.epochs,
                    with_passage=options.context > 0,
                )
                for item in ranking.candidates
            ]
            if None not in hits:
                break
        ended = perf_counter()
        return Found(
            query,
            terms,
            tuple(replace(hit, rank=rank) for rank, hit in enumerate(filter(None, hits), 1)),
            ranking.sentences,
            index_of(ranking, self._shards, without),
            SearchTimings(
                rank=_milliseconds(fetching_begun - ranking_begun),
                fetch=_milliseconds(ended - fetching_begun),
                total=_milliseconds(ended - begun),
            ),
        )

    async def _documents(self, candidates: Sequence[Candidate], around: int) -> dict[str, _Read]:
        """The fetched part of each candidate's document, by the sentence's key; all in one round trip."""
        by_document: dict[tuple[str, str], list[SentenceRef]] = {}
        for candidate in candidates:
            sentence = parse_sentence(candidate.sentence)
            by_document.setdefault((sentence.document, sentence.tag), []).append(sentence)
        most = max(1, MAX_SCRIPT_SENTENCES // (2 * around + 1))
        parts = [
            (name, sentences[first : first + most])
            for name, sentences in by_document.items()
            for first in range(0, len(sentences), most)
        ]
        calls = [read_hits(*name, [sentence.index for sentence in part], around) for name, part in parts]
        replies = await self._shards.execute_many([(call.keys[0], call.command()) for call in calls])
        found: dict[str, _Read] = {}
        for (_, part), reply in zip(parts, replies, strict=True):
            document = parse_hits(reply)
            if document is not None:
                for sentence, passage in zip(part, document.passages, strict=True):
                    found[str(sentence)] = (document, passage)
        return found


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
