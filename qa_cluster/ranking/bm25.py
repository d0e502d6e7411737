"""Ranks sentences by the question's terms: BM25 plus the edges of the term graph.

A shard's index finds its best sentences (``native/index/rank.c``); `merge` scores those of all shards exactly, under
the document frequencies of the whole corpus. An edge is a pair of the question's terms; a sentence that holds both ends
earns the geometric mean of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import ClusterError

EDGE_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sentence, best of the corpus first.

    Attributes:
        sentence: its key ``<doc>:{tag}:<i>``.
        score: under the frequencies of the whole corpus.
        weights: its weight for every term.
        place: the place of its document in the partition's index, which another version of the document does not have.
    """

    sentence: str
    score: float
    weights: tuple[float, ...]
    place: int = 0


@dataclass(frozen=True, slots=True)
class RankedPartition:
    """The index of a partition when it was ranked: its sentences, those with each term, and how far it went."""

    sentences: int
    frequencies: tuple[int, ...]
    identity: int
    next_id: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best sentences of the corpus and what they were ranked by.

    Attributes:
        candidates: the best first.
        epochs: of every partition.
        sentences: of the corpus.
        terms: of the question.
        frequencies: in how many sentences of the corpus each term is.
        parts: the same of every partition.
    """

    candidates: list[Candidate]
    epochs: dict[str, int]
    sentences: int
    terms: tuple[str, ...] = ()
    frequencies: tuple[int, ...] = ()
    parts: Mapping[str, RankedPartition] = field(default_factory=dict)


def idf(sentences: int, frequencies: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Inverse document frequency of terms, never negative."""
    df = np.minimum(np.asarray(frequencies, dtype=np.float64), sentences)
    return np.log1p((sentences - df + 0.5) / (df + 0.5))


def scores(weights: npt.NDArray[np.floating[Any]], term_idf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The scores of sentences, BM25 plus edges; ``weights`` has one row for each.

    The edges of a row are the sum of sqrt(a * b) over all pairs, which is ((sum of sqrt(a)) ** 2 - sum of a) / 2.
    """
    weighted = weights * term_idf
    single = weighted.sum(axis=1)
    roots = np.sqrt(weighted).sum(axis=1)
    result: npt.NDArray[np.float64] = single + EDGE_WEIGHT * 0.5 * (roots * roots - single)
    return result


def written_order(sentence: str, place: int) -> tuple[str, int, int]:
    """Where a sentence comes among those with its score, by its key and the place of its document in its index.

    Partitions come by their tags, in each what was written first: so an index orders its own, and so the best of all
    indexes are the same whatever their number is.

    >>> written_order("news/1:{5L5}:12", 7)
    ('5L5}', 7, 12)
    """
    document, _, number = sentence.rpartition(":")
    return document.rpartition("{")[2], place, int(number)


def merge(replies: Sequence[dict[str, Any]], count: int) -> Ranking:
    """The ``count`` best sentences of all shards, from their replies to ``qa.rank``.

    Frequencies are summed over the shards, so the scores are those of one index over the whole corpus. Equal scores are
    in the order of `written_order`.
    """
    epochs: dict[str, int] = {}
    parts: dict[str, RankedPartition] = {}
    found: list[tuple[str, list[float], int]] = []
    sentences = 0
    terms: list[str] = []
    frequencies: list[int] = []
    try:
        for reply in replies:
            sentences += reply["sentences"]
            terms = reply["terms"]
            epochs.update(reply["epochs"])
            frequencies = [a + b for a, b in zip(frequencies or [0] * len(terms), reply["df"], strict=True)]
            for tag, (own, of_terms, identity, next_id) in reply["parts"].items():
                parts[tag] = RankedPartition(own, tuple(of_terms), identity, next_id)
            found += [(key, weights, place) for key, weights, place in reply["candidates"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"a shard's reply to qa.rank cannot be read: {error!r}") from error
    ranked_by = (epochs, sentences, tuple(terms), tuple(frequencies), parts)
    if not found or not terms:
        return Ranking([], *ranked_by)
    rows = np.asarray([weights for _, weights, _ in found], dtype=np.float64)
    values = scores(rows, idf(sentences, frequencies))
    try:
        places = [written_order(key, place) for key, _, place in found]
    except (AttributeError, TypeError, ValueError) as error:
        raise ClusterError(f"a shard's reply to qa.rank cannot be read: {error!r}") from error
    order = sorted(range(len(found)), key=lambda i: (-values[i], places[i]))[:count]
    best = [Candidate(found[i][0], float(values[i]), tuple(found[i][1]), found[i][2]) for i in order]
    return Ranking(best, *ranked_by)
