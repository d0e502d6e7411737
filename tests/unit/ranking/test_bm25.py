"""Several indexes rank like one index, and not worse than BM25."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.documents.sentences import split_sentences
from qa_cluster.models.evaluation.sentence_index import SentenceIndex
from qa_cluster.ranking import bm25
from qa_cluster.ranking.bm25 import Candidate, best_of
from qa_cluster.ranking.postings import weights_of
from qa_cluster.ranking.terms import analyze, question_terms


class Index:
    """An index in memory."""

    def __init__(self, sentences: dict[str, str]) -> None:
        self.names = list(sentences)
        self.index = SentenceIndex(list(sentences.values()))
        self.rows = [weights_of(sentence) for sentence in sentences.values()]

    def frequencies(self, terms: list[str]) -> list[int]:
        return [sum(term in row for row in self.rows) for term in terms]

    def find(self, question: str, count: int) -> list[Candidate]:
        best = [number for number, _ in self.index.rank(question, count)]
        terms = question_terms(question)
        return [Candidate(self.names[i], 0.0, tuple(self.rows[i].get(term, 0.0) for term in terms), i) for i in best]


def ranked(indexes: list[Index], question: str, found: int, count: int) -> list[Candidate]:
    """The `count` best sentences of all indexes, from the best sentences of each index."""
    terms = question_terms(question)
    sums = [sum(column) for column in zip(*(index.frequencies(terms) for index in indexes), strict=True)]
    sentences = sum(len(index.names) for index in indexes)
    return best_of([hit for index in indexes for hit in index.find(question, found)], sentences, sums, count)


def corpus(size: int, seed: int = 1) -> dict[str, str]:
    chooser = random.Random(seed)
    words = [f"word{n}" for n in range(400)]
    frequencies = [1 / (n + 1) for n in range(400)]
    return {
        f"d{n:05}:{{t}}:0": " ".join(chooser.choices(words, frequencies, k=chooser.randint(3, 30))) for n in range(size)
    }


def test_three_indexes_rank_like_one() -> None:
    sentences = corpus(1500)
    names = list(sentences)
    whole = Index(sentences)
    parts = [Index({name: sentences[name] for name in names[i::3]}) for i in range(3)]
    for question in ("word3 word50", "word0 word120 word7 word33", "word390"):
        expected = ranked([whole], question, 1500, 10)
        merged = ranked(parts, question, 18, 10)
        assert [c.score for c in merged] == pytest.approx([c.score for c in expected]), question


def test_scores_are_bm25_and_edges() -> None:
    weights = np.array([[1.0, 4.0, 0.0], [0.0, 2.0, 0.0]])
    idf = np.array([2.0, 0.5, 9.0])
    assert bm25.scores(weights, idf).tolist() == pytest.approx([4 + 0.3 * np.sqrt(2 * 2), 1.0])


def test_equal_scores_are_in_the_order_in_which_they_were_written() -> None:
    """Within an index, sentences have this order. Across partitions, the order of the tags decides."""
    order = [("z:{a}:9", 3), ("a:{a}:2", 7), ("a:{a}:10", 7), ("b:{b}:0", 1)]
    rows = [Candidate(sentence, 0.0, (1.0,), place) for sentence, place in order]
    for count in range(1, 5):
        for shuffled in itertools.permutations(rows):
            assert [(c.sentence, c.place) for c in best_of(shuffled, 6, [4], count)] == order[:count]


def test_no_terms_and_no_candidates() -> None:
    assert best_of([], 3, [1], 5) == []
    found = [Candidate("a:{t}:0", 0.0, (), 1, 2.0), Candidate("a:{t}:1", 0.0, (), 1, 3.0)]
    assert [(item.sentence, item.score) for item in best_of(found, 3, [], 5)] == [("a:{t}:1", 3.0), ("a:{t}:0", 2.0)]


def test_the_meaning_is_added_to_the_words() -> None:
    words = Candidate("a:{t}:0", 0.0, (1.0,), 1)
    both = Candidate("a:{t}:1", 0.0, (1.0,), 1, by_meaning=2.0)
    first, second = best_of([words, both], 3, [1], 5)
    assert (first.sentence, second.sentence) == ("a:{t}:1", "a:{t}:0")
    assert first.score == pytest.approx(second.score + 2)


def evaluation_files() -> list[Path]:
    """The question sets next to the checkout, if there are any."""
    return sorted((Path(__file__).parents[4] / "shared" / "data" / "eval").glob("*_a.json"))


@pytest.mark.skipif(not evaluation_files(), reason="needs the question sets in ../shared/data/eval")
@pytest.mark.parametrize("path", evaluation_files(), ids=lambda path: path.stem)
def test_recall_is_not_worse_than_that_of_bm25s(path: Path) -> None:
    import bm25s  # type: ignore[import-untyped]

    sentences: dict[str, str] = {}
    questions: list[tuple[str, set[str]]] = []
    paragraphs = [p for article in json.loads(path.read_text())["data"] for p in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        text, spans = paragraph["context"], split_sentences(paragraph["context"])
        sentences |= {f"{number}:{{t}}:{i}": text[a:b] for i, (a, b) in enumerate(spans)}
        for qa in paragraph["qas"]:
            start = qa["answers"][0]["answer_start"]
            end = start + len(qa["answers"][0]["text"])
            gold = {f"{number}:{{t}}:{i}" for i, (a, b) in enumerate(spans) if a < end and start < b}
            questions.append((qa["question"], gold))
    names = list(sentences)
    index = Index(sentences)
    reference = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    reference.index([analyze(sentence) for sentence in sentences.values()], show_progress=False)
    ours, theirs = np.zeros(4), np.zeros(4)
    depths = (1, 5, 8, 20)
    for question, gold in questions:
        found = [c.sentence for c in ranked([index], question, 28, 20)]
        terms = analyze(question)
        expected = [names[i] for i in reference.retrieve([terms], k=20, show_progress=False)[0][0]] if terms else []
        ours += [bool(gold & set(found[:depth])) for depth in depths]
        theirs += [bool(gold & set(expected[:depth])) for depth in depths]
    # With so few questions, a difference of one question is noise.
    assert (ours >= theirs - 1).all(), (ours / len(questions), theirs / len(questions))
