"""Random histories of an index: its answers are always those of the oracle, which scores every sentence."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from .native_index import NativeIndex, library
from .oracle import CODE_WEIGHTS, Condition, Date, Fields, Sentence, admits, admitted
from .pair import Pair

TERMS = [f"term{i}" for i in range(60)] + ["é", "東京", "x" * 256]
NAMES = ["year", "lang", "draft", "day", "tags"]


def test_code_table_is_the_documented_one() -> None:
    """The constant table follows its formula, and each step is at most 2 %."""
    native = [library().shim_code_weight(code) for code in range(256)]
    assert native == CODE_WEIGHTS
    assert all(1 < b / a < 1.02 for a, b in itertools.pairwise(native[1:]))


class History(Pair):
    """One random history of the index, of a twin with other maintenance, and of the oracle."""

    def __init__(self, seed: int) -> None:
        """Starts the history of a seed."""
        super().__init__(NativeIndex(seed), NativeIndex(seed + 1000))
        self.random = random.Random(seed)
        self.known: list[str] = []

    def sentence(self) -> Sentence:
        """A sentence. Few of its terms are common, most are rare."""
        length = self.random.choice([0, 1, 3, 8, 8, 8, 15, 40])
        drawn = [TERMS[int(len(TERMS) * self.random.random() ** 2.5)] for _ in range(length)]
        if length == 1 and self.random.random() < 0.5:
            drawn = [f"rare{self.random.randrange(10**6)}"]
        return Sentence(dict(Counter(drawn)), length * self.random.choice([1, 1, 1, 50]))

    def value(self, name: str) -> object:
        """A value of a field, sometimes of the type of another field."""
        if self.random.random() < 0.05:
            name = self.random.choice(NAMES)
        return {
            "year": lambda: float(self.random.choice([2019, 2020, 2021, -0.0, 0.0])),
            "lang": lambda: self.random.choice(["de", "en", "", "ja"]),
            "draft": lambda: self.random.random() < 0.5,
            "day": lambda: Date(self.random.randrange(-3, 3) * 86400),
            "tags": lambda: self.random.choice("abcdef"),
        }[name]()

    def fields(self) -> Fields:
        """The fields of a document: sometimes empty, sometimes arrays."""
        chosen = self.random.sample(NAMES, self.random.choice([0, 0, 2, 5]))
        return {
            name: [self.value(name) for _ in range(self.random.choice([0, 2, 3]) if name == "tags" else 1)]  # type: ignore[misc]
            for name in chosen
        }

    def condition(self, depth: int = 0) -> Condition:
        """A random filter."""
        kind = self.random.random()
        if depth < 4 and kind < 0.35:
            children = [self.condition(depth + 1) for _ in range(self.random.randrange(4))]
            return (self.random.choice(["AND", "OR"]), children)
        if depth < 4 and kind < 0.45:
            return ("NOT", self.condition(depth + 1))
        if kind < 0.65:
            ids = [*self.random.sample(self.known, min(len(self.known), self.random.choice([1, 3, 40]))), "none"]
            if self.random.random() < 0.4:
                return (self.random.choice(["==", "!="]), "", ids[0])
            return (self.random.choice(["in", "in", "not in"]), "", ids)
        name = self.random.choice([*NAMES, "missing"])
        of = name if name in NAMES else "year"
        if self.random.random() < 0.3:
            values = [self.value(of) for _ in range(self.random.choice([0, 2, 12]))]
            return (self.random.choice(["in", "not in"]), name, values)
        value = self.value(of)
        ordered = isinstance(value, Date | float)
        return (self.random.choice(["==", "!=", "<", "<=", ">", ">="] if ordered else ["==", "!="]), name, value)

    # ---- Operations ----

    def open_one(self) -> None:
        """Opens a new document, or a new version of a document."""
        name = (
            self.random.choice(self.known)
            if self.known and self.random.random() < 0.3
            else f"document{len(self.known)}"
        )
        if name not in self.known:
            self.known.append(name)
        self.begin(name, self.fields())

    def continue_one(self) -> None:
        """Adds sentences to any open document, sometimes many."""
        if not self.open:
            return self.open_one()
        sentences = [self.sentence() for _ in range(self.random.choice([0, 1, 2, 5, 12, 60]))]
        return self.add(self.random.choice(self.open), sentences)

    def commit_one(self) -> None:
        """Commits an open document."""
        if self.open:
            self.commit(self.random.choice(self.open))

    def abort_one(self) -> None:
        """Aborts an open document, which searches must never find."""
        if self.open:
            document = self.open.pop(self.random.randrange(len(self.open)))
            for index in self.indexes:
                index.abort(index.open_at(document.head))

    def remove_some(self) -> None:
        """Removes any document, known or unknown, and sometimes many."""
        for _ in range(self.random.choice([1, 1, 1, 10])):
            self.remove(self.random.choice([*self.known, "none"]))

    def maintain(self) -> None:
        """Maintains only one of both indexes, in tiny steps."""
        for _ in range(self.random.choice([1, 5, 300])):
            if not self.indexes[0].maintain(self.random.choice([0, 1, 50, 1000])):
                break

    def reload(self) -> None:
        """Saves and loads; open documents stay open."""
        for i, index in enumerate(self.indexes):
            self.indexes[i] = index.again()
            index.close()
        assert all(index.open_at(document.head).value for document in self.open for index in self.indexes)
        assert not self.indexes[0].open_at(self.oracle.next_id).value

    def leave(self) -> None:
        """Aborts the open versions of a document, or the oldest open documents until another document can be opened."""
        if self.random.random() < 0.5:
            for index in self.indexes:
                index.make_room()
            self.open.sort(key=lambda one: one.head)
            del self.open[: -15 or None]
        elif self.open:
            name = self.random.choice(self.open).id
            assert [index.abort_id(name) for index in self.indexes] == [True, True]
            self.open = [one for one in self.open if one.id != name]
            assert [index.abort_id(name) for index in self.indexes] == [False, False]

    # ---- Checks ----

    def ask(self) -> None:
        """Asks a question, with or without a filter, and with or without the frequencies of a corpus."""
        pool = [*TERMS, "unknown", *[f"rare{self.random.randrange(10**6)}"]]
        few = TERMS[:5] if self.random.random() < 0.3 else pool
        terms = self.random.sample(few, self.random.choice([1, 2, 4, 5, 5] if len(few) == 5 else [1, 4, 6, 9, 20, 32]))
        k = self.random.choice([0, 1, 3, 8, 8, 50, 1000])
        corpus = None
        if self.random.random() < 0.4:
            corpus = (self.random.randrange(5000), [self.random.randrange(6000) for _ in terms])
        condition = self.condition() if self.random.random() < 0.5 else None
        expected = self.oracle.rank(terms, k, corpus, admitted(condition))
        _, sentences, total = self.oracle.totals()
        for index in self.indexes:
            hits, frequencies, totals = index.rank(terms, k, corpus, condition)
            assert hits == expected, condition
            assert frequencies == self.oracle.frequencies(terms)
            assert totals == (sentences, total)

    def check(self) -> None:
        """Checks counts, digests, memory and listing; a reloaded index is the same."""
        documents, sentences, total = self.oracle.totals()
        for index in self.indexes:
            counts = index.counts()
            assert (counts["documents"], counts["sentences"], counts["terms"]) == (documents, sentences, total)
            assert counts["open_documents"] == len(self.open)
            assert 0 <= counts["dead_postings"] <= counts["postings"]
        assert sum(index.counts()["bytes"] for index in self.indexes) == library().shim_held()
        copy = self.indexes[0].again()
        digest = self.indexes[0].digest()
        assert [self.indexes[1].digest(), copy.digest()] == [digest, digest]
        copy.close()
        condition = self.condition()
        wanted = [one for one in sorted(self.oracle.live.values(), key=lambda one: one.head) if admits(condition, one)]
        listed, cursor = [], 0
        while True:
            page, cursor = self.indexes[0].list(cursor, self.random.choice([1, 7, 100]), 5, condition)
            listed += page
            if not cursor:
                break
        assert listed == [document.id for document in wanted]


@pytest.mark.parametrize("seed", range(4))
def test_every_history_answers_as_the_oracle(seed: int) -> None:
    """A history has about a thousand operations, and enough sentences for packing, cleaning and repacking of lists."""
    history = History(seed)
    operations = {
        history.open_one: 8,
        history.continue_one: 24,
        history.commit_one: 8,
        history.abort_one: 2,
        history.remove_some: 5,
        history.maintain: 8,
        history.reload: 2,
        history.leave: 1,
        history.ask: 30,
        history.check: 3,
    }
    for _ in range(800):
        history.random.choices(list(operations), list(operations.values()))[0]()
    for name in list(history.oracle.live):
        history.remove(name)
    while history.open:
        history.abort_one()
    for index in history.indexes:
        while index.maintain(1000):
            pass
    history.ask()
    history.check()
