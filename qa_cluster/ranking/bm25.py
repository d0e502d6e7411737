"""Scores sentences by the question's terms: BM25 plus a bonus for each pair of terms (*edges*).

Each partition's index finds its best sentences (``native/index/rank.c``). `best_of` scores the sentences from all
indexes exactly, with the document frequencies of the whole corpus. An edge is a pair of the question's terms. A
sentence that contains both terms gets a bonus: `EDGE_WEIGHT` times the geometric mean of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_cluster.topology import Shard

from .meaning import QuestionVector

EDGE_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ranked sentence.

    Attributes:
        sentence: the key of the sentence, ``<doc>:{tag}:<i>``.
        score: the score with the frequencies of the whole corpus, including the part by meaning.
        weights: for each term, the BM25 weight in the sentence, without idf; 0 if the sentence lacks the term.
        place: the position of the document in the partition's index. A document that is indexed again gets a new
            position. `DocumentStore.change_metadata` does not change the position.
        by_meaning: the part of the score that comes from the meaning of the sentence's passage.
    """

    sentence: str
    score: float
    weights: tuple[float, ...]
    place: int = 0
    by_meaning: float = 0.0


@dataclass(frozen=True, slots=True)
class RankedPartition:
    """The state of a partition's index when it was ranked.

    Attributes:
        sentences: the number of sentences in the index.
        frequencies: for each term, the number of these sentences that contain it.
        identity: identifies the index; a new index under the same key has a different identity.
        next_id: the id that the index gives to the next document.
    """

    sentences: int
    frequencies: tuple[int, ...]
    identity: int
    next_id: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best sentences of the corpus, and the state of the indexes that found them.

    Attributes:
        candidates: the best sentences, the best first.
        epochs: the epoch of each partition.
        sentences: the number of sentences in the corpus.
        terms: the terms of the question, with the terms that an expansion adds.
        frequencies: for each term, the number of sentences in the corpus that contain it.
        weighed: for each term, the frequency that determines its weight. An expansion changes the frequencies of the
            terms that it adds. Empty if no frequency has changed.
        parts: the state of each partition's index.
        reindexing: whether a different version of the analyzer computed the terms of some partitions. Such a ranking
            may miss sentences, and no answer from it is cached.
        vector: the vector of the question; None: the ranking uses words only.
        left_out: the shards that were ranked, but whose sentences are not candidates, because the workers of these
            shards cannot read now.
    """

    candidates: list[Candidate]
    epochs: dict[str, int]
    sentences: int
    terms: tuple[str, ...] = ()
    frequencies: tuple[int, ...] = ()
    parts: Mapping[str, RankedPartition] = field(default_factory=dict)
    reindexing: bool = False
    vector: QuestionVector | None = None
    weighed: tuple[int, ...] = ()
    left_out: frozenset[Shard] = frozenset()


def idf(sentences: int, frequencies: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the inverse document frequency of each term; it is never negative.

    `sentences` is the number of sentences in the corpus. `frequencies` has, for each term, the number of these
    sentences that contain it.
    """
    df = np.minimum(np.asarray(frequencies, dtype=np.float64), sentences)
    return np.log1p((sentences - df + 0.5) / (df + 0.5))


def scores(weights: npt.NDArray[np.floating[Any]], term_idf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the score of each row of `weights` [sentences, terms]: BM25 plus edges.

    The bonus for the edges of a row is `EDGE_WEIGHT` times the sum of sqrt(a * b) over all pairs of terms. Here, a and
    b are the weights of both terms times their idf. The sum is equal to ((sum of sqrt(a)) ** 2 - sum of a) / 2.
    """
    weighted = weights * term_idf
    single = weighted.sum(axis=1)
    roots = np.sqrt(weighted).sum(axis=1)
    result: npt.NDArray[np.float64] = single + EDGE_WEIGHT * 0.5 * (roots * roots - single)
    return result


def written_order(sentence: str, place: int) -> tuple[str, int, int]:
    """Return the sort key of a sentence among sentences with equal scores. `place` is its document's position.

    Partitions are sorted by their tags. Within a partition, the sentence that was written first comes first. An index
    sorts its own sentences in the same way, so the result does not depend on the number of indexes.

    >>> written_order("news/1:{5L5}:12", 7)
    ('5L5}', 7, 12)
    """
    document, _, number = sentence.rpartition(":")
    return document.rpartition("{")[2], place, int(number)


def best_of(found: Sequence[Candidate], sentences: int, frequencies: Sequence[int], count: int) -> list[Candidate]:
    """Return the `count` best of the found sentences, scored with the statistics of the whole corpus.

    Args:
        found: the sentences from all indexes.
        sentences: the number of sentences in the corpus.
        frequencies: for each term, the frequency that determines its weight. If it is empty, only the part by meaning
            counts.
        count: the maximum number of returned sentences.
    """
    if not found:
        return []
    values = np.asarray([item.by_meaning for item in found], dtype=np.float64)
    if frequencies:
        weights = np.asarray([item.weights for item in found], dtype=np.float64)
        values += scores(weights, idf(sentences, frequencies))
    scored = [replace(item, score=float(value)) for item, value in zip(found, values, strict=True)]
    return sorted(scored, key=lambda item: (-item.score, written_order(item.sentence, item.place)))[:count]
