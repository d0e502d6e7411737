"""Ranks sentences by the question's terms: BM25 plus the edges of the term graph.

A shard calls `select` on its postings and returns what `merge` needs to score the candidates of all shards exactly,
under the document frequencies of the whole corpus. An edge is a pair of the question's terms; a sentence that holds
both ends earns the geometric mean of their weights. Pure functions; reading postings is the caller's job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import ClusterError

EDGE_WEIGHT = 0.3
# Postings of rare terms are candidates until they are so many; of the other terms only the best few are.
CANDIDATE_BUDGET = 2048
BEST_OF_COMMON = 256

IdArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TermPostings:
    """Postings of one term on a shard: ids in ascending order with their weights, and the positions of the best.

    Attributes:
        frequency: how many sentences hold the term; more than there are ids when only the best were read.
        best: positions of the heaviest postings, heaviest first.
    """

    ids: IdArray
    weights: WeightArray
    best: npt.NDArray[np.int64]
    frequency: int

    @classmethod
    def build(cls, ids: IdArray, weights: WeightArray, frequency: int) -> TermPostings:
        """From postings in any order."""
        order = np.argsort(ids, kind="stable")
        ids, weights = ids[order], weights[order]
        best = np.argsort(-weights, kind="stable")[:BEST_OF_COMMON]
        return cls(ids, weights, best, frequency)

    @property
    def complete(self) -> bool:
        """Whether these are all postings of the term."""
        return len(self.ids) >= self.frequency


class WeightLookup(Protocol):
    """Finds the weights of given sentences for the term at a position, where its postings are not complete."""

    def __call__(self, term: int, ids: IdArray) -> WeightArray:
        """One weight per id, 0 where the sentence does not hold the term."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sentence, best of the corpus first: its key ``<doc>:{tag}:<i>``, its score and its weight for every term."""

    sentence: str
    score: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best sentences of the corpus, and the epoch of every partition they were chosen from."""

    candidates: list[Candidate]
    epochs: dict[str, int]
    sentences: int


def idf(sentences: int, frequencies: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Inverse document frequency of terms, never negative."""
    df = np.minimum(np.asarray(frequencies, dtype=np.float64), sentences)
    return np.log1p((sentences - df + 0.5) / (df + 0.5))


def scores(weights: npt.NDArray[np.floating[Any]], term_idf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """BM25 plus edges of sentences, one row of ``weights`` each.

    The edges of a row are the sum over pairs of sqrt(a * b), which is half of (sum of sqrt(a)) ** 2 - sum of a.
    """
    weighted = weights * term_idf
    single = weighted.sum(axis=1)
    roots = np.sqrt(weighted).sum(axis=1)
    result: npt.NDArray[np.float64] = single + EDGE_WEIGHT * 0.5 * (roots * roots - single)
    return result


def select(
    postings: Sequence[TermPostings], sentences: int, count: int, lookup: WeightLookup
) -> tuple[IdArray, WeightArray]:
    """The ``count`` best sentences of a shard under its own frequencies: ids and a row of weights each, best first.

    The work is bounded however common a term is: rare terms give all their sentences, common ones their heaviest, and
    are then only looked up for sentences that are candidates already.
    """
    ids = _candidate_ids(postings)
    if not len(ids):
        return ids, np.zeros((0, len(postings)), dtype=np.float32)
    weights = np.zeros((len(ids), len(postings)), dtype=np.float32)
    for column, term in enumerate(postings):
        if len(term.ids):
            places = np.searchsorted(term.ids, ids)
            places[places == len(term.ids)] = 0
            weights[:, column] = np.where(term.ids[places] == ids, term.weights[places], 0)
    term_idf = idf(sentences, [term.frequency for term in postings])
    incomplete = [column for column, term in enumerate(postings) if not term.complete]
    if incomplete:
        # What was not read of a term is at most as heavy as the lightest that was: the rest cannot win by it.
        shortlist = _best(scores(weights, term_idf), ids, 4 * count)
        ids, weights = ids[shortlist], weights[shortlist]
        for column in incomplete:
            missing = np.flatnonzero(weights[:, column] == 0)
            if len(missing):
                weights[missing, column] = lookup(column, ids[missing])
    order = _best(scores(weights, term_idf), ids, count)
    return ids[order], weights[order]


def _candidate_ids(postings: Sequence[TermPostings]) -> IdArray:
    parts: list[IdArray] = []
    room = CANDIDATE_BUDGET
    for term in sorted(postings, key=lambda term: term.frequency):
        if term.complete and len(term.ids) <= room:
            parts.append(term.ids)
            room -= len(term.ids)
        else:
            parts.append(term.ids[term.best])
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


def _best(values: npt.NDArray[np.float64], ids: IdArray, count: int) -> npt.NDArray[np.int64]:
    if len(values) > count:
        top = np.argpartition(-values, count - 1)[:count]
        return top[np.lexsort((ids[top], -values[top]))]
    return np.lexsort((ids, -values))


def merge(replies: Sequence[dict[str, Any]], count: int) -> Ranking:
    """The ``count`` best sentences of all shards, from their replies to ``qa.rank``.

    Frequencies are summed over the shards, so the scores are those of one index over the whole corpus. Equal scores are
    put in the order of their keys.
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
