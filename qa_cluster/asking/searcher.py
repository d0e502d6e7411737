"""Finds the sentences that match a query best, and fetches them from their documents.

A document may change between ranking and fetching. So a fetched sentence is shown only if one of these conditions
holds:

- the epoch of its partition is unchanged
- the terms of the query still have the same weights in the sentence as in the ranking

If a sentence meets neither condition, the corpus is ranked again. After `MAX_VERSION_TRIES` rankings, such sentences
are left out.

A search may use several collections. The sentences of each collection are ranked with the statistics of all searched
collections together, so their scores are comparable. Then the best sentences of these collections are merged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import Any

from qa_cluster.deadline import deadline
from qa_cluster.documents.stored import read_hits
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.keys import SentenceRef, parse_sentence
from qa_cluster.off_loop import off_loop
from qa_cluster.options.questions import ALL_COLLECTIONS, MAX_SEARCHED_COLLECTIONS, SearchOptions
from qa_cluster.ranking.bm25 import Candidate, Ranking
from qa_cluster.ranking.expansion import MAX_COMPLETIONS, Expansion, Typed
from qa_cluster.ranking.filters import Filter
from qa_cluster.ranking.hits import HitMaker
from qa_cluster.ranking.ranker import Ranker
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.tracing import step
from qa_cluster.types import Hit, SearchedCollection, SearchResult, SearchTimings

from .answers.answering import MAX_VERSION_TRIES, index_of, milliseconds, retrying_without
from .collections import Collections
from .document_fields import DocumentFields
from .editors.guidance import Guidance, merged
from .questions import AskLimits, check_search, timeout_of
from .remote_encoder import RemoteEncoder

# The maximum number of sentences that a script fetches, including neighbours. Such a script blocks its shard for less
# than 1 ms.
MAX_SCRIPT_SENTENCES = 100
# The number of scripts whose results are fetched at the same time. Together they return a few megabytes at most.
FETCHED_SCRIPTS = 32


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search without the id of its request. `size` is the approximate size of its JSON in bytes."""

    found: SearchResult
    size: int

    async def encode(self, request_id: str) -> bytes:
        """Return the result with the id of its request, as JSON."""
        return await off_loop(self.size, self.result(request_id).to_json)

    def result(self, request_id: str) -> SearchResult:
        """Return the result with the id of its request."""
        return replace(self.found, id=request_id)


