"""Builds the hits of a search from ranked sentences: offsets, neighbours, and the matching words.

The metadata of a document is parsed once, and all hits of the document share it. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from qa_cluster.documents.metadata_limits import readable_metadata
from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.source_map import SourceMap, read_map, shown_metadata, url_of
from qa_cluster.documents.stored import FoundDocument, parse_hits
from qa_cluster.errors import InputTooLong
from qa_cluster.keys import SentenceRef, parse_sentence
from qa_cluster.reading.passages import MAX_GAP
from qa_cluster.types import Hit, Passage, Span

from .bm25 import Candidate
from .fields import field_terms
from .highlights import highlights
from .postings import weights_of

# An index stores weights in 8 bits (``native/index/codes.c``). The error is at most 0.94 %, and the smallest weight is
# `LIGHTEST_WEIGHT`.
WEIGHT_ERROR = 0.01
LIGHTEST_WEIGHT = 0.02
# Approximate sizes in JSON, in bytes: a hit without its texts and metadata, and one highlight.
HIT_BYTES = 512
HIGHLIGHT_BYTES = 48


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A version of a document as its hits show it.

    Attributes:
        epoch: the epoch of the document's partition when the document was fetched.
        metadata: the metadata without the source map.
        metadata_bytes: the size of `metadata` as JSON, in bytes.
        source: the source map, which says from which file and section each part of the text comes.
    """

    epoch: int
    version: str
    title: str
    metadata: Mapping[str, Any]
    metadata_bytes: int
    source: SourceMap

    @classmethod
    def of(cls, found: FoundDocument) -> ShownDocument:
        """Parse the metadata of a document."""
        metadata = readable_metadata(found.metadata)
        shown = shown_metadata(metadata)
        size = len(found.metadata.encode()) if shown is metadata else len(orjson.dumps(shown))
        return cls(found.epoch, found.version, found.title, shown, size, read_map(metadata))


