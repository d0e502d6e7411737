"""A write drops exactly the watched questions whose answers it may change."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from .native_index import NativeIndex
from .native_watch import MOST, Asked, NativeWatch
from .oracle import Condition, Document, Fields, Oracle, Sentence, admitted, pack_condition, score_of
from .pair import Pair

TERMS = [f"term{i}" for i in range(25)]
CONDITIONS: list[Condition | None] = [
    None,
    ("==", "lang", "de"),
    ("!=", "lang", "de"),
    ("in", "", ["document7", "document8"]),
]
NO_LANG: Fields = {}
DE: Fields = {"lang": ["de"]}
EN: Fields = {"lang": ["en"]}


class Scene(Pair):
    """An index, its oracle, and the questions that are watched."""

    def __init__(self, seed: int, drift: int = 0) -> None:
        """`drift` is the tolerance of a frequency and of the number of sentences."""
        super().__init__(NativeIndex(seed))
        self.watch: NativeWatch = NativeWatch(seed)
        self.random, self.drift = random.Random(seed), drift
        self.asked: dict[str, Asked] = {}
        self.committed_late = 0
        self.conditions: dict[str, Condition | None] = {}
        self.count = Counter[str]()

    def sentence(self, terms: Sequence[str] = TERMS) -> Sentence:
        """A sentence in which few terms are common."""
        length = self.random.choice([0, 1, 3, 8, 15])
        return Sentence(
            dict(Counter(terms[int(len(terms) * self.random.random() ** 2)] for _ in range(length))), length + 1
        )

    def begin_only(self, name: str, fields: Fields) -> None:
        """Opens a document in parts, and discards the open document of the same name."""
        self.index.abort_id(name)
        self.open = [document for document in self.open if document.id != name]
        self.begin(name, fields)

    def concerns(self, document: Document, sentences: Sequence[Sentence]) -> list[str]:
        """Adds a part; returns the questions that the part concerns."""
        before = len(document.sentences)
        self.add(document, sentences)
        return [asked.name for asked in self.asked.values() if self.reaches(asked, document, before)]

    def commit(self, document: Document) -> None:
        """Remembers how far questions come too late."""
        super().commit(document)
        self.committed_late = self.oracle.next_id

    def reaches(self, asked: Asked, document: Document, since: int = 0) -> bool:
        """Whether the answer would have used one of the document's sentences from number `since` on."""
        return admitted(self.conditions.get(asked.name))(document) and any(
            score(asked, weights) >= asked.score
            for _, _, weights in document.sentences[since:]
            if any(term in weights for term in asked.terms)
        )

    def ask(self, name: str, terms: Sequence[str], k: int, condition: Condition | None = None) -> Asked:
        """Ranks this index with the frequencies of a larger corpus, and returns the question to watch."""
        sentences, frequencies = self.oracle.totals()[1], self.oracle.frequencies(terms)
        corpus = (2 * sentences, [2 * frequency for frequency in frequencies])
        hits = self.oracle.rank(terms, k, corpus, admitted(condition))
        self.conditions[name] = condition
        around = lambda number: (max(0, number - self.drift), number + self.drift)  # noqa: E731
        return Asked(
            name,
            {t: (given, *around(df)) for t, given, df in zip(terms, corpus[1], frequencies, strict=True)},
            {hit[0]: self.oracle.live[hit[0]].head for hit in hits},
            corpus[0],
            hits[-1][2] if len(hits) == k else 0.0,
            self.index.next_id(),
            around(sentences),
            filter=pack_condition(condition) if condition else b"",
        )

    def concerned(self, asked: Asked) -> bool:
        """Whether a change of the index may change the answer."""
        terms = list(asked.terms)
        sentences, frequencies = self.oracle.totals()[1], self.oracle.frequencies(terms)
        if not asked.bounds[0] <= sentences <= asked.bounds[1]:
            return True
        for (_, fewest, most), df in zip(asked.terms.values(), frequencies, strict=True):
            if not fewest <= df <= most:
                return True
        live = {document.id: document.head for document in self.oracle.live.values()}
        if any(live.get(name) != place for name, place in asked.documents.items()):
            return True
        chosen = admitted(self.conditions.get(asked.name))
        return any(
            score(asked, weights) >= asked.score
            for document in self.oracle.live.values()
            if chosen(document)
            for internal, _, weights in document.sentences
            if internal >= asked.since and any(term in weights for term in terms)
        )

    def check(self) -> None:
        """Checks that the last write has dropped exactly the questions that it concerns."""
        expected = {name for name, asked in self.asked.items() if self.concerned(asked)}
        dropped = self.watch.dropped()
        assert sorted(dropped) == sorted(expected)
        for name in dropped:
            del self.asked[name]
        assert {name for name in self.asked if self.watch.token(name)} == set(self.asked)
        assert self.watch.count == len(self.asked)
        self.count.update(dropped=len(dropped), kept=len(self.asked))


