"""Indexes on a server, an oracle that scores every sentence, and the binary form of their arguments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from tests.index.oracle import Condition, Document, Fields, Oracle, Sentence, admits, pack_condition, pack_fields

TERMS = [f"term{number}" for number in range(60)]
Hit = tuple[str, int, float, tuple[float, ...]]


def varint(number: int) -> bytes:
    """A varint: seven bits in a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def packed(sentences: Iterable[Sentence]) -> bytes:
    """Sentences in the format of QA.INDEX.PUT."""
    parts = []
    for sentence in sentences:
        parts.append(varint(sentence.length) + varint(len(sentence.terms)))
        for term, frequency in sorted((term.encode(), frequency) for term, frequency in sentence.terms.items()):
            parts.append(varint(frequency) + varint(len(term)) + term)
    return b"".join(parts)


def some_sentences(chance: random.Random, count: int, terms: Sequence[str] = TERMS) -> list[Sentence]:
    """Sentences of a few terms. The first terms are common."""
    made = []
    for _ in range(count):
        words = [terms[int(len(terms) * chance.random() ** 2)] for _ in range(chance.choice([0, 1, 3, 8, 15]))]
        made.append(Sentence(dict(Counter(words)), len(words) + chance.choice([0, 0, 2])))
    return made


class Twins:
    """The index at a key, and an oracle with the same history."""

    def __init__(self, client: redis.Redis, key: str = "index:{t}") -> None:
        """Makes an empty index and oracle. The client must not decode replies."""
        self.client, self.key, self.oracle = client, key, Oracle()

    def put(self, *documents: tuple[str, Fields, Sequence[Sentence]]) -> Any:
        """Writes documents; returns the reply."""
        words: list[bytes] = []
        for name, fields, sentences in documents:
            words += [name.encode(), pack_fields(fields), packed(sentences)]
            document = self.oracle.begin(name, fields)
            self.oracle.add(document, sentences)
            self.oracle.live[name] = document
        return self.client.execute_command("QA.INDEX.PUT", self.key, *words)

    def delete(self, *names: str) -> int:
        """Removes documents; returns the number in the reply."""
        for name in names:
            self.oracle.live.pop(name, None)
        return int(self.client.execute_command("QA.INDEX.DEL", self.key, *names))

    def fill(self, seed: int, documents: int, sentences: int = 8) -> None:
        """Writes random documents, some of these twice, and removes some."""
        chance = random.Random(seed)
        names = [f"document{number}" for number in range(documents)]
        for name in [*names, *chance.sample(names, documents // 5)]:
            fields: Fields = {"year": [float(chance.randrange(2000, 2010))]} if chance.random() < 0.7 else {}
            self.put((name, fields, some_sentences(chance, chance.randint(0, 2 * sentences))))
        self.delete(*chance.sample(names, documents // 6))

    def rank(
        self,
        terms: Sequence[str],
        k: int,
        corpus: tuple[int, Sequence[int]] | None = None,
        condition: Condition | None = None,
        client: redis.Redis | None = None,
    ) -> tuple[list[Hit], list[int], tuple[int, int]]:
        """Hits, frequencies, and live sentences and terms in the server's reply."""
        total, given = corpus or (0, [0] * len(terms))
        chosen = ["FILTER", pack_condition(condition)] if condition else []
        pairs = [word for pair in zip(terms, given, strict=True) for word in pair]
        words = ["QA.INDEX.RANK", self.key, k, total, *chosen, "TERMS", len(terms), *pairs]
        sentences, length, frequencies, hits, *_ = (client or self.client).execute_command(*words)
        ranked = [(name.decode(), number, float(score), tuple(map(float, row))) for name, number, score, row in hits]
        return ranked, frequencies, (sentences, length)

    def best(
        self,
        terms: Sequence[str],
        k: int,
        corpus: tuple[int, Sequence[int]] | None = None,
        condition: Condition | None = None,
    ) -> list[Hit]:
        """The hits that the oracle expects from `rank`."""
        return self.oracle.rank(terms, k, corpus, lambda one: condition is None or admits(condition, one))

    def check(self, terms: Sequence[str] = TERMS[:6], client: redis.Redis | None = None) -> None:
        """Checks that the server and the oracle give the same answer to a question."""
        _, sentences, total = self.oracle.totals()
        hits, frequencies, totals = self.rank(terms, 50, client=client)
        assert hits == self.best(terms, 50)
        assert (frequencies, totals) == (self.oracle.frequencies(terms), (sentences, total))

    def digest(self, client: redis.Redis | None = None) -> bytes:
        """The digest of the key's value."""
        return bytes((client or self.client).execute_command("DEBUG", "DIGEST-VALUE", self.key)[0])

    def listed(self, condition: Condition | None = None, count: int = 7) -> list[str]:
        """All documents that a filter admits, read page by page."""
        chosen = ["FILTER", pack_condition(condition)] if condition else []
        names: list[str] = []
        cursor = 0
        while True:
            cursor, page = self.client.execute_command("QA.INDEX.LIST", self.key, cursor, count, *chosen)
            names += [name.decode() for name, _, _ in page]
            if not cursor:
                return names

    def expected(self, condition: Condition | None = None) -> list[str]:
        """The documents that `listed` must return."""
        documents = sorted(self.oracle.live.values(), key=lambda document: document.head)
        return [document.id for document in documents if condition is None or admits(condition, document)]


class Parts:
    """A document in parts, on the server and in the oracle."""

    def __init__(self, twins: Twins, name: str, fields: Fields | None = None) -> None:
        """Opens the document."""
        self.twins, self.name, self.sent = twins, name, 0
        self.document: Document = twins.oracle.begin(name, fields or {})
        self.document.in_parts = True
        self.place = self.run("BEGIN", name, pack_fields(fields or {}))

    def run(self, command: str, *words: Any) -> Any:
        return self.twins.client.execute_command(f"QA.INDEX.{command}", self.twins.key, *words)

    def add(self, sentences: Sequence[Sentence]) -> None:
        """Appends the next part."""
        self.twins.oracle.add(self.document, sentences)
        reply = self.run("ADD", self.name, self.place, self.sent, packed(sentences))
        self.sent += len(sentences)
        assert reply == self.sent

    def commit(self) -> list[int]:
        """Commits the document."""
        replaces = int(self.name in self.twins.oracle.live)
        self.twins.oracle.commit(self.document)
        reply = self.run("COMMIT", self.name, self.place, self.sent)
        assert reply == [1 - replaces, replaces, self.sent]
        return list(reply)

    def abort(self) -> int:
        return int(self.run("ABORT", self.name, self.place))


def info(client: redis.Redis, key: str) -> dict[str, int]:
    """QA.INDEX.INFO of a key."""
    flat = client.execute_command("QA.INDEX.INFO", key)
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
