"""A question with a vector is watched as long as its best sentences stay the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .native_index import OK, library
from .native_watch import Asked, NativeWatch
from .oracle import BothHit, Condition, Document, Meaning, admits, pack_condition, pack_fields
from .test_both import TERMS, History
from .vectors import DIGEST, Passage, some_passages

from tests.module.indexes import packed  # isort: skip

NOTHING = -1e300  # a score that any sentence reaches


class Watched(History):
    """A history whose writes notify a watch."""

    def __init__(self, seed: int) -> None:
        """Makes an empty index and watch."""
        super().__init__(seed, 16)
        self.watch = NativeWatch(seed)
        self.asked: dict[str, tuple[Asked, int, Condition | None, list[BothHit]]] = {}
        self.number = 0

    def close(self) -> None:
        """Frees the index and the watch."""
        self.watch.close()
        super().close()

    def put(self) -> None:
        """Writes a document, with the calls of a writer."""
        name, fields, sentences = self.name(), self.fields(), self.sentences()
        self.watch.removing(self.index, name)
        self.watch.adding(self.index, name, pack_fields(fields), packed(sentences))
        document, handle = self.oracle.begin(name, fields), self.index.begin(name, fields)
        self.oracle.add(document, sentences)
        assert self.index.add(handle, sentences) == OK
        if name in self.oracle.live:
            assert self.index.remove(name) == OK
        assert self.index.commit(handle) == OK
        self.oracle.commit(document)
        self.part.pop(name, None)
        self.settle("put")

    def add(self) -> None:
        """Adds a part, with the calls of a writer."""
        if self.open:
            document, sentences = self.random.choice(self.open), self.sentences()
            self.oracle.add(document, sentences)
            self.watch.adding(self.index, document.id, pack_fields(document.fields), packed(sentences))
            assert self.index.add(self.index.open_at(document.head), sentences) == OK
            self.settle("add")

    def commit(self) -> None:
        """Commits an open document, with the calls of a writer."""
        if self.open:
            document = self.open.pop(self.random.randrange(len(self.open)))
            self.watch.removing(self.index, document.id)
            self.watch.committing(self.index.open_at(document.head))
            if document.id in self.oracle.live:
                assert self.index.remove(document.id) == OK
            assert self.index.commit(self.index.open_at(document.head)) == OK
            self.oracle.commit(document)
            self.part.pop(document.id, None)
            self.settle("commit")

    def remove(self) -> None:
        """Removes a document, with the calls of a writer."""
        name = self.name()
        self.watch.removing(self.index, name)
        if self.oracle.live.pop(name, None):
            assert self.index.remove(name) == OK
        self.part.pop(name, None)
        self.settle("remove")

    def embed(self) -> None:
        """Attaches some passages of a document, and checks that the right questions are dropped."""
        name, before = self.name(), self.index.next_id()
        if name not in self.oracle.live or not self.oracle.live[name].sentences:
            return
        self.attach(name)
        expected = set()
        if self.index.next_id() != before:
            document = self.oracle.live[name]
            expected = {each for each, one in self.asked.items() if self.reaches(one, document)}
            self.watch.embedded(self.index, name)
        assert self.settle("embed") == expected

    def attach(self, name: str) -> None:
        """Attaches some passages of a document."""
        document = self.oracle.live[name]
        digest, passages, done = self.part.pop(name, (b"", [], 0))
        if not done:
            digest = self.random.choice([DIGEST, DIGEST, b"encoder2"])
            passages = some_passages(self.random, len(document.sentences), self.dims)
            passages = [Passage(each.first, each.count, self.vector()) for each in passages]
        part = passages[done : done + self.random.choice([2, 100, 100])]
        rest = len(passages) - done - len(part)
        assert self.index.embed(name, digest, part, self.dims, done=done, rest=rest) == OK
        document.encoder, document.passages = digest, None if rest else passages
        if rest:
            self.part[name] = (digest, passages, done + len(part))
        self.oracle.next_id = self.index.next_id()

    def reaches(self, one: tuple[Asked, int, Condition | None, list[BothHit]], document: Document) -> bool:
        """Whether the answer contains the document, or would have used one of its sentences."""
        asked, _, condition, _ = one
        if document.id in asked.documents:
            return True
        chosen = lambda each: each is document and (condition is None or admits(condition, each))  # noqa: E731
        best = self.rank(asked, 1, chosen)
        return bool(best) and best[0].total >= asked.score

    def rank(self, asked: Asked, k: int, chosen: object) -> list[BothHit]:
        """The ranking of a watched question, with the frequencies at that time."""
        assert asked.meaning
        corpus = (asked.sentences, [given for given, _, _ in asked.terms.values()])
        return self.oracle.rank_by_both(list(asked.terms), k, asked.meaning, corpus, chosen)  # type: ignore[arg-type]

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
        chosen = lambda each: condition is None or admits(condition, each)  # noqa: E731
        hits = self.rank(asked, k, chosen)
        asked.documents = {hit.document: self.oracle.live[hit.document].head for hit in hits}
        asked.score = hits[-1].total if len(hits) == k else NOTHING
        return asked, k, condition, hits

    def ask(self) -> None:
        """Ranks and watches a question. Sometimes vectors are attached in between."""
        one = self.question()
        asked = one[0]
        between = [self.random.choice(sorted(self.oracle.live))] if self.oracle.live else []
        between = [name for name in between if self.oracle.live[name].sentences and self.random.random() < 0.5]
        concerned = False
        for name in between:
            before = self.index.next_id()
            self.attach(name)
            if self.index.next_id() != before:
                expected = {each for each, one in self.asked.items() if self.reaches(one, self.oracle.live[name])}
                self.watch.embedded(self.index, name)
                assert self.settle("embed") == expected
                concerned = self.reaches(one, self.oracle.live[name])
        added = self.watch.add(self.index, asked)
        waits = any(
            hit.total >= asked.score for document in self.open for hit in self.open_hits(asked, document, one[2])
        )
        assert added == (not concerned and not waits)
        self.count[f"watched {bool(between)} {added}"] += 1
        if added:
            self.asked[asked.name] = one

    def open_hits(self, asked: Asked, document: Document, condition: Condition | None) -> list[BothHit]:
        """The hits in an open document."""
        live, self.oracle.live = self.oracle.live, {document.id: document}
        hits = self.rank(asked, 1, lambda each: condition is None or admits(condition, each))
        self.oracle.live = live
        return hits

    def settle(self, write: str) -> set[str]:
        """Ends a write; returns the dropped questions. The rankings of the other questions must not have changed."""
        self.watch.settle(self.index)
        dropped = set(self.watch.dropped())
        for name in dropped:
            del self.asked[name]
        for asked, k, condition, hits in self.asked.values():
            chosen = lambda each, condition=condition: condition is None or admits(condition, each)  # noqa: E731
            assert self.rank(asked, k, chosen) == hits
        self.count.update({f"dropped by {write}": len(dropped), f"kept by {write}": len(self.asked)})
        return dropped


@pytest.fixture
def histories() -> Iterator[list[Watched]]:
    """Closes the histories of a test, and checks that no memory is left."""
    made: list[Watched] = []
    yield made
    for history in made:
        history.close()
    assert library().shim_held() == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_watched_question_has_the_same_best_sentences(histories: list[Watched], seed: int) -> None:
    history = Watched(seed)
    histories.append(history)
    operations = {
        history.put: 6,
        history.begin: 1,
        history.add: 2,
        history.commit: 1,
        history.remove: 1,
        history.embed: 12,
        history.ask: 12,
    }
    for _ in range(500):
        history.random.choices(list(operations), list(operations.values()))[0]()
    names = ["dropped by embed", "kept by embed", "dropped by put", "kept by put", "watched True True"]
    assert min(history.count[name] for name in names) > 15, history.count