def score(asked: Asked, weights: dict[str, float]) -> float:
    """The score of the ranking."""
    idf = []
    for frequency, _, _ in asked.terms.values():
        df = min(frequency, asked.sentences)
        idf.append(math.log1p((asked.sentences - df + 0.5) / (df + 0.5)))
    return score_of([weights.get(term, 0.0) for term in asked.terms], idf)


@pytest.mark.parametrize(("seed", "drift"), [(0, 0), (1, 3), (2, 60), (3, 3)])
def test_a_write_drops_exactly_the_questions_that_it_concerns(seed: int, drift: int) -> None:
    scene = Scene(seed, drift)
    chance = scene.random
    for number in range(700):
        if chance.random() < 0.4:
            name = f"question{number}"
            terms, k = chance.sample(TERMS, chance.choice([0, 1, 2, 4, 6])), chance.choice([1, 3, 8])
            asked = scene.ask(name, terms, k, chance.choice(CONDITIONS))
            assert scene.watch.add(scene.index, asked)
            scene.asked[name] = asked
        name = f"document{chance.randrange(40)}"
        if chance.random() < 0.3:
            scene.remove(name)
        else:
            sentences = [scene.sentence() for _ in range(chance.choice([0, 1, 2, 5]))]
            scene.put(name, sentences, chance.choice([NO_LANG, DE, EN]))
        scene.check()
        if chance.random() < 0.02:
            before = dict(scene.asked)
            scene.watch.clear()
            assert sorted(scene.watch.dropped()) == sorted(before)
            scene.asked.clear()
    assert scene.count["dropped"] > 150
    assert scene.count["kept"] > (300 if drift else 20)


@pytest.mark.parametrize("seed", range(2))
def test_changes_since_the_ranking_refuse_a_question(seed: int) -> None:
    scene = Scene(seed, drift=4)
    outcomes = Counter[bool]()
    for number in range(300):
        asked = scene.ask(f"question{number}", scene.random.sample(TERMS, 4), 3, scene.random.choice(CONDITIONS))
        for _ in range(scene.random.choice([0, 1, 1, 3])):
            scene.put(f"document{scene.random.randrange(30)}", [scene.sentence()], scene.random.choice([DE, EN]))
        stands = scene.watch.add(scene.index, asked)
        assert stands != scene.concerned(asked)
        outcomes[stands] += 1
    assert min(outcomes[True], outcomes[False]) > 50


