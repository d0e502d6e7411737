"""The index in memory ranks as shards do: BM25 of all sentences, plus edges."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qa_cluster.models.evaluation.sentence_index import SentenceIndex
from qa_cluster.ranking.bm25 import idf, scores
from qa_cluster.ranking.postings import weights_of
from qa_cluster.ranking.terms import analyze, question_terms

chooser = random.Random(3)
WORDS = [f"word{n}" for n in range(60)]
SENTENCES = [" ".join(chooser.choices(WORDS, k=chooser.randint(3, 12))) for _ in range(300)]


@pytest.mark.parametrize("question", ["word3 word50", "word0 word1 word2 unheard", "word7"])
def test_the_best_sentences_are_the_best_of_all_sentences(question: str) -> None:
    terms = question_terms(question)
    rows = [[row.get(term, 0.0) for term in terms] for row in map(weights_of, SENTENCES)]
    frequencies = [sum(term in analyze(sentence) for sentence in SENTENCES) for term in terms]
    values = scores(np.array(rows), idf(len(SENTENCES), frequencies))
    order = sorted(range(len(SENTENCES)), key=lambda i: (-values[i], i))
    expected = order[:8]
    found = SentenceIndex(SENTENCES).rank(question, 8)
    assert {number for number, _ in found} <= {i for i in order if values[i] > 0.97 * values[expected[-1]]}
    # an index rounds weights in steps of 1.87 %
    assert [value for _, value in found] == pytest.approx([values[i] for i in expected], rel=0.01)


def test_sentences_without_a_term_of_the_question_are_not_ranked() -> None:
    index = SentenceIndex(["Ada wrote it.", "Rome is in Italy."])
    assert [number for number, _ in index.rank("Where is Rome?", 8)] == [1]
    assert index.rank("Where is Zürich?", 8) == []
    assert index.rank("?", 8) == []
