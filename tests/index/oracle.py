"""The expected answers of the native index, always computed from all data, and the binary form of its arguments."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .vectors import DIGEST, Passage, Vector, cosine

K1, B, REFERENCE_LENGTH, EDGE_WEIGHT = 1.2, 0.75, 15.0, 0.3
# The formula of the table of codes, which is a constant in the native index.
CODE_WEIGHTS = [0.0] + [round(2**20 * 0.02 * 110 ** ((code - 1) / 254)) / 2**20 for code in range(1, 256)]

Value = bool | float | int | str
Fields = dict[str, list[Value]]
Condition = tuple[Any, ...]


@dataclass(frozen=True)
class Date:
    """Seconds since 1970, as a separate type."""

    seconds: int


@dataclass
class Sentence:
    """Terms with their frequencies, and the length in terms."""

    terms: dict[str, int]
    length: int

    def weights(self) -> dict[str, float]:
        """The quantised weights of the sentence's terms."""
        return {term: quantised(frequency, self.length) for term, frequency in self.terms.items()}


@dataclass
class Document:
    """One document; `sentences` are internal ids with weights."""

    head: int
    id: str
    fields: Fields
    sentences: list[tuple[int, Sentence, dict[str, float]]] = field(default_factory=list)
    in_parts: bool = False
    encoder: bytes = b""
    passages: list[Passage] | None = None  # None: no complete vectors


@dataclass(frozen=True)
class Meaning:
    """The vector of a question, as a ranking takes it."""

    vector: Vector
    weight: float
    missing: float
    digest: bytes = DIGEST
    distinct: bool = False
    scan_bytes: int = 2**40


@dataclass(frozen=True)
class BothHit:
    """A hit of a ranking with a vector."""

    document: str
    sentence: int
    score: float
    total: float
    cosine: float | None
    passage: tuple[int, int]
    weights: tuple[float, ...]


@cache
def quantised(frequency: int, length: int) -> float:
    """The weight of the nearest code, by ratio."""
    exact = frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH))
    code = 1
    while code < 255 and exact * exact > CODE_WEIGHTS[code] * CODE_WEIGHTS[code + 1]:
        code += 1
    return CODE_WEIGHTS[code]


class Oracle:
    """The index's state and answers."""

    def __init__(self) -> None:
        """Makes an empty oracle."""
        self.next_id = 0
        self.live: dict[str, Document] = {}

    def begin(self, identifier: str, fields: Fields) -> Document:
        """Opens a document, which searches do not find yet."""
        self.next_id += 1
        return Document(self.next_id - 1, identifier, fields)

    def add(self, document: Document, sentences: Sequence[Sentence]) -> None:
        """Adds sentences, and assigns their internal ids."""
        for sentence in sentences:
            document.sentences.append((self.next_id, sentence, sentence.weights()))
            self.next_id += 1

    def commit(self, document: Document) -> None:
        """Commits a document in place of another document of its id. A document in parts uses an extra internal id."""
        self.live[document.id] = document
        self.next_id += document.in_parts

    def totals(self) -> tuple[int, int, int]:
        """Live documents, sentences, and terms with repetitions."""
        lengths = [sentence.length for document in self.live.values() for _, sentence, _ in document.sentences]
        return len(self.live), len(lengths), sum(lengths)

    def frequencies(self, terms: Sequence[str]) -> list[int]:
        """Document frequencies of terms."""
        rows = [weights for document in self.live.values() for _, _, weights in document.sentences]
        return [sum(term in weights for weights in rows) for term in terms]

    def rank(
        self,
        terms: Sequence[str],
        k: int,
        corpus: tuple[int, Sequence[int]] | None = None,
        admits: Callable[[Document], bool] = lambda _: True,
    ) -> list[tuple[str, int, float, tuple[float, ...]]]:
        """The best sentences: document, number, score and weights."""
        idf = self._idf(terms, corpus)
        found = [
            (-score_of(row, idf), internal, document.id, number, row)
            for document in self.live.values()
            if admits(document)
            for number, (internal, _, weights) in enumerate(document.sentences)
            if any(row := tuple(weights.get(term, 0.0) for term in terms))
        ]
        return [(name, number, -score, row) for score, _, name, number, row in sorted(found)[:k]]

    def rank_by_both(
        self,
        terms: Sequence[str],
        k: int,
        meaning: Meaning,
        corpus: tuple[int, Sequence[int]] | None = None,
        admits: Callable[[Document], bool] = lambda _: True,
    ) -> list[BothHit]:
        """The best sentences by words and meaning."""
        idf = self._idf(terms, corpus)
        found: list[tuple[float, int, BothHit]] = []
        for document in self.live.values():
            if not admits(document):
                continue
            embedded = document.passages is not None and document.encoder == meaning.digest
            of = {
                number: passage
                for passage in (document.passages or [] if embedded else [])
                for number in range(passage.first, passage.first + passage.count)
            }
            for number, (internal, _, weights) in enumerate(document.sentences):
                row = tuple(weights.get(term, 0.0) for term in terms)
                passage = of.get(number)
                if not any(row) and not (passage and passage.first == number):
                    continue
                score = score_of(row, idf)
                angle = cosine(meaning.vector, passage.vector) if passage else None
                total = score + meaning.weight * (meaning.missing if angle is None else angle)
                where = (passage.first, passage.count) if passage else (number, 1)
                found.append((-total, internal, BothHit(document.id, number, score, total, angle, where, row)))
        found.sort(key=lambda each: each[:2])
        if not meaning.distinct:
            return [hit for _, _, hit in found[:k]]
        best: dict[tuple[str, int], BothHit] = {}
        for _, _, hit in found:
            best.setdefault((hit.document, hit.passage[0]), hit)
        return list(best.values())[:k]

    def _idf(self, terms: Sequence[str], corpus: tuple[int, Sequence[int]] | None) -> list[float]:
        sentences, frequencies = corpus or (self.totals()[1], self.frequencies(terms))
        idf = []
        for frequency in frequencies:
            df = float(min(frequency, sentences))
            idf.append(math.log1p((sentences - df + 0.5) / (df + 0.5)))
        return idf


