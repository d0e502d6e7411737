"""Searches: finds the sentences that match a query best, and fetches them from their documents.

A search shows each sentence as it is when it is fetched. A document may change between ranking and fetching. So a
sentence is shown only if the epoch of its partition is unchanged, or if its text still has the weights by which it was
ranked. Otherwise the corpus is ranked again. After `MAX_VERSION_TRIES` rankings such sentences are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import Any

from qa_cluster.documents.stored import read_hits
from qa_cluster.errors import DeadlineExceeded
from qa_cluster.keys import SentenceRef, parse_sentence
from qa_cluster.off_loop import off_loop
from qa_cluster.options.questions import SearchOptions
from qa_cluster.ranking.bm25 import Candidate, Ranking
from qa_cluster.ranking.filters import Filter
from qa_cluster.ranking.hits import HitMaker
from qa_cluster.ranking.meaning import MEANING
from qa_cluster.ranking.ranker import Ranker
from qa_cluster.ranking.terms import question_terms
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.tracing import step
from qa_cluster.types import Hit, Index, SearchResult, SearchTimings

from .answers.answering import MAX_VERSION_TRIES, index_of, milliseconds, retrying_without
from .collections import Collections
from .document_fields import DocumentFields
from .questions import AskLimits, check_search, timeout_of
from .remote_encoder import RemoteEncoder

# The limit of sentences in one script, neighbours included: it blocks its shard for less than 1 ms.
MAX_SCRIPT_SENTENCES = 100
# The number of scripts whose results are fetched at once: a few megabytes at most.
FETCHED_SCRIPTS = 32


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search without the id of its request; `size` is the approximate number of bytes of its JSON."""

    query: str
    terms: tuple[str, ...]
    hits: tuple[Hit, ...]
    sentences: int
    index: Index
    timings: SearchTimings
    size: int = 0

    async def encode(self, request_id: str) -> bytes:
        """The whole result as JSON."""
        return await off_loop(self.size, self.result(request_id).to_json)

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
        fields: DocumentFields,
        vectors: RemoteEncoder,
        follow: Callable[[], Awaitable[None]],
        limits: AskLimits,
    ) -> None:
        self._shards = shards
        self._ranker = ranker
        self._collections = collections
        self._fields = fields
        self._vectors = vectors
        self._follow = follow
        self._limits = limits

    async def search(self, text: object, options: SearchOptions | None = None) -> SearchOutcome:
        """Find the best sentences for a query, within its deadline."""
        begun = perf_counter()
        options = options or SearchOptions()
        query, chosen = check_search(text, options, self._limits)
        seconds = timeout_of(options, self._limits)
        try:
            async with asyncio.timeout(seconds):
                found: SearchOutcome = await retrying_without(
                    self._shards,
                    options.coverage,
                    lambda without: self._search(query, chosen, options, begun, without),
                )
                return found
        except TimeoutError as error:
            raise DeadlineExceeded(f"the search did not end in {seconds * 1000:g} ms (timeout)") from error

    async def _search(
        self, query: str, chosen: Filter | None, options: SearchOptions, begun: float, without: frozenset[Shard]
    ) -> SearchOutcome:
        await self._follow()
        await self._collections.check(options.collection, without)
        await self._fields.check(chosen, options.collection)
        retriever = self._vectors.retriever(options.retriever)
        terms = () if retriever == MEANING else tuple(question_terms(query))
        for _ in range(MAX_VERSION_TRIES):
            ranking_begun = perf_counter()
            ranking = await self._ranker.rank(
                query, options.top_k, chosen, options.collection, without, retriever=retriever
            )
            fetching_begun = perf_counter()
            with step("fetch"):
                made = await self._hits(ranking, terms, options.context)
            if len(made.hits) == len(ranking.candidates):
                break
        ended = perf_counter()
        return SearchOutcome(
            query,
            terms,
            await off_loop(made.bytes, _numbered, ranking.candidates, made),
            ranking.sentences,
            index_of(ranking, self._shards, without),
            SearchTimings(
                rank=milliseconds(fetching_begun - ranking_begun),
                fetch=milliseconds(ended - fetching_begun),
                total=milliseconds(ended - begun),
            ),
            made.bytes,
        )

    async def _hits(self, ranking: Ranking, terms: Sequence[str], around: int) -> HitMaker:
        """Fetch the candidates from their documents and make hits of them, `FETCHED_SCRIPTS` scripts at a time.

        InputTooLong as soon as the hits exceed the limit of an answer.
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
            most_bytes=self._limits.answer_max_bytes,
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
    """The approximate size of a reply to `read_hits`."""
    if reply is None:
        return 0
    return len(reply[3]) + sum(len(passage[1]) + len(passage[2]) for passage in reply[5] if passage)


def _numbered(candidates: Sequence[Candidate], made: HitMaker) -> tuple[Hit, ...]:
    """The hits in the order of their ranks."""
    hits = filter(None, (made.hits.get(candidate.sentence) for candidate in candidates))
    return tuple(replace(hit, rank=rank) for rank, hit in enumerate(hits, 1))
