"""What the indexes are told of an answer that is to be kept: which later writes may change it.

An answer stands while its ranking stands: the documents that were ranked, no new sentence as good as the last of them,
and the weights of the terms. As documents come and go, all weights drift a little. An answer is kept while the idf of
each of its terms has moved by at most `drift` of itself (of 1 where it is smaller): half of that may come from the
number of sentences, half from the number of those that hold the term. What the corpus may move is shared among its
partitions, each of which watches its own part, so that no partition has to ask another.

With idf = ln(N + 1) - ln(df + 0.5), both ends follow without a search: N + 1 and df + 0.5 may each move by a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, floor, log

from qa_cluster.keys import DEFAULT_COLLECTION, encode_id, index_key, parse_sentence

from .bm25 import RankedPartition, Ranking
from .filters import Filter
from .ranker import Command

# Sums of floats in another order than the shard's.
ROUNDING = 1e-9
MAX_TERM_BYTES = 256
MOST = 2**53 - 1


def watch_commands(
    ranking: Ranking,
    asked: int,
    chosen: Filter | None = None,
    collection: str = DEFAULT_COLLECTION,
    *,
    name: str,
    ttl_ms: int,
    drift: float,
) -> dict[str, Command]:
    """``QA.INDEX.WATCH`` for the index of each partition, by tag.

    Args:
        ranking: what the answer is made from.
        asked: how many sentences were asked for; if there are fewer, each new one that shares a term may change it.
        chosen: the filter that was ranked with.
        collection: the one that was ranked.
        name: of the answer.
        ttl_ms: how long it is kept.
        drift: how far the idf of a term may move, as a share of it.
    """
    best = ranking.candidates
    least = best[-1].score * (1 - drift / 2) * (1 - ROUNDING) if len(best) == asked else 0.0
    places: dict[str, dict[str, int]] = {tag: {} for tag in ranking.parts}
    for candidate in best:
        sentence = parse_sentence(candidate.sentence)
        places[sentence.tag][encode_id(sentence.document_id)] = candidate.place
    idf = [_idf(ranking.sentences, frequency) for frequency in ranking.frequencies]
    count = len(ranking.parts)
    of_sentences = _share(ranking.sentences + 1, drift / 2 * max(1.0, min(idf)), count) if idf else (MOST, MOST)
    of_terms = [
        _share(frequency + 0.5, drift / 2 * max(1.0, own), count)
        for frequency, own in zip(ranking.frequencies, idf, strict=True)
    ]
    commands: dict[str, Command] = {}
    for tag, part in ranking.parts.items():
        terms = _terms(ranking, part, of_terms)
        commands[tag] = (
            *("QA.INDEX.WATCH", index_key(tag, collection), name, ttl_ms, part.identity, part.next_id, repr(least)),
            *(ranking.sentences, *_bounds(part.sentences, of_sentences)),
            *(() if chosen is None else ("FILTER", chosen.packed)),
            *("TERMS", len(terms), *(word for term in terms for word in term)),
            *("DOCUMENTS", len(places[tag]), *(word for pair in places[tag].items() for word in pair)),
        )
    return commands


def _idf(sentences: int, frequency: int) -> float:
    return log(sentences + 1) - log(min(frequency, sentences) + 0.5)


def _share(number: float, room: float, partitions: int) -> tuple[int, int]:
    """How far down and up one partition may move a number whose logarithm may move by `room`."""
    return floor(number * -expm1(-room) / partitions), floor(min(MOST, number * expm1(min(room, 40)) / partitions))


def _bounds(number: int, share: tuple[int, int]) -> tuple[int, int]:
    return max(0, number - share[0]), min(MOST, number + share[1])


def _terms(ranking: Ranking, part: RankedPartition, shares: Sequence[tuple[int, int]]) -> list[tuple[str | int, ...]]:
    """What is said of each term; one that is too long for an index is in none."""
    rows = zip(ranking.terms, ranking.frequencies, part.frequencies, shares, strict=True)
    return [
        (term, frequency, *_bounds(own, share))
        for term, frequency, own, share in rows
        if 1 <= len(term.encode()) <= MAX_TERM_BYTES
    ]