@pytest.mark.parametrize("seed", range(3))
def test_documents_in_parts_drop_and_refuse_the_questions_that_they_concern(seed: int) -> None:
    """A part drops questions at once. A question that is asked before the commit is compared with the parts so far."""
    scene = Scene(seed, drift=60)
    chance, outcomes = scene.random, Counter[str]()
    for number in range(900):
        action = chance.random()
        name = f"document{chance.randrange(12)}"
        if action < 0.35:
            question = f"question{number}"
            terms = chance.sample(TERMS, chance.choice([1, 2, 4]))
            asked = scene.ask(question, terms, chance.choice([1, 3, 8]), chance.choice(CONDITIONS))
            if chance.random() < 0.3 and scene.open:
                scene.commit(chance.choice(scene.open))
                scene.check()
            waits = any(scene.reaches(asked, document) for document in scene.open)
            late = asked.since < scene.committed_late
            stands = scene.watch.add(scene.index, asked)
            assert stands != (late or waits or scene.concerned(asked))
            outcomes["late" if late else "waits" if waits else "stands" if stands else "concerned"] += 1
            if stands:
                scene.asked[question] = asked
        elif action < 0.5:
            scene.begin_only(name, chance.choice([NO_LANG, DE, EN]))
        elif action < 0.8 and scene.open:
            sentences = [scene.sentence() for _ in range(chance.choice([0, 1, 3]))]
            expected = scene.concerns(chance.choice(scene.open), sentences)
            dropped = scene.watch.dropped()
            assert sorted(dropped) == sorted(expected)
            outcomes["dropped by a part"] += len(dropped)
            for question in dropped:
                del scene.asked[question]
        elif action < 0.9 and scene.open:
            scene.commit(chance.choice(scene.open))
        elif action < 0.95 and scene.open:
            assert scene.index.abort_id(scene.open.pop(chance.randrange(len(scene.open))).id)
        else:
            scene.put(name, [scene.sentence()])
        scene.check()
    assert min(outcomes[name] for name in ("late", "waits", "stands", "dropped by a part")) > 8, outcomes


def test_a_commit_drops_questions_whose_frequencies_change() -> None:
    """The frequencies include the terms of parts only after the commit. A commit counts short documents at once."""
    scene = Scene(2)
    scene.put("first", [Sentence({"z": 1, "y": 1}, 1)])
    asked = replace(scene.ask("q", ["z"], 1), documents={}, score=1e9, bounds=(0, MOST), terms={"z": (1, 0, 3)})
    other = replace(asked, name="p", terms={"y": (1, 0, 3)})
    assert all(scene.watch.add(scene.index, one) for one in (asked, other))
    scene.begin("long", {})
    for number in range(3):
        scene.add(scene.open[0], [Sentence({"z": 1, f"w{number}": 1}, 2)])
    assert scene.watch.dropped() == []
    scene.commit(scene.open[0])
    assert (scene.index.rank(["z"], 1)[1], scene.watch.dropped()) == ([4], ["q"])
    assert not scene.watch.review(scene.index, 500)


def test_a_long_document_is_reviewed_in_steps() -> None:
    """Later steps count the document's terms, and drop exactly the questions whose bounds are exceeded."""
    scene = Scene(1)
    scene.put("first", [Sentence({"z": 1, "y": 1}, 1)])
    asked = replace(scene.ask("q", ["z"], 1), documents={}, score=1e9, bounds=(0, MOST))
    other = replace(scene.ask("p", ["y"], 1), documents={}, score=1e9, bounds=(0, MOST))
    some = [replace(other, name=f"p{number}", terms={f"none{number}": (0, 0, 0)}) for number in range(300)]
    assert all(scene.watch.add(scene.index, one) for one in (asked, other, *some))
    words = [f"w{number:06}" for number in range(60_000)]
    parts = [Sentence(dict.fromkeys(words[at : at + 1000], 1), 1000) for at in range(0, 60_000, 1000)]
    for last in (Sentence({"z": 1}, 1), Sentence({}, 0)):
        scene.begin("large", {})
        for part in (*parts, last):
            scene.add(scene.open[0], [part])
        scene.commit(scene.open[0])
        assert not scene.watch.dropped(), "in one step"
        assert not scene.watch.add(scene.index, replace(asked, name="new", since=scene.index.next_id()))
        steps = 1
        while scene.watch.review(scene.index, 500):
            steps += 1
        assert steps > 50
        assert scene.index.rank(["z"], 1)[1] == [1 + (last.length > 0)]
        assert scene.watch.dropped() == (["q"] if last.length else ["r"])
        bounds = {"z": (2, 2, 2)}
        if last.length:
            again = replace(asked, name="r", since=scene.index.next_id(), terms=bounds)
            assert scene.watch.add(scene.index, again)
    scene.remove("large")
    while scene.watch.review(scene.index, 500):
        pass
    assert (scene.watch.dropped(), scene.watch.count) == ([], 301)


