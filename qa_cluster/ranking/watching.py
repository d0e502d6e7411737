"""Builds the commands that let the indexes watch for writes that may change a cached answer.

An answer is valid while its ranking is valid: the ranked documents are unchanged, no new sentence is as good as the
last ranked sentence, and the terms keep their weights. When documents are added or removed, all weights drift a little.
An answer stays cached while the idf of each of its terms has changed by at most `drift * max(1, idf)`. Half of this
change may come from the number of sentences, and half from the number of sentences with the term. Each partition gets
an equal part of the allowed change, and checks this part without asking other partitions.

The idf of a term is ln(N + 1) - ln(df + 0.5). N is the number of sentences, and df is the number of sentences with the
term. The limits of the two logarithms give the limits of N and df.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, floor, log

from qa_cluster.keys import DEFAULT_COLLECTION, encode_id, index_key, parse_sentence

from .bm25 import RankedPartition, Ranking
from .filters import Filter
from .ranker import Command

# Tolerance for rounding differences, because the shard adds up floats in a different order.
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
    """Return the command ``QA.INDEX.WATCH`` for the index of each partition, by tag.

    Args:
        ranking: the ranking on which the answer is based.
        asked: the number of requested sentences. If the ranking has fewer sentences, every new sentence with a term of
            the question may change the answer or, in a ranking by meaning, every new sentence.
        chosen: the filter of the ranking; None means no filter.
        collection: the collection of the ranking.
        name: the name of the answer.
        ttl_ms: how long the indexes watch, in milliseconds.
        drift: the relative change of a term's idf that the answer tolerates.
    """
    best = ranking.candidates
    places: dict[str, dict[str, int]] = {tag: {} for tag in ranking.parts}
    for candidate in best:
        sentence = parse_sentence(candidate.sentence)
        places[sentence.tag][encode_id(sentence.document_id)] = candidate.place
    idf = [_idf(ranking.sentences, frequency) for frequency in ranking.frequencies]
    count = len(ranking.parts)
    least = repr(_least(ranking, asked, drift))
    of_sentences = _share(ranking.sentences + 1, drift / 2 * max(1.0, min(idf)), count) if idf else (MOST, MOST)
    of_terms = [
        _share(frequency + 0.5, drift / 2 * max(1.0, own), count)
        for frequency, own in zip(ranking.frequencies, idf, strict=True)
    ]
    commands: dict[str, Command] = {}
    for tag, part in ranking.parts.items():
        terms = _terms(ranking, part, of_terms)
        commands[tag] = (
            *("QA.INDEX.WATCH", index_key(tag, collection), name, ttl_ms, part.identity, part.next_id, least),
            *(ranking.sentences, *_bounds(part.sentences, of_sentences)),
            *(() if chosen is None else ("FILTER", chosen.packed)),
            *(() if ranking.vector is None else ranking.vector.arguments),
            *("TERMS", len(terms), *(word for term in terms for word in term)),
            *("DOCUMENTS", len(places[tag]), *(word for pair in places[tag].items() for word in pair)),
        )
    return commands


def _least(ranking: Ranking, asked: int, drift: float) -> float:
    """Return the lowest score with which a new sentence may change the ranking. The part by meaning does not drift.

    `asked` and `drift` are as in `watch_commands`.
    """
    if len(ranking.candidates) < asked:
        # A ranking by meaning includes each new sentence, and no cosine is below -1.
        return 0.0 if ranking.vector is None else -2 * ranking.vector.weight
    last = ranking.candidates[-1]
    by_words = last.score - last.by_meaning
    return last.by_meaning + by_words * (1 - drift / 2) - ROUNDING * (abs(last.by_meaning) + by_words)


def _idf(sentences: int, frequency: int) -> float:
    return log(sentences + 1) - log(min(frequency, sentences) + 0.5)


def _share(number: float, limit: float, partitions: int) -> tuple[int, int]:
    """Return the allowed decrease and increase of a number on one partition.

    The changes on all partitions together may change the logarithm of the number by `limit`.
    """
    return floor(number * -expm1(-limit) / partitions), floor(min(MOST, number * expm1(min(limit, 40)) / partitions))


def _bounds(number: int, share: tuple[int, int]) -> tuple[int, int]:
    return max(0, number - share[0]), min(MOST, number + share[1])


def _terms(ranking: Ranking, part: RankedPartition, shares: Sequence[tuple[int, int]]) -> list[tuple[str | int, ...]]:
    """Return the arguments of ``QA.INDEX.WATCH`` for each term. A term that is too long for an index is left out.

    `part` is the state of the index. `shares` has, for each term, the results of `_share` for its number of sentences.

    The arguments are the term, the frequency that determines its weight, and the lowest and the highest number of
    sentences with the term in this index for which the answer stays valid.
    """
    weighed = ranking.weighed or ranking.frequencies
    rows = zip(ranking.terms, weighed, part.frequencies, shares, strict=True)
    return [
        (term, frequency, *_bounds(own, share))
        for term, frequency, own, share in rows
        if 1 <= len(term.encode()) <= MAX_TERM_BYTES
    ]
