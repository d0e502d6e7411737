"""Builds the index entry of a sentence: its terms, the frequency of each, and the number of terms.

The index weighs a term by BM25's saturated frequency. It compares the length of a sentence with a fixed reference
instead of the corpus average, so a stored weight stays valid when documents are added or removed. The reference of 15
terms is close to the mean sentence length of both evaluation sets (14.8 in CORD-19 articles, 15.7 in Wikipedia).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType

from .fields import OCCURRENCE, scaled_length
from .terms import analyze

K1 = 1.2
B = 0.75
REFERENCE_LENGTH = 15.0


def weight(frequency: int, length: int) -> float:
    """Return the BM25 weight, without idf, of a term that occurs ``frequency`` times in a sentence of ``length`` terms.

    This is the exact weight; the index stores it in 8 bits (``native/index/codes.c``).

    >>> weight(1, 15)
    1.0
    """
    return round(frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH)), 4)


def counts_of(sentence: str, fields: Mapping[str, int] = MappingProxyType({})) -> tuple[int, Counter[str]]:
    """Return the length of a sentence, and its terms with their frequencies, for the index.

    With `fields` (`field_terms`), the frequencies are in quarters of an occurrence, and the length is scaled
    accordingly (`scaled_length`).

    >>> counts_of("A cat sees a cat."), counts_of("A cat.", {"cat": 2, "pet": 2})
    ((3, Counter({'cat': 2, 'see': 1})), (19, Counter({'cat': 6, 'pet': 2})))
    """
    terms = analyze(sentence)
    counts = Counter(terms)
    if not fields:
        return len(terms), counts
    for term in counts:
        counts[term] *= OCCURRENCE
    counts.update(fields)
    return scaled_length(len(terms)), counts


def weights_of(sentence: str, fields: Mapping[str, int] = MappingProxyType({})) -> dict[str, float]:
    """Return the terms of a sentence, and of its fields, with their weights."""
    length, counts = counts_of(sentence, fields)
    return {term: weight(count, length) for term, count in counts.items()}


def pack_sentences(sentences: Sequence[str], fields: Iterable[Mapping[str, int]] | None = None) -> bytes:
    """Pack sentences for ``QA.INDEX.PUT`` (``docs/inverted-index.md``).

    `fields` has, for each sentence, the terms of its fields (`field_terms`). None means that no sentence has fields.

    >>> pack_sentences(["A cat sees a cat.", "!"]).hex(" ")
    '03 02 02 03 63 61 74 01 03 73 65 65 00 00'
    """
    return b"".join(part for _, part in pack_parts(sentences, fields))


def pack_parts(
    sentences: Sequence[str], fields: Iterable[Mapping[str, int]] | None = None, size: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Pack sentences in parts: yield the number of sentences and the bytes of each part.

    A part ends when it has at least `size` bytes. If `size` is None, there is one part. `fields` is as in
    `pack_sentences`.

    >>> [(count, len(part)) for count, part in pack_parts(["A cat.", "A dog.", "!"], size=5)]
    [(1, 7), (1, 7), (1, 2)]
    """
    packed, held = bytearray(), 0
    for sentence, own in zip(sentences, fields if fields is not None else repeat({}), strict=False):
        if size is not None and len(packed) >= size:
            yield held, bytes(packed)
            packed, held = bytearray(), 0
        held += 1
        length, counts = counts_of(sentence, own)
        _append(packed, length)
        _append(packed, len(counts))
        for entry, count in sorted([(_entry(term), count) for term, count in counts.items()]):
            if count == 1:
                packed += entry[1]
            else:
                _append(packed, count)
                packed += entry[1][1:]
    if held:
        yield held, bytes(packed)


@lru_cache(maxsize=50_000)
def _entry(term: str) -> tuple[bytes, bytes]:
    """Return the bytes of a term, and its entry in a packed sentence for the frequency 1.

    The entry has the frequency, the number of bytes and the bytes. The terms of a packed sentence are sorted by their
    bytes.
    """
    data = term.encode()
    packed = bytearray(b"\x01")
    _append(packed, len(data))
    return data, bytes(packed + data)


def _append(packed: bytearray, number: int) -> None:
    """Append a varint: seven bits per byte, the lowest bits first."""
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