def one_document(scene: Scene, name: str, *terms: str) -> Document:
    return scene.put(name, [Sentence(dict.fromkeys(terms, 1), 5)])


def test_a_question_watched_twice_has_the_documents_of_both() -> None:
    scene = Scene(1, drift=100)
    first, second = one_document(scene, "first", "a", "b"), one_document(scene, "second", "a", "b")
    asked = replace(scene.ask("q", ["a", "b"], 1), documents={"first": first.head})
    assert scene.watch.add(scene.index, asked)
    memory = scene.watch.memory
    for documents in ({"second": second.head}, {"first": first.head, "second": second.head}):
        assert scene.watch.add(scene.index, replace(asked, documents=documents, token=2))
        assert (scene.watch.dropped(), scene.watch.count, scene.watch.token("q")) == ([], 1, 2)
    assert scene.watch.memory > memory
    scene.remove("first")
    assert scene.watch.dropped() == ["q"]
    assert scene.watch.memory < memory


def test_a_question_watched_twice_has_the_lowest_score_and_the_narrowest_bounds() -> None:
    scene = Scene(1, drift=100)
    one_document(scene, "first", "a")
    asked = scene.ask("q", ["a"], 1)
    narrow = replace(asked, terms={"a": (2, 0, 2)}, bounds=(0, 5), score=1e9)
    wide = replace(asked, score=2e9)
    for given in (narrow, wide):
        assert scene.watch.add(scene.index, given)
    one_document(scene, "other", "b")
    assert not scene.watch.dropped()
    one_document(scene, "another", "a")
    assert not scene.watch.dropped()
    one_document(scene, "a third", "a")
    assert scene.watch.dropped() == ["q"]


def test_the_oldest_questions_are_dropped_at_the_limit() -> None:
    scene = Scene(1, drift=100)
    one_document(scene, "first", "a")
    for number in range(5):
        assert scene.watch.add(scene.index, scene.ask(f"q{number}", ["a"], 1), limit=3)
    assert (scene.watch.dropped(), scene.watch.count) == (["q0", "q1"], 3)


def test_expired_questions_are_not_watched_and_removed() -> None:
    scene = Scene(1, drift=100)
    one_document(scene, "first", "a")
    asked = scene.ask("q", ["a"], 1)
    assert scene.watch.add(scene.index, replace(asked, expires=50))
    assert [scene.watch.token("q", now) for now in (0, 49, 50)] == [1, 1, 0]
    assert scene.watch.add(scene.index, replace(asked, name="later"), now=60)
    assert (scene.watch.count, scene.watch.dropped()) == (1, [])


def test_a_question_watched_twice_with_too_many_documents_is_replaced() -> None:
    scene = Scene(1, drift=10**6)
    documents = {f"d{number}": one_document(scene, f"d{number}", "a").head for number in range(1200)}
    asked = scene.ask("q", ["a"], 1)
    names = list(documents)
    for part in (names[:700], names[700:]):
        assert scene.watch.add(scene.index, replace(asked, documents={name: documents[name] for name in part}))
    assert (scene.watch.dropped(), scene.watch.count) == (["q"], 1)
    scene.remove("d0")
    assert not scene.watch.dropped()
    scene.remove("d1199")
    assert scene.watch.dropped() == ["q"]


def test_a_watch_survives_a_new_index_at_its_key() -> None:
    """The questions of a key stay watched if a new index replaces the deleted index."""
    scene = Scene(1)
    empty = Asked("q", {"a": (0, 0, 5)}, {}, 0, 0.0, 0, (0, MOST))
    assert scene.watch.add(scene.index, empty)
    scene.index.close()
    scene.indexes, scene.oracle = [NativeIndex(5)], Oracle()
    one_document(scene, "first", "b")
    assert not scene.watch.dropped()
    one_document(scene, "second", "a")
    assert scene.watch.dropped() == ["q"]


