"""Makes the hits of a search from ranked sentences: offsets, neighbours, and the matching words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.source_map import read_map, shown_metadata
from qa_cluster.documents.stored import FoundDocument
from qa_cluster.errors import ClusterError
from qa_cluster.keys import parse_sentence
from qa_cluster.reading.passages import MAX_GAP
from qa_cluster.types import Hit, Passage, Span

from .bm25 import Candidate
from .fields import field_terms
from .highlights import highlights
from .postings import weights_of

# An index stores weights in 8 bits (``native/index/codes.c``): at most 0.94 % off, and at least `LIGHTEST_WEIGHT`.
WEIGHT_ERROR = 0.01
LIGHTEST_WEIGHT = 0.02


def hit_of(
    candidate: Candidate,
    document: FoundDocument | None,
    around: Sequence[LocatedSentence],
    terms: Sequence[str],
    epochs: Mapping[str, int],
    *,
    with_passage: bool,
) -> Hit | None:
    """The candidate with its current text and offsets, or None if this is no longer the sentence that was ranked.

    Args:
        around: the sentence and, if requested, its neighbours, in order.
        epochs: the epoch of each partition when it was ranked.
    """
    sentence = parse_sentence(candidate.sentence)
    own = next((each for each in around if each.index == sentence.index), None)
    if document is None or own is None:
        return None
    try:
        metadata = orjson.loads(document.metadata)
    except orjson.JSONDecodeError as error:
        raise ClusterError(f"metadata of a document cannot be read: {error}") from error
    source = read_map(metadata)
    fields = field_terms(document.title, source.file, source.section_at(own.start))
    if document.epoch != epochs.get(sentence.tag) and not earns(own.text, terms, candidate.weights, fields):
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
        metadata=shown_metadata(metadata),
        section=source.section_at(own.start),
        source=source.source_at(own.start),
    )


def earns(text: str, terms: Sequence[str], weights: Sequence[float], fields: Mapping[str, int] | None = None) -> bool:
    """Whether a sentence has these weights for the terms, to the precision of an index.

    `fields` are the terms of its title, file and section (`field_terms`).
    """
    exact = weights_of(text, fields or {})
    return len(terms) == len(weights) and all(
        not weight if term not in exact else abs(weight / max(exact[term], LIGHTEST_WEIGHT) - 1) <= WEIGHT_ERROR
        for term, weight in zip(terms, weights, strict=True)
    )


def passage_around(own: LocatedSentence, around: Sequence[LocatedSentence]) -> Passage:
    """A sentence with its neighbours, up to a gap; each white-space character between them becomes a space.

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
