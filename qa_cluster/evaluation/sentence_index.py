"""The sentences of a corpus in memory, ranked as the shards rank theirs; for measuring and fitting, not for serving.

The ranking uses exact weights. The shards' index keeps its weights in 8 bits, at most 0.94 % off, so that the order can
differ a little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from qa_cluster.ranking.bm25 import idf, scores
from qa_cluster.ranking.postings import weights_of
from qa_cluster.ranking.terms import question_terms

_Postings = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
_NONE: _Postings = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))


class SentenceIndex:
    """Ranks sentences for questions.

    >>> SentenceIndex(["Ada wrote it.", "Rome is in Italy."]).rank("Where is Rome?", 8)
    [(1, 1.0738928959050074)]
    """

    def __init__(self, sentences: Sequence[str], fields: Iterable[Mapping[str, int]] | None = None) -> None:
        """`fields` has the terms of each sentence's title, file and section (`qa_cluster.ranking.fields`)."""
        by_term: dict[str, tuple[list[int], list[float]]] = {}
        below = fields if fields is not None else repeat({})
        for number, (sentence, own) in enumerate(zip(sentences, below, strict=False)):
            for term, weight in weights_of(sentence, own).items():
                numbers, weights = by_term.setdefault(term, ([], []))
                numbers.append(number)
                weights.append(weight)
        self._sentences = len(sentences)
        self._postings: dict[str, _Postings] = {
            term: (np.array(numbers, dtype=np.int64), np.array(weights, dtype=np.float32))
            for term, (numbers, weights) in by_term.items()
        }

    def rank(self, question: str, count: int) -> list[tuple[int, float]]:
        """Number and ranking score of the `count` best sentences, best first; fewer where fewer share a term."""
        postings = [self._postings.get(term, _NONE) for term in question_terms(question)]
        if not any(len(numbers) for numbers, _ in postings):
            return []
        found = np.unique(np.concatenate([numbers for numbers, _ in postings]))
        weights = np.zeros((len(found), len(postings)), dtype=np.float32)
        for column, (numbers, own) in enumerate(postings):
            weights[np.searchsorted(found, numbers), column] = own
        values = scores(weights, idf(self._sentences, [len(numbers) for numbers, _ in postings]))
        order = np.lexsort((found, -values))[:count]
        return list(zip(found[order].tolist(), values[order].tolist(), strict=True))
