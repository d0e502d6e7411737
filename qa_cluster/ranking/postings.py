"""Makes what the index keeps of a sentence: its terms, how often each occurs, and how many there are.

The index weighs a term by BM25's saturated frequency. It compares a sentence's length with a fixed reference instead of
the corpus average, so that a stored weight stays right when documents come and go: 15 terms is about the mean sentence
of both evaluation sets (14.8 in CORD-19 articles, 15.7 in Wikipedia).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType

from qa_cluster import keys
from qa_cluster.documents import document_keys
from qa_cluster.reading.tokenization import TextTokens, pack_sentence
from qa_cluster.scripts import ScriptCall

from .fields import OCCURRENCE, scaled_length
from .terms import analyze

K1 = 1.2
B = 0.75
REFERENCE_LENGTH = 15.0
MAX_STEP_SENTENCES = 100


def weight(frequency: int, length: int) -> float:
    """The BM25 weight, without idf, of a term that occurs ``frequency`` times in a sentence of ``length`` terms.

    This is the exact weight; the index keeps it in 8 bits (``native/index/codes.c``).

    >>> weight(1, 15)
    1.0
    """
    return round(frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH)), 4)


def counts_of(sentence: str, fields: Mapping[str, int] = MappingProxyType({})) -> tuple[int, Counter[str]]:
    """The length of a sentence and its terms with their frequencies, as an index takes them.

    With `fields` (`field_terms`) both count quarters of an occurrence.

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
    """The terms of a sentence, and of its fields, with their weights."""
    length, counts = counts_of(sentence, fields)
    return {term: weight(count, length) for term, count in counts.items()}


def pack_sentences(sentences: Sequence[str], fields: Iterable[Mapping[str, int]] | None = None) -> bytes:
    """The terms of sentences as ``QA.INDEX.PUT`` takes them (``docs/index.md``); `fields` has those of their fields.

    >>> pack_sentences(["A cat sees a cat.", "No!"]).hex(" ")
    '03 02 02 03 63 61 74 01 03 73 65 65 00 00'
    """
    packed = bytearray()
    for sentence, own in zip(sentences, fields if fields is not None else repeat({}), strict=False):
        length, found = counts_of(sentence, own)
        counts = sorted((term.encode(), count) for term, count in found.items())
        _append(packed, length)
        _append(packed, len(counts))
        for term, count in counts:
            _append(packed, count)
            _append(packed, len(term))
            packed += term
    return bytes(packed)


def _append(packed: bytearray, number: int) -> None:
    """Append a varint: seven bits a byte, the lowest first."""
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWriter:
    """The script calls that store the tokens of one version of a document and index it.

    A small document takes one call. The tokens of a large one are written in steps, each of which holds the shard for a
    few milliseconds only; the last step adds the document to the index. A step fails once the version has changed.
    """

    document_id: str
    tag: str
    version: str
    splitter: str
    tokenizer: str
    fingerprint: int
    spans: Sequence[tuple[int, int]]
    tokens: Sequence[TextTokens]
    packed: bytes
    fields: bytes

    def steps(self) -> Iterator[tuple[int, int, str]]:
        """First sentence, last sentence and kind of every step, in order."""
        count = len(self.spans)
        for first in range(0, max(count, 1), MAX_STEP_SENTENCES):
            last = min(first + MAX_STEP_SENTENCES, count)
            yield first, last, ("b" if first == 0 else "") + ("c" if last == count else "")

    def call(self, first: int, last: int, kind: str, attempt: str) -> ScriptCall:
        """One step. ``attempt`` is the last element of the reply to the first step; it is empty for that step."""
        arrays: list[str | bytes | int] = []
        for i in range(first, last):
            (_, columns), blob = pack_sentence(*self.spans[i], self.tokens[i], self.fingerprint)
            arrays.extend((i, columns, blob))
        args = (
            keys.tokens_prefix(self.document_id, self.tag),
            self.version,
            self.splitter,
            self.tokenizer,
            kind,
            attempt,
            len(self.spans),
            self.packed if "c" in kind else b"",
            self.fields if "c" in kind else b"",
            *arrays,
        )
        return ScriptCall("index_document", document_keys(self.document_id, self.tag), args)