def test_other_terms_make_another_question() -> None:
    scene = Scene(1, drift=100)
    one_document(scene, "first", "a", "b")
    for terms in (["a"], ["a", "b"], ["b", "a"]):
        assert scene.watch.add(scene.index, scene.ask("q", terms, 1))
    assert (scene.watch.dropped(), scene.watch.count) == (["q", "q"], 1)
    for condition in (CONDITIONS[1], CONDITIONS[1], CONDITIONS[2]):
        assert scene.watch.add(scene.index, scene.ask("q", ["b", "a"], 1, condition))
    assert (scene.watch.dropped(), scene.watch.count) == (["q", "q"], 1)


def test_a_question_watched_twice_has_the_greater_weights() -> None:
    """The terms become more frequent between both requests, but a sentence still counts with the greater weights."""
    scene = Scene(1, drift=10**6)
    one_document(scene, "first", "a")
    rare, frequent = {"a": (1, 0, MOST)}, {"a": (500, 0, MOST)}
    asked = replace(scene.ask("q", ["a"], 1), documents={}, sentences=1000, score=5.0)
    for terms in (rare, frequent):
        assert scene.watch.add(scene.index, replace(asked, terms=terms))
    assert scene.watch.add(scene.index, replace(asked, name="p", terms=frequent))
    one_document(scene, "second", "a")
    assert scene.watch.dropped() == ["q"]


def test_frequencies_are_exact_while_a_question_is_watched() -> None:
    """Without watched questions, the index counts the terms of a document with more than 4,096 terms in steps."""
    scene = Scene(1)
    scene.put("first", [Sentence({"z": 1}, 1)])
    asked = replace(scene.ask("q", ["z"], 1), documents={}, score=1e9, bounds=(0, MOST))
    assert scene.watch.add(scene.index, asked)
    words = [f"w{number:05}" for number in range(7500)]
    sentences = [Sentence(dict.fromkeys(words[at : at + 2500], 1), 2500) for at in range(0, 7500, 2500)]
    scene.put("large", [*sentences, Sentence({"z": 1}, 1)])
    assert scene.watch.dropped() == ["q"]
    for first in range(0, 7500, 25):
        assert scene.index.rank(words[first : first + 25], 1)[1] == [1] * 25, "each term is counted once"
    scene.remove("large")
    assert scene.index.rank(["z"], 1)[1] == [1]


def test_a_write_checks_a_bounded_number_of_questions_and_drops_the_rest() -> None:
    scene = Scene(1, drift=10**6)
    one_document(scene, "first", "a")
    asked = replace(scene.ask("q", ["a"], 1), documents={}, sentences=100, terms={"a": (1, 0, MOST)}, score=8.0)
    for number in range(300):
        assert scene.watch.add(scene.index, replace(asked, name=f"q{number}"))
    weak = Sentence({"a": 1}, 400)
    scene.put("second", [weak] * 300)
    assert not scene.watch.dropped()
    scene.put("third", [weak] * 400)
    assert (len(scene.watch.dropped()), scene.watch.count) == (300, 0)


TOLD_BY_NAME = 500


def many(scene: Scene, count: int) -> int:
    """Watch many questions with the same answering document; return the memory of a question."""
    asked = scene.ask("q0", ["a", "b"], 1)
    before = scene.watch.memory
    for number in range(count):
        assert scene.watch.add(scene.index, replace(asked, name=f"q{number}", token=number + 1), limit=count)
    return (scene.watch.memory - before) // count


