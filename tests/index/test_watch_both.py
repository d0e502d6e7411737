"""A question with a vector is watched as long as its best sentences stay the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from .native_watch import Asked, NativeWatch
from .oracle import BothHit, Condition, Document, Meaning, admitted, pack_condition
from .test_both import TERMS, History

NOTHING = -1e300  # a score that any sentence reaches


class Watched(History):
    """A history whose writes notify a watch."""

    def __init__(self, seed: int) -> None:
        """Makes an empty index and watch."""
        super().__init__(seed, 16)
        self.watch: NativeWatch = NativeWatch(seed)
        self.asked: dict[str, tuple[Asked, int, Condition | None, list[BothHit]]] = {}
        self.number = 0
        self.dropped: set[str] = set()

    def embed(self, document: Document) -> None:
        """Attaches some passages of a document, and checks that the right questions are dropped."""
        before, expected = self.index.next_id(), set[str]()
        super().embed(document)
        if self.index.next_id() != before:
            expected = {each for each, one in self.asked.items() if self.reaches(one, document)}
            self.watch.embedded(self.index, document.id)
        self.settle("embed")
        assert self.dropped == expected

    def reaches(self, one: tuple[Asked, int, Condition | None, list[BothHit]], document: Document) -> bool:
        """Whether the answer contains the document, or would have used one of its sentences."""
        asked, _, condition, _ = one
        if document.id in asked.documents:
            return True
        best = self.rank(asked, 1, lambda each: each is document and admitted(condition)(each))
        return bool(best) and best[0].total >= asked.score

    def rank(self, asked: Asked, k: int, chosen: Callable[[Document], bool]) -> list[BothHit]:
        """The ranking of a watched question, with the frequencies at that time."""
        assert asked.meaning
        corpus = (asked.sentences, [given for given, _, _ in asked.terms.values()])
        return self.oracle.rank_by_both(list(asked.terms), k, asked.meaning, corpus, chosen)

    def question(self) -> tuple[Asked, int, Condition | None, list[BothHit]]:
        """A question and its ranking."""
        self.number += 1
        terms, k = self.random.sample(TERMS, self.random.choice([0, 1, 2, 4])), self.random.choice([1, 3, 8])
        sentences, frequencies = self.oracle.totals()[1] + 1, self.oracle.frequencies(terms)
        condition = self.condition()
        meaning = Meaning(self.vector(), self.random.choice([0.5, 3.0, 40.0]), self.random.choice([-0.2, 0.1]))
        asked = Asked(
            f"question{self.number}",
            {term: (given, 0, 2**53) for term, given in zip(terms, frequencies, strict=True)},
            {},
            sentences,
            NOTHING,
            self.index.next_id(),
            filter=pack_condition(condition) if condition else b"",
            meaning=meaning,
        )
        hits = self.rank(asked, k, admitted(condition))
        asked.documents = {hit.document: self.oracle.live[hit.document].head for hit in hits}
        asked.score = hits[-1].total if len(hits) == k else NOTHING
        return asked, k, condition, hits

    def ask(self) -> None:
        """Ranks and watches a question. Sometimes vectors are attached in between."""
        one = self.question()
        asked, _, condition, _ = one
        concerned, between = False, None
        if self.oracle.live and self.random.random() < 0.5:
            between = self.oracle.live[self.random.choice(sorted(self.oracle.live))]
        if between and between.sentences:
            before = self.index.next_id()
            self.embed(between)
            concerned = self.index.next_id() != before and self.reaches(one, between)
        added = self.watch.add(self.index, asked)
        waits = any(self.open_total(asked, document, condition) >= asked.score for document in self.open)
        assert added == (not concerned and not waits)
        self.count[f"watched {bool(between)} {added}"] += 1
        if added:
            self.asked[asked.name] = one

    def open_total(self, asked: Asked, document: Document, condition: Condition | None) -> float:
        """The best score in an open document."""
        live, self.oracle.live = self.oracle.live, {document.id: document}
        hits = self.rank(asked, 1, admitted(condition))
        self.oracle.live = live
        return hits[0].total if hits else -math.inf

    def settle(self, write: str) -> None:
        """Ends a write. The rankings of the questions that are not dropped must not have changed."""
        super().settle(write)
        self.dropped = set(self.watch.dropped())
        for name in self.dropped:
            del self.asked[name]
        for asked, k, condition, hits in self.asked.values():
            assert self.rank(asked, k, admitted(condition)) == hits
        self.count.update({f"dropped by {write}": len(self.dropped), f"kept by {write}": len(self.asked)})


@pytest.mark.parametrize("seed", range(3))
def test_a_watched_question_has_the_same_best_sentences(seed: int) -> None:
    history = Watched(seed)
    operations = {
        history.put_one: 6,
        history.open_one: 1,
        history.continue_one: 2,
        history.commit_one: 1,
        history.remove_one: 1,
        history.embed_one: 12,
        history.ask: 12,
    }
    for _ in range(500):
        history.random.choices(list(operations), list(operations.values()))[0]()
    names = ["dropped by embed", "kept by embed", "dropped by put", "kept by put", "watched True True"]
    assert min(history.count[name] for name in names) > 15, history.count
