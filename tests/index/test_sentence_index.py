"""The ranking in memory, which training uses, gives the same results as the index."""

from __future__ import annotations

import random

import pytest

from qa_cluster.models.evaluation.sentence_index import SentenceIndex
from qa_cluster.ranking.fields import field_terms
from qa_cluster.ranking.postings import counts_of
from qa_cluster.ranking.terms import question_terms

from .native_index import OK, NativeIndex
from .oracle import Sentence

WORDS = [f"word{number}" for number in range(80)]
TITLES = ["", "", "word3(1) - word9", "word1", "word70 word71"]


def corpus(chance: random.Random) -> tuple[list[str], list[dict[str, int]]]:
    """Sentences of all lengths, some of which are equal, and the terms of their titles."""
    words = [1 / (rank + 1) for rank in range(len(WORDS))]
    sentences = [" ".join(chance.choices(WORDS, words, k=chance.choice([1, 2, 5, 15, 40, 400]))) for _ in range(300)]
    sentences += chance.choices(sentences, k=100)
    return sentences, [field_terms(chance.choice(TITLES)) for _ in sentences]


@pytest.mark.parametrize("seed", range(3))
def test_both_find_the_same_sentences_with_the_same_scores(index: NativeIndex, seed: int) -> None:
    chance = random.Random(seed)
    sentences, fields = corpus(chance)
    for number, (sentence, own) in enumerate(zip(sentences, fields, strict=True)):
        length, counts = counts_of(sentence, own)
        handle = index.begin(str(number), {})
        assert index.add(handle, [Sentence(dict(counts), length)]) == OK
        assert index.commit(handle) == OK
    memory = SentenceIndex(sentences, fields)
    for _ in range(60):
        question = " ".join(chance.sample(WORDS, chance.choice([1, 2, 3, 6, 12])))
        for count in (1, 8, 50, 500):
            expected, _, _ = index.rank(question_terms(question), count)
            found = memory.rank(question, count)
            assert [score for _, score in found] == pytest.approx([score for _, _, score, _ in expected], rel=1e-12)
            # scores are rounded, because both indexes add numbers in another order
            mine = [(round(-score, 9), number) for number, score in found]
            theirs = [(round(-score, 9), int(name)) for name, _, score, _ in expected]
            last = max(score for score, _ in theirs) if len(theirs) == count else 0.0
            assert sorted(one for one in mine if one[0] < last) == sorted(one for one in theirs if one[0] < last)


def test_sentences_without_a_term_of_the_question_are_not_ranked() -> None:
    memory = SentenceIndex(["Ada wrote it.", "Rome is in Italy."])
    assert [number for number, _ in memory.rank("Where is Rome?", 8)] == [1]
    assert memory.rank("Where is Zürich?", 8) == memory.rank("?", 8) == []
