"""Rankings by words and meaning: the answers are always those of the oracle, which scores every sentence."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from dataclasses import replace

import pytest

from .native_index import OK, NativeIndex, library
from .oracle import BothHit, Condition, Document, Fields, Meaning, Sentence, admitted
from .pair import Pair
from .vectors import DIGEST, Passage, Vector, some_passages, some_vector

TERMS = [f"term{i}" for i in range(40)]
DIGESTS = [DIGEST, b"encoder2"]


class History(Pair):
    """A random history of an index and of the oracle. Documents get vectors, lose them, or get other vectors."""

    def __init__(self, seed: int, dims: int) -> None:
        """Makes empty indexes."""
        super().__init__(NativeIndex(seed))
        self.random, self.dims = random.Random(seed), dims
        self.part: dict[str, tuple[bytes, list[Passage], int]] = {}
        self.pool = [some_vector(self.random, dims) for _ in range(12)]
        self.count = Counter[str]()

    def sentences(self) -> list[Sentence]:
        """Sentences of few terms. Many sentences are the same, so that their scores are equal."""
        made = []
        for _ in range(self.random.choice([0, 1, 3, 10, 40])):
            drawn = [
                TERMS[int(len(TERMS) * self.random.random() ** 2)] for _ in range(self.random.choice([0, 1, 2, 6]))
            ]
            made.append(Sentence(dict(Counter(drawn)), len(drawn)))
        return made

    def name(self) -> str:
        """The name of a document, which may be missing."""
        return f"document{self.random.randrange(40)}"

    def fields(self) -> Fields:
        """A field that some documents have."""
        return {"lang": [self.random.choice(["de", "en"])]} if self.random.random() < 0.7 else {}

    def put_one(self) -> None:
        """Writes a document, which replaces the document of the same name."""
        name = self.name()
        self.part.pop(name, None)
        self.put(name, self.sentences(), self.fields())

    def open_one(self) -> None:
        """Opens a document in parts. Its internal ids alternate with those of other documents."""
        if len(self.open) < 3:
            self.begin(self.name(), self.fields())

    def continue_one(self) -> None:
        """Adds a part to an open document."""
        if self.open:
            self.add(self.random.choice(self.open), self.sentences())

    def commit_one(self) -> None:
        """Commits an open document."""
        if self.open:
            document = self.random.choice(self.open)
            self.part.pop(document.id, None)
            self.commit(document)

    def remove_one(self) -> None:
        """Removes a document."""
        name = self.name()
        self.part.pop(name, None)
        self.remove(name)

    def vector(self) -> Vector:
        """A vector. Some vectors are repeated, so that cosines are equal."""
        return self.random.choice(self.pool) if self.random.random() < 0.6 else some_vector(self.random, self.dims)

    def embed_one(self) -> None:
        """Attaches passages of a document that has sentences."""
        document = self.oracle.live.get(self.name())
        if document and document.sentences:
            self.embed(document)

    def embed(self, document: Document) -> None:
        """Attaches all passages of a document, or continues to attach them."""
        name = document.id
        digest, passages, done = self.part.pop(name, (b"", [], 0))
        if not done:
            digest = self.random.choice([DIGEST, *DIGESTS])
            passages = some_passages(self.random, len(document.sentences), self.dims)
            passages = [Passage(each.first, each.count, self.vector()) for each in passages]
        count = self.random.choice([1, 2, 100, 100]) if len(passages) > 1 else 1
        part = passages[done : done + count]
        rest = len(passages) - done - len(part)
        assert self.index.embed(name, digest, part, self.dims, done=done, rest=rest) == OK
        document.encoder, document.passages = digest, None if rest else passages
        if rest:
            self.part[name] = (digest, passages, done + len(part))
        self.oracle.next_id = self.index.next_id()

    def maintain(self) -> None:
        """Does some steps of maintenance, or saves and loads the index."""
        if self.random.random() < 0.3:
            copy = self.index.again()
            assert copy.digest() == self.index.digest()
            self.index.close()
            self.indexes[0] = copy
        else:
            self.index.maintain(self.random.choice([1, 1000]))

    def condition(self) -> Condition | None:
        """A filter that admits documents by their field, or a few documents by their names."""
        names = [self.name() for _ in range(self.random.choice([1, 3, 30]))]
        fields = self.random.choice([("==", "lang", "de"), ("!=", "lang", "en"), ("not in", "", names)])
        return self.random.choice([None, None, fields, ("in", "", names)])

    def ask(self) -> None:
        """Ranks by words and meaning, and compares the hits with those of the oracle."""
        terms = self.random.sample(TERMS, self.random.choice([0, 0, 1, 2, 4, 9, 20]))
        meaning = Meaning(
            self.vector(),
            self.random.choice([0.0, 0.5, 3.0, 40.0]),
            self.random.choice([-0.5, 0.0, 0.1]),
            self.random.choice([DIGEST, *DIGESTS, b"encoder3"]),
            self.random.random() < 0.5,
        )
        k, corpus = self.random.choice([0, 1, 3, 8, 50, 1000]), None
        if self.random.random() < 0.4:
            corpus = (self.random.randrange(5000), [self.random.randrange(6000) for _ in terms])
        condition = self.condition()
        chosen = admitted(condition)
        expected = self.oracle.rank_by_both(terms, k, meaning, corpus, chosen)
        assert self.index.rank_by_both(terms, k, meaning, corpus, condition) == expected
        words = self.oracle.rank(terms, k, corpus, chosen)
        assert self.index.rank(terms, k, corpus, condition)[0] == words
        self.count.update(
            hits=len(expected),
            by_meaning=sum(hit.score == 0 for hit in expected),
            without=sum(hit.cosine is None for hit in expected),
        )


@pytest.mark.parametrize(("seed", "dims"), [(0, 1), (1, 64), (2, 100), (3, 64)])
def test_every_history_answers_as_the_oracle(seed: int, dims: int) -> None:
    history = History(seed, dims)
    operations = {
        history.put_one: 8,
        history.open_one: 2,
        history.continue_one: 6,
        history.commit_one: 2,
        history.remove_one: 2,
        history.embed_one: 20,
        history.maintain: 2,
        history.ask: 20,
    }
    for _ in range(700):
        history.random.choices(list(operations), list(operations.values()))[0]()
    assert min(history.count[name] for name in ("hits", "by_meaning", "without")) > 200, history.count


def history_of(seed: int, documents: int, sentences: int, embedded: int) -> History:
    """A history of documents, the first of which have vectors."""
    history = History(seed, 32)
    for number in range(documents):
        made = [Sentence({history.random.choice(TERMS): 1, "common": 1}, 2) for _ in range(sentences)]
        document = history.put(f"d{number}", made)
        if number < embedded:
            passages = some_passages(history.random, sentences, 32)
            assert history.index.embed(document.id, DIGEST, passages, 32) == OK
            document.encoder, document.passages = DIGEST, passages
    return history


def test_many_windows_and_long_documents() -> None:
    """Several thousand sentences, so that the index skips windows by the maximum cosine of their passages."""
    history = history_of(5, 8, 1500, 4)
    for number in range(12):
        terms = history.random.sample([*TERMS, "common"], history.random.choice([0, 1, 2, 5]))
        meaning = Meaning(history.vector(), history.random.choice([1.0, 40.0]), 0.1, distinct=number % 2 == 0)
        expected = history.oracle.rank_by_both(terms, 1000, meaning)
        for k in (1, 50, 1000):
            assert history.index.rank_by_both(terms, k, meaning) == expected[:k]


@pytest.mark.parametrize("distinct", [False, True])
def test_too_many_vectors_are_not_read(distinct: bool) -> None:
    """With too many vectors, only the best 1,000 sentences by words get a score by meaning."""
    history = history_of(6, 8, 300, 8)
    whole = Meaning(history.vector(), 20.0, 0.1, distinct=distinct)
    few = replace(whole, scan_bytes=30_000)
    assert history.index.rank_by_both([], 50, whole) and not history.index.rank_by_both([], 50, few)
    for terms in (["term3"], ["term3", "term9", "common"]):
        words = {(name, number) for name, number, *_ in history.oracle.rank(terms, 1000)}
        best = [
            hit
            for hit in history.oracle.rank_by_both(terms, 10**6, replace(whole, distinct=False))
            if (hit.document, hit.sentence) in words
        ]
        if distinct:
            first: dict[object, BothHit] = {}
            for hit in best:
                first.setdefault((hit.document, hit.passage), hit)
            best = list(first.values())
        assert history.index.rank_by_both(terms, 50, few) == best[:50]
    named: Condition = ("in", "", ["d3"])
    expected = history.oracle.rank_by_both(["common"], 9, whole, None, lambda document: document.id == "d3")
    assert history.index.rank_by_both(["common"], 9, few, None, named) == expected, "these vectors are few enough"


@pytest.mark.parametrize("dims", [64, 128, 384, 4096])
def test_dot_products_are_exact(dims: int) -> None:
    chance, lib = random.Random(dims), library()
    rows = [[chance.choice([-128, 127, chance.randrange(-128, 128)]) for _ in range(dims)] for _ in range(20)]
    rows += [[-128] * dims, [127] * dims]
    vectors = (ctypes.c_int8 * (dims * len(rows)))(*[value for row in rows for value in row])
    for query in (rows[0], rows[-2], rows[-1], [0] * dims):
        expected = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
        for portable in (0, 1):
            out = (ctypes.c_int32 * len(rows))()
            lib.shim_dot(portable, (ctypes.c_int8 * dims)(*query), vectors, len(rows), dims, out)
            assert list(out) == expected
