"""The inverted index of one document: which sentence holds which term, with what weight.

The weight is BM25's saturated term frequency. Sentence lengths are compared with a fixed reference instead of the
corpus average, so that a stored weight stays right when documents come and go: 15 terms is about the mean sentence of
both evaluation sets (14.8 in CORD-19 articles, 15.7 in Wikipedia).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qa_cluster import keys
from qa_cluster.documents import document_keys
from qa_cluster.reading.tokenization import TextTokens, pack_sentence
from qa_cluster.scripts import ScriptCall

from .terms import analyze

K1 = 1.2
B = 0.75
REFERENCE_LENGTH = 15.0
MAX_STEP_SENTENCES = 100


@dataclass(frozen=True, slots=True)
class SentencePostings:
    """Weights of the terms of every sentence of a document, and their lengths in terms together."""

    weights: list[dict[str, float]]
    terms_total: int


def weight(frequency: int, length: int) -> float:
    """The BM25 weight, without idf, of a term that occurs so often in a sentence of so many terms.

    >>> weight(1, 15)
    1.0
    """
    return round(frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / REFERENCE_LENGTH)), 4)


def build_postings(sentences: Sequence[str]) -> SentencePostings:
    """The postings of a document's sentences."""
    weights: list[dict[str, float]] = []
    total = 0
    for sentence in sentences:
        terms = analyze(sentence)
        total += len(terms)
        weights.append({term: weight(count, len(terms)) for term, count in Counter(terms).items()})
    return SentencePostings(weights, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWriter:
    """The script calls that store tokens and postings of one version of a document.

    A small document is one call. A large one is written in steps that each hold the shard for a few milliseconds only;
    it is ranked when the last one is through. Each step is refused once the version has changed.
    """

    document_id: str
    tag: str
    version: str
    splitter: str
    tokenizer: str
    fingerprint: int
    spans: Sequence[tuple[int, int]]
    tokens: Sequence[TextTokens]
    postings: SentencePostings

    def steps(self) -> Iterator[tuple[int, int, str]]:
        """First sentence, last sentence and kind of every step, in order."""
        count = len(self.spans)
        for first in range(0, max(count, 1), MAX_STEP_SENTENCES):
            last = min(first + MAX_STEP_SENTENCES, count)
            yield first, last, ("b" if first == 0 else "") + ("c" if last == count else "")

    def call(self, first: int, last: int, kind: str, number: str) -> ScriptCall:
        """One step; ``number`` is what the reply to the first step ended with, empty for that step itself."""
        by_term: dict[str, list[float]] = {}
        for i in range(first, last):
            for term, value in self.postings.weights[i].items():
                by_term.setdefault(term, []).extend((i, value))
        arrays: list[str | bytes | int] = []
        for i in range(first, last):
            (_, columns), blob = pack_sentence(*self.spans[i], self.tokens[i], self.fingerprint)
            arrays.extend((i, columns, blob))
        args = (
            keys.tokens_prefix(self.document_id, self.tag),
            keys.terms_prefix(self.tag),
            self.version,
            self.splitter,
            self.tokenizer,
            keys.encode_id(self.document_id),
            kind,
            number,
            len(self.spans),
            self.postings.terms_total,
            json.dumps(self._sentences_by_term(), ensure_ascii=False, separators=(",", ":")) if "b" in kind else "",
            json.dumps(by_term, ensure_ascii=False, separators=(",", ":")),
            *arrays,
        )
        return ScriptCall("index_document", document_keys(self.document_id, self.tag), args)

    def _sentences_by_term(self) -> dict[str, list[int]]:
        sentences: dict[str, list[int]] = {}
        for i, weights in enumerate(self.postings.weights):
            for term in weights:
                sentences.setdefault(term, []).append(i)
        return sentences


def removals(tag: str, entry: str, batch: int = 500) -> Iterator[tuple[str, ...]]:
    """The ``ZREM`` commands that remove the postings of one garbage entry, ``batch`` members each at most."""
    garbage = json.loads(entry)
    for term, sentences in garbage["terms"].items():
        for first in range(0, len(sentences), batch):
            members = (f"{garbage['number']}.{i}" for i in sentences[first : first + batch])
            yield ("ZREM", keys.terms_prefix(tag) + term, *members)
