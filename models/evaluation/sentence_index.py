"""Ranks the sentences of a corpus in memory exactly as the shards do by words, without a cluster.

The fit of the wave threshold (`waves`) and the mining of passages use this ranking. The ranking scores every sentence
that shares a term with the question, by the formula of `qa_cluster.ranking.bm25`. The weights have 8 bits, as in the
index of a shard (``native/index/codes.c``). `tests/index/test_sentence_index.py` compares both rankings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from qa_cluster.ranking.bm25 import idf, scores
from qa_cluster.ranking.postings import K1, REFERENCE_LENGTH, B, counts_of
from qa_cluster.ranking.terms import question_terms

_Postings = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
_NONE: _Postings = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
# The weights that the 8-bit codes 1 to 255 represent.
_KEPT = np.round(2**20 * 0.02 * 110 ** (np.arange(255) / 254)) / 2**20
_BETWEEN = _KEPT[:-1] * _KEPT[1:]


class SentenceIndex:
    """Ranks sentences for questions.

    >>> SentenceIndex(["Ada wrote it.", "Rome is in Italy."]).rank("Where is Rome?", 8)
    [(1, 1.0728664712256188)]
    """

    def __init__(self, sentences: Sequence[str], fields: Iterable[Mapping[str, int]] | None = None) -> None:
        """Index the sentences.

        `fields` has the terms of each sentence's title, file and section (`qa_cluster.ranking.fields`). None means that
        there are no fields.
        """
        by_term: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        below = fields if fields is not None else repeat({})
        for number, (sentence, own) in enumerate(zip(sentences, below, strict=False)):
            length, counts = counts_of(sentence, own)
            for term, count in counts.items():
                numbers, occurrences = by_term.setdefault(term, ([], []))
                numbers.append(number)
                occurrences.append((count, length))
        self._sentences = len(sentences)
        self._postings: dict[str, _Postings] = {
            term: (np.array(numbers, dtype=np.int64), _kept(np.array(occurrences, dtype=np.float64)))
            for term, (numbers, occurrences) in by_term.items()
        }

    def rank(self, question: str, count: int) -> list[tuple[int, float]]:
        """Return the numbers (from 0) and the ranking scores of the best sentences that share a term with the question.
        At most `count` sentences are returned, best first.

        Sentences with equal scores are in the order of their numbers.
        """
        postings = [self._postings.get(term, _NONE) for term in question_terms(question)]
        if not any(len(numbers) for numbers, _ in postings):
            return []
        found = np.unique(np.concatenate([numbers for numbers, _ in postings]))
        weights = np.zeros((len(found), len(postings)), dtype=np.float64)
        for column, (numbers, own) in enumerate(postings):
            weights[np.searchsorted(found, numbers), column] = own
        values = scores(weights, idf(self._sentences, [len(numbers) for numbers, _ in postings]))
        order = np.lexsort((found, -values))[:count]
        return list(zip(found[order].tolist(), values[order].tolist(), strict=True))


def _kept(occurrences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights of terms, each replaced by the weight of its nearest 8-bit code.

    A row of `occurrences` has the frequency of a term and the length of its sentence.

    The nearest code is chosen by ratio. Of two neighbouring codes, the upper one is chosen if the square of the exact
    weight is above the product of the weights of both codes.
    """
    frequency, length = occurrences.T
    exact = frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH))
    kept: npt.NDArray[np.float64] = _KEPT[np.searchsorted(_BETWEEN, exact * exact)]
    return kept
