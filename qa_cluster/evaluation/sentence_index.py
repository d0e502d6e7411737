"""The sentences of a corpus in memory, ranked as the shards rank theirs; for measuring and fitting, not for serving.

Weights, frequencies and selection are the shards' own code; they read at most a bounded number of a common term's
postings, here all are at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qa_cluster.ranking.bm25 import IdArray, TermPostings, WeightArray, idf, scores, select
from qa_cluster.ranking.postings import build_postings
from qa_cluster.ranking.terms import question_terms

_EMPTY = TermPostings.build(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), 0)


class SentenceIndex:
    """Ranks sentences for questions.

    >>> SentenceIndex(["Ada wrote it.", "Rome is in Italy."]).rank("Where is Rome?", 8)
    [(1, 1.0738928959050074)]
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        by_term: dict[str, tuple[list[int], list[float]]] = {}
        for number, row in enumerate(build_postings(sentences).weights):
            for term, weight in row.items():
                ids, weights = by_term.setdefault(term, ([], []))
                ids.append(number)
                weights.append(weight)
        self._sentences = len(sentences)
        self._postings = {
            term: TermPostings.build(np.array(ids, dtype=np.int64), np.array(weights, dtype=np.float32), len(ids))
            for term, (ids, weights) in by_term.items()
        }

    def rank(self, question: str, count: int) -> list[tuple[int, float]]:
        """Number and ranking score of the `count` best sentences, best first; fewer where fewer share a term."""
        postings = [self._postings.get(term, _EMPTY) for term in question_terms(question)]
        ids, weights = select(postings, self._sentences, count, _nothing_is_missing)
        if not len(ids):
            return []
        values = scores(weights, idf(self._sentences, [term.frequency for term in postings]))
        return list(zip(ids.tolist(), values.tolist(), strict=True))


def _nothing_is_missing(term: int, ids: IdArray) -> WeightArray:
    raise LookupError(f"postings of term {term} are complete, {len(ids)} weights were looked up")