def score_of(row: Sequence[float], idf: Sequence[float]) -> float:
    """The score of a sentence with these weights of the question's terms."""
    total = roots = 0.0
    for weight, one in zip(row, idf, strict=True):
        total += weight * one
        roots += math.sqrt(weight) * math.sqrt(one)
    return total + EDGE_WEIGHT * 0.5 * (roots * roots - total)


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def admits(condition: Condition, document: Document) -> bool:  # noqa: PLR0911
    """Haystack's semantics: a missing field equals no value, and an array matches if one of its values matches."""
    operator = condition[0]
    if operator == "AND":
        return all(admits(each, document) for each in condition[1])
    if operator == "OR":
        return any(admits(each, document) for each in condition[1])
    if operator == "NOT":
        return not admits(condition[1], document)
    name, wanted = condition[1:]
    values: list[Any] = document.fields.get(name, []) if name else [document.id]
    if operator == "==":
        return any(_equal(value, wanted) for value in values)
    if operator == "!=":
        return not any(_equal(value, wanted) for value in values)
    if operator in ("in", "not in"):
        return any(_equal(value, one) for value in values for one in wanted) == (operator == "in")
    compare = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }[operator]
    plain = [value.seconds if isinstance(value, Date) else value for value in values if type(value) is type(wanted)]
    return any(compare(value, wanted.seconds if isinstance(wanted, Date) else wanted) for value in plain)


def admitted(condition: Condition | None) -> Callable[[Document], bool]:
    """Whether a document satisfies the condition, if there is one."""
    return lambda document: condition is None or admits(condition, document)


# ---- Binary forms ----


def pack_value(value: object) -> bytes:
    """One value of a field or a condition."""
    if isinstance(value, bool):
        return struct.pack("<cB", b"b", value)
    if isinstance(value, Date):
        return struct.pack("<cq", b"t", value.seconds)
    if isinstance(value, float):
        return struct.pack("<cd", b"n", value)
    text = str(value).encode()
    return struct.pack("<cH", b"s", len(text)) + text


def _pack_name(name: str) -> bytes:
    return bytes([len(name.encode())]) + name.encode()


def pack_fields(fields: Fields) -> bytes:
    """The fields of a document; empty without fields."""
    if not fields:
        return b""
    parts = [struct.pack("<H", len(fields))]
    for name, values in fields.items():
        parts += [_pack_name(name), struct.pack("<H", len(values)), *map(pack_value, values)]
    return b"".join(parts)


_CODES = {"==": b"=", "!=": b"#", "<": b"<", "<=": b"[", ">": b">", ">=": b"]", "in": b"i", "not in": b"o"}


def pack_condition(condition: Condition) -> bytes:
    """A filter."""
    operator = condition[0]
    if operator in ("AND", "OR"):
        children = b"".join(map(pack_condition, condition[1]))
        return (b"&" if operator == "AND" else b"|") + struct.pack("<H", len(condition[1])) + children
    if operator == "NOT":
        return b"!" + pack_condition(condition[1])
    name, value = condition[1:]
    if operator in ("in", "not in"):
        return _CODES[operator] + _pack_name(name) + struct.pack("<I", len(value)) + b"".join(map(pack_value, value))
    return _CODES[operator] + _pack_name(name) + pack_value(value)
