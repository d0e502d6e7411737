"""Ranks sentences by the question's terms: BM25 plus the edges of the term graph.

A shard's index finds its best sentences (``native/index/rank.c``); `merge` scores those of all shards exactly, under
the document frequencies of the whole corpus. An edge is a pair of the question's terms; a sentence that holds both ends
earns the geometric mean of their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import ClusterError

EDGE_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ranked sentence: its key ``<doc>:{tag}:<i>``, its score and its weight for every term of the question."""

    sentence: str
    score: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best sentences of the corpus, best first, and the epoch of every partition that was ranked."""

    candidates: list[Candidate]
    epochs: dict[str, int]
    sentences: int


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


def merge(replies: Sequence[dict[str, Any]], count: int) -> Ranking:
    """The ``count`` best sentences of all shards, from their replies to ``qa.rank``.

    Frequencies are summed over the shards, so the scores are those of one index over the whole corpus. Sentences with
    equal scores come in the order of their keys.
    """
    epochs: dict[str, int] = {}
    keys: list[str] = []
    rows: list[list[float]] = []
    sentences = 0
    frequencies: list[int] = []
    try:
        for reply in replies:
            sentences += reply["sentences"]
            epochs.update(reply["epochs"])
            frequencies = [a + b for a, b in zip(frequencies or [0] * len(reply["df"]), reply["df"], strict=True)]
            for key, weights in reply["candidates"]:
                keys.append(key)
                rows.append(weights)
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"a shard's reply to qa.rank cannot be read: {error!r}") from error
    if not rows:
        return Ranking([], epochs, sentences)
    weights = np.asarray(rows, dtype=np.float64)
    values = scores(weights, idf(sentences, frequencies))
    order = sorted(range(len(keys)), key=lambda i: (-values[i], keys[i]))[:count]
    return Ranking([Candidate(keys[i], float(values[i]), tuple(rows[i])) for i in order], epochs, sentences)