class Searcher:
    """Finds the sentences of one cluster that match a query best."""

    def __init__(
        self,
        shards: Shards,
        ranker: Ranker,
        *,
        collections: Collections,
        fields: DocumentFields,
        vectors: RemoteEncoder,
        guidance: Guidance,
        follow: Callable[[], Awaitable[None]],
        limits: AskLimits,
    ) -> None:
        self._shards = shards
        self._ranker = ranker
        self._collections = collections
        self._fields = fields
        self._vectors = vectors
        self._guidance = guidance
        self._follow = follow
        self._limits = limits

    async def search(self, text: object, options: SearchOptions | None = None) -> SearchOutcome:
        """Return the best sentences for a query; DeadlineExceeded if the search exceeds its timeout."""
        begun = perf_counter()
        options = options or SearchOptions()
        query, chosen = check_search(text, options, self._limits)
        seconds = timeout_of(options, self._limits)
        async with deadline(seconds, f"the search did not end in {seconds * 1000:g} ms (timeout)"):
            found: SearchOutcome = await retrying_without(
                self._shards,
                options.coverage,
                lambda without: self._search(query, str(text), chosen, options, begun=begun, without=without),
            )
            return found

    async def _search(
        self,
        query: str,
        typed: str,
        chosen: Filter | None,
        options: SearchOptions,
        *,
        begun: float,
        without: frozenset[Shard],
    ) -> SearchOutcome:
        """Search for the normalised `query`, which the user gave as `typed`.

        `begun` is the time when the search started, on the clock of `time.perf_counter`. The shards in `without` are
        left out.
        """
        await self._follow()
        collections = await self.collections_of(options, without)
        await self._fields.check_some(chosen, collections)
        retriever = self._vectors.retriever(options.retriever)
        if options.prefix:
            expansion: Expansion | None = await self._completed(typed, collections, without)
        else:
            expansion = merged([await self._guidance.of(name, without) for name in collections]).expansion(query)
        for _ in range(MAX_VERSION_TRIES):
            ranking_begun = perf_counter()
            rankings = await self._ranker.rank_each(
                query, options.top_k, chosen, collections, without, retriever=retriever, expansion=expansion
            )
            best = _merged(rankings, options.top_k)
            fetching_begun = perf_counter()
            with step("fetch"):
                hits, size = await self._fetched(rankings, best, options.context)
            if len(hits) == len(best):
                break
        ended = perf_counter()
        ranked = {
            f"{name} {tag}": epoch
            for name, ranking in zip(collections, rankings, strict=True)
            for tag, epoch in ranking.epochs.items()
        }
        whole = rankings[0] if len(rankings) == 1 else replace(rankings[0], epochs=ranked)
        result = SearchResult(
            id="",
            created=int(time()),
            query=query,
            terms=whole.terms,
            hits=await off_loop(size, _numbered, best, hits),
            sentences=whole.sentences,
            index=index_of(whole, self._shards, without),
            timings_ms=SearchTimings(
                rank=milliseconds(fetching_begun - ranking_begun),
                fetch=milliseconds(ended - fetching_begun),
                total=milliseconds(ended - begun),
            ),
            collections=tuple(
                SearchedCollection(name, sum(part.sentences for part in ranking.parts.values()))
                for name, ranking in zip(collections, rankings, strict=True)
            ),
        )
        return SearchOutcome(result, size)

    async def collections_of(
        self,
        options: SearchOptions,
        without: Collection[Shard] = (),
        admits: Callable[[str], bool] = lambda name: True,
    ) -> tuple[str, ...]:
        """Return the names of the collections to search.

        If the options name all collections, the result has only the collections for which `admits` returns true. The
        shards in `without` are not asked.

        Raises:
            NotFound: a collection does not exist, or no collection may be searched.
            InvalidInput: there are too many collections to search them all.
        """
        if options.collections != (ALL_COLLECTIONS,):
            for name in options.collections:
                await self._collections.check(name, without)
            return options.collections
        names = tuple(filter(admits, await self._collections.searchable(without)))
        if not names:
            raise NotFound("there is no collection that may be searched")
        if len(names) > MAX_SEARCHED_COLLECTIONS:
            raise InvalidInput(
                f"there are {len(names)} collections, and a search may use at most {MAX_SEARCHED_COLLECTIONS}: name"
                " the collections to search",
                place="collection",
            )
        return names

    async def _completed(self, typed: str, collections: Sequence[str], without: frozenset[Shard]) -> Expansion:
        """Return the terms of a query whose last word may be incomplete, with the terms that may complete this word.

        `typed` is the query as the user gave it. The shards in `without` are not asked for completions.
        """
        query = Typed.of(typed)
        if not query.prefix:
            return Expansion(query.terms)
        return query.expansion(await self._ranker.completions(query.prefix, MAX_COMPLETIONS, collections, without))

    async def _fetched(
        self, rankings: Sequence[Ranking], best: Sequence[Candidate], around: int
    ) -> tuple[dict[str, Hit], int]:
        """Return the hits of the best candidates by sentence key, and their approximate size as JSON in bytes.

        `around` is the number of neighbours on each side.
        """
        shown = {candidate.sentence for candidate in best}
        hits: dict[str, Hit] = {}
        size = 0
        for ranking in rankings:
            own = [candidate for candidate in ranking.candidates if candidate.sentence in shown]
            if own:
                made = await self._hits(replace(ranking, candidates=own), ranking.terms, around, size)
                hits |= made.hits
                size += made.bytes
        return hits, size

    async def _hits(self, ranking: Ranking, terms: Sequence[str], around: int, size: int) -> HitMaker:
        """Fetch the candidates from their documents and create hits, `FETCHED_SCRIPTS` scripts at a time.

        `around` is the number of neighbours on each side. `size` is the approximate size of the hits that other
        collections already have, in bytes.

        Raises:
            InputTooLong: the hits of all collections exceed the limit of a response; no more hits are fetched.
        """
        by_document: dict[tuple[str, str], list[SentenceRef]] = {}
        for candidate in ranking.candidates:
            sentence = parse_sentence(candidate.sentence)
            by_document.setdefault((sentence.document, sentence.tag), []).append(sentence)
        most = max(1, MAX_SCRIPT_SENTENCES // (2 * around + 1))
        parts = [
            (name, sentences[first : first + most], first == 0)
            for name, sentences in by_document.items()
            for first in range(0, len(sentences), most)
        ]
        made = HitMaker(
            {candidate.sentence: candidate for candidate in ranking.candidates},
            terms,
            ranking.epochs,
            with_passage=around > 0,
            most_bytes=self._limits.answer_max_bytes - size,
        )
        for begin in range(0, len(parts), FETCHED_SCRIPTS):
            some = parts[begin : begin + FETCHED_SCRIPTS]
            calls = [
                read_hits(*name, [sentence.index for sentence in part], around, metadata=is_first)
                for name, part, is_first in some
            ]
            replies = await self._shards.execute_many([(call.keys[0], call.command()) for call in calls])
            await off_loop(sum(map(_fetched_bytes, replies)), made.add, [part for _, part, _ in some], replies)
        return made


def _fetched_bytes(reply: Any) -> int:
    """Return the approximate size of a reply to `read_hits` in bytes."""
    if reply is None:
        return 0
    return len(reply[3]) + sum(len(passage[1]) + len(passage[2]) for passage in reply[5] if passage)


def _merged(rankings: Sequence[Ranking], count: int) -> list[Candidate]:
    """Return the `count` best candidates of all rankings."""
    every = [candidate for ranking in rankings for candidate in ranking.candidates]
    return sorted(every, key=lambda candidate: -candidate.score)[:count]


def _numbered(candidates: Sequence[Candidate], hits: Mapping[str, Hit]) -> tuple[Hit, ...]:
    """Return the hits in the order of the candidates, with ranks from 1. Candidates without a hit are left out."""
    found = filter(None, (hits.get(candidate.sentence) for candidate in candidates))
    return tuple(replace(hit, rank=rank) for rank, hit in enumerate(found, 1))