@pytest.mark.parametrize("how", ["removed", "replaced", "concerned", "drifted", "cleared"])
@pytest.mark.parametrize("count", [TOLD_BY_NAME, TOLD_BY_NAME + 1])
def test_many_questions_are_dropped_at_once_and_freed_later(how: str, count: int) -> None:
    """Dropped questions cannot be looked up. More than INDEX_TOLD_BY_NAME of them are reported as one number."""
    scene = Scene(1, drift=1)
    one_document(scene, "first", "a", "b")
    empty = scene.watch.memory
    one = many(scene, count)
    if how == "removed":
        scene.remove("first")
    elif how == "replaced":
        one_document(scene, "first", "b")
    elif how == "concerned":
        one_document(scene, "second", "a", "b")
    elif how == "drifted":
        for number in range(2):
            one_document(scene, f"other{number}", "c")
    else:
        scene.watch.clear()
    names = [f"q{number}" for number in range(count)]
    assert [scene.watch.token(name) for name in names] == [0] * count
    assert scene.watch.count == 0
    assert sorted(scene.watch.dropped()) == (sorted(names) if count == TOLD_BY_NAME else [f"*{count}"])
    if count == TOLD_BY_NAME:
        assert scene.watch.memory < empty + 64 * count, "all memory is free, except for the tables"
        assert not scene.watch.free_left(1)
        return
    assert scene.watch.memory > one * count * 3 // 4
    steps = 1
    while scene.watch.free_left(100):
        steps += 1
    assert steps > 100
    assert scene.watch.memory < empty + 64 * count
    assert not scene.watch.dropped(), "each question is reported once"


def test_a_question_that_is_not_freed_yet_is_not_watched() -> None:
    """Names can be watched again, with the same terms and documents, before the dropped questions are freed."""
    scene = Scene(1, drift=1000)
    one_document(scene, "first", "a", "b")
    many(scene, TOLD_BY_NAME + 100)
    scene.remove("first")
    assert scene.watch.dropped() == [f"*{TOLD_BY_NAME + 100}"]
    one_document(scene, "first", "a", "b")
    asked = scene.ask("q7", ["a", "b"], 1)
    assert scene.watch.add(scene.index, replace(asked, token=9))
    one_document(scene, "unrelated", "c")
    assert (scene.watch.dropped(), scene.watch.token("q7"), scene.watch.count) == ([], 9, 1)
    while scene.watch.free_left(50):
        one_document(scene, "unrelated", "c")
        assert (scene.watch.dropped(), scene.watch.token("q7"), scene.watch.count) == ([], 9, 1)
    scene.remove("first")
    assert (scene.watch.dropped(), scene.watch.count) == (["q7"], 0)


def test_unfreed_questions_are_freed_with_the_watch() -> None:
    """A fixture checks that no memory is left."""
    scene = Scene(1, drift=1000)
    one_document(scene, "first", "a", "b")
    many(scene, TOLD_BY_NAME + 100)
    scene.remove("first")
    scene.watch.free_left(100)
    scene.watch.dropped()


def test_many_expired_questions_are_freed_later() -> None:
    scene = Scene(1, drift=1000)
    one_document(scene, "first", "a", "b")
    asked = scene.ask("q", ["a", "b"], 1)
    for number in range(700):
        assert scene.watch.add(scene.index, replace(asked, name=f"q{number}", expires=50))
    memory = scene.watch.memory
    assert scene.watch.add(scene.index, asked, now=60)
    assert (scene.watch.count, scene.watch.dropped()) == (1, [])
    assert scene.watch.memory > memory
    while scene.watch.free_left(50):
        pass
    assert scene.watch.memory < memory // 2
    assert scene.watch.token("q", 60) == 1


def test_the_first_write_after_a_start_drops_only_the_questions_that_it_concerns() -> None:
    scene = Scene(1, drift=100)
    one_document(scene, "first", "a")
    scene.watch.close()
    scene.watch = NativeWatch(2)
    asked = replace(scene.ask("q", ["a"], 1), sentences=100, terms={"a": (1, 0, MOST)}, score=8.0)
    assert scene.watch.add(scene.index, asked)
    scene.put("second", [Sentence({"a": 1}, 400)])
    assert not scene.watch.dropped()