@dataclass(slots=True)
class HitMaker:
    """Builds the hits of one ranking from the replies to `documents.stored.read_hits`, one document after the other.

    Attributes:
        candidates: the ranked sentences by their keys.
        terms, epochs, with_passage: see `hit_of`.
        most_bytes: the maximum size of all hits as JSON, in bytes.
        hits: the hits by the keys of their sentences, without sentences that have changed since the ranking.
        bytes: the approximate size of the hits as JSON.
    """

    candidates: Mapping[str, Candidate]
    terms: Sequence[str]
    epochs: Mapping[str, int]
    with_passage: bool
    most_bytes: int
    hits: dict[str, Hit] = field(default_factory=dict)
    bytes: int = 0
    _last: tuple[tuple[str, str] | None, ShownDocument | None] = (None, None)

    def add(self, asked: Sequence[Sequence[SentenceRef]], replies: Sequence[Any]) -> None:
        """Build the hits of some replies; InputTooLong if all hits together exceed the limit.

        `asked` has the sentences of each reply. The replies of one document are consecutive; the first has the
        metadata.
        """
        for sentences, reply in zip(asked, replies, strict=True):
            found = parse_hits(reply)
            document = self._document(sentences[0], found)
            if found is None or document is None:
                continue
            for sentence, passage in zip(sentences, found.passages, strict=True):
                name = str(sentence)
                hit = hit_of(
                    self.candidates[name],
                    document,
                    passage,
                    self.terms,
                    self.epochs,
                    with_passage=self.with_passage,
                )
                if hit is not None:
                    self.hits[name] = hit
                    self._count(hit, document)

    def _document(self, sentence: SentenceRef, found: FoundDocument | None) -> ShownDocument | None:
        """Return the document of a reply; None if the document is missing or has changed since its first reply."""
        name = (sentence.document, sentence.tag)
        if name != self._last[0]:
            self._last = (name, None if found is None else ShownDocument.of(found))
            return self._last[1]
        known = self._last[1]
        if known is None or found is None or found.version != known.version:
            return None
        return replace(known, epoch=found.epoch)

    def _count(self, hit: Hit, document: ShownDocument) -> None:
        self.bytes += (
            HIT_BYTES
            + HIGHLIGHT_BYTES * len(hit.highlights)
            + document.metadata_bytes
            + _utf8(hit.url)
            + sum(_utf8(text) for text in (hit.text, hit.title, hit.document_id, hit.document_id, *hit.section))
            + (0 if hit.passage is None else _utf8(hit.passage.text))
        )
        if self.bytes > self.most_bytes:
            raise InputTooLong(
                f"{len(self.hits)} of {len(self.candidates)} hits take more than {self.most_bytes} bytes with their"
                " metadata, the limit (answer_max_bytes): lower top_k or context"
            )


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def hit_of(
    candidate: Candidate,
    document: ShownDocument | None,
    around: Sequence[LocatedSentence],
    terms: Sequence[str],
    epochs: Mapping[str, int],
    *,
    with_passage: bool,
) -> Hit | None:
    """Return the candidate as a hit with its current text and offsets.

    The result is None if the document does not exist, or if the sentence has changed since the ranking. The `rank` of
    the hit is 0, because the caller numbers the hits later.

    Args:
        candidate: the ranked sentence.
        document: the document of the sentence; None if it does not exist.
        around: the sentence and, if requested, its neighbours, in order.
        terms: the terms of the query, for the highlights.
        epochs: the epoch of each partition at the time of the ranking.
        with_passage: whether the hit shows the neighbours.
    """
    sentence = parse_sentence(candidate.sentence)
    own = next((each for each in around if each.index == sentence.index), None)
    if document is None or own is None:
        return None
    source = document.source
    fields = field_terms(document.title, source.file, source.section_at(own.start))
    if document.epoch != epochs.get(sentence.tag) and not has_weights(own.text, terms, candidate.weights, fields):
        return None
    return Hit(
        rank=0,
        score=round(candidate.score, 4),
        document_id=sentence.document_id,
        document_version=document.version,
        passage_id=f"{sentence.document_id}:{sentence.index}",
        title=document.title,
        text=own.text,
        start=own.start,
        end=own.start + len(own.text),
        highlights=tuple(Span(own.start + start, own.start + end) for start, end in highlights(own.text, terms)),
        passage=passage_around(own, around) if with_passage else None,
        metadata=document.metadata,
        section=source.section_at(own.start),
        source=source.source_at(own.start),
        url=url_of(document.metadata),
        collection=sentence.document.collection,
    )


def has_weights(
    text: str, terms: Sequence[str], weights: Sequence[float], fields: Mapping[str, int] | None = None
) -> bool:
    """Return whether a sentence has these weights for the terms, within the precision of an index.

    `fields` are the terms of its title, file and section (`field_terms`).
    """
    exact = weights_of(text, fields or {})
    return len(terms) == len(weights) and all(
        not weight if term not in exact else abs(weight / max(exact[term], LIGHTEST_WEIGHT) - 1) <= WEIGHT_ERROR
        for term, weight in zip(terms, weights, strict=True)
    )


def passage_around(own: LocatedSentence, around: Sequence[LocatedSentence]) -> Passage:
    """Return the sentence `own` with its neighbours from `around`.

    The passage ends before a gap of more than `MAX_GAP` characters. Each white-space character between sentences
    becomes a space.

    >>> one, two = LocatedSentence(0, "A cat.", 3), LocatedSentence(1, "It ran.", 11)
    >>> passage_around(two, [one, two])
    Passage(text='A cat.  It ran.', start=3, end=18)
    """
    text, start = own.text, own.start
    for before in sorted((each for each in around if each.index < own.index), key=lambda each: -each.index):
        gap = start - before.start - len(before.text)
        if not 0 <= gap <= MAX_GAP:
            break
        text, start = before.text + " " * gap + text, before.start
    for behind in sorted((each for each in around if each.index > own.index), key=lambda each: each.index):
        gap = behind.start - start - len(text)
        if behind.start < 0 or not 0 <= gap <= MAX_GAP:
            break
        text += " " * gap + behind.text
    return Passage(text, start, start + len(text))
