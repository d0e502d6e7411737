"""Ranking: shards merged are one index, common terms cost little, and nothing is worse than BM25."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import ClusterError
from qa_cluster.ranking import bm25
from qa_cluster.ranking.bm25 import TermPostings, WeightArray, merge, select
from qa_cluster.ranking.postings import build_postings
from qa_cluster.ranking.terms import analyze, question_terms
from qa_cluster.sentences import split_sentences

NOTHING = TermPostings.build(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), 0)


class Shard:
    """An index in memory that answers as `qa.rank` does."""

    def __init__(self, sentences: dict[str, str], read_limit: int | None = None) -> None:
        self.names = list(sentences)
        self.rows = build_postings(list(sentences.values())).weights
        self.read_limit = read_limit
        self.lookups = 0
        self.by_term: dict[str, dict[int, float]] = {}
        for i, row in enumerate(self.rows):
            for term, weight in row.items():
                self.by_term.setdefault(term, {})[i] = weight

    def _postings(self, term: str) -> TermPostings:
        found = self.by_term.get(term, {})
        best = sorted(found.items(), key=lambda item: -item[1])[: self.read_limit]
        ids = np.array([i for i, _ in best], dtype=np.int64)
        return TermPostings.build(ids, np.array([w for _, w in best], dtype=np.float32), len(found))

    def rank(self, question: str, count: int) -> dict[str, Any]:
        terms = question_terms(question)

        def lookup(term: int, ids: np.ndarray) -> WeightArray:
            self.lookups += 1
            return np.array([self.by_term[terms[term]].get(int(i), 0) for i in ids], dtype=np.float32)

        postings = [self._postings(term) for term in terms]
        ids, weights = select(postings, len(self.names), count, lookup)
        return {
            "epochs": {self.names[0]: 1},
            "sentences": len(self.names),
            "df": [term.frequency for term in postings],
            "candidates": [[self.names[i], row] for i, row in zip(ids.tolist(), weights.tolist(), strict=True)],
        }


def corpus(size: int, seed: int = 1) -> dict[str, str]:
    chooser = random.Random(seed)
    words = [f"word{n}" for n in range(400)]
    frequencies = [1 / (n + 1) for n in range(400)]
    return {f"d{n:05}": " ".join(chooser.choices(words, frequencies, k=chooser.randint(3, 30))) for n in range(size)}


QUESTIONS = ["word3 word50", "word0 word1 word2", "word390", "word0 word120 word7 word33", "word1"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_three_shards_are_one_index(question: str) -> None:
    sentences = corpus(3000)
    whole = merge([Shard(sentences).rank(question, 3000)], 10)
    names = list(sentences)
    parts = [Shard({name: sentences[name] for name in names[i::3]}) for i in range(3)]
    merged = merge([part.rank(question, 18) for part in parts], 10)
    assert merged.sentences == 3000
    assert [c.score for c in merged.candidates] == pytest.approx([c.score for c in whole.candidates])


def test_scores_are_bm25_and_edges() -> None:
    weights = np.array([[1.0, 4.0, 0.0], [0.0, 2.0, 0.0]])
    idf = np.array([2.0, 0.5, 9.0])
    assert bm25.scores(weights, idf).tolist() == pytest.approx([4 + 0.3 * np.sqrt(2 * 2), 1.0])


@pytest.mark.parametrize("question", QUESTIONS)
def test_reading_only_the_best_postings_of_common_terms_loses_nothing_at_the_top(question: str) -> None:
    sentences = corpus(20_000)
    full = merge([Shard(sentences).rank(question, 16)], 8)
    bounded = merge([Shard(sentences, read_limit=1024).rank(question, 16)], 8)
    assert bounded.candidates[0].score == pytest.approx(full.candidates[0].score, rel=0.03)


def test_candidates_are_bounded_however_common_a_term_is() -> None:
    ids = np.arange(100_000, dtype=np.int64)
    common = TermPostings.build(ids, np.ones(len(ids), dtype=np.float32), len(ids))
    assert len(bm25._candidate_ids([common] * 8)) <= bm25.BEST_OF_COMMON * 8


def test_equal_scores_are_in_the_order_of_their_keys() -> None:
    reply = {"epochs": {}, "sentences": 3, "df": [3], "candidates": [["c", [1.0]], ["a", [1.0]], ["b", [1.0]]]}
    assert [c.sentence for c in merge([reply], 2).candidates] == ["a", "b"]


def test_no_terms_and_no_candidates() -> None:
    assert merge([{"epochs": {"t": 1}, "sentences": 3, "df": [], "candidates": []}], 5).candidates == []
    assert len(select([], 10, 5, lambda _term, ids: np.zeros(len(ids), dtype=np.float32))[0]) == 0
    assert len(select([NOTHING], 10, 5, lambda _term, ids: np.zeros(len(ids), dtype=np.float32))[0]) == 0


@pytest.mark.parametrize("reply", [{}, {"epochs": {}, "sentences": 1, "df": [1], "candidates": [1]}])
def test_a_reply_that_cannot_be_read_is_an_error(reply: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r"qa\.rank"):
        merge([reply], 5)


def evaluation_files() -> list[Path]:
    """The question sets beside the checkout, where there are any."""
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
        sentences |= {f"{number}:{i}": text[a:b] for i, (a, b) in enumerate(spans)}
        for qa in paragraph["qas"]:
            start = qa["answers"][0]["answer_start"]
            end = start + len(qa["answers"][0]["text"])
            gold = {f"{number}:{i}" for i, (a, b) in enumerate(spans) if a < end and start < b}
            questions.append((qa["question"], gold))
    names = list(sentences)
    shard = Shard(sentences)
    reference = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    reference.index([analyze(sentence) for sentence in sentences.values()], show_progress=False)
    ours, theirs = np.zeros(4), np.zeros(4)
    depths = (1, 5, 8, 20)
    for question, gold in questions:
        found = [c.sentence for c in merge([shard.rank(question, 28)], 20).candidates]
        terms = analyze(question)
        expected = [names[i] for i in reference.retrieve([terms], k=20, show_progress=False)[0][0]] if terms else []
        ours += [bool(gold & set(found[:depth])) for depth in depths]
        theirs += [bool(gold & set(expected[:depth])) for depth in depths]
    # One question more or less is noise at these sizes.
    assert (ours >= theirs - 1).all(), (ours / len(questions), theirs / len(questions))
