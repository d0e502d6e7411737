"""Makes the answers of a question from the readings of its sentences: ordered, distinct, scored, or none. Pure.

Spans are ordered by the reader's score over null plus the manifest's share of the ranking score. The ranking score is
that of the sentence which holds the span; a neighbour that was not ranked itself adds nothing. The score shown is the
reader's alone, turned into a probability. Of spans of one document that overlap, the best is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from qa_cluster.errors import ClusterError
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.readings import FoundSpan, SentenceReading
from qa_cluster.source_map import read_map, shown_metadata
from qa_cluster.types import Answer

from .questions import AskOptions


@dataclass(frozen=True, slots=True)
class CitedDocument:
    """What an answer cites of its document, read after the sentences: its current version, title and metadata."""

    version: str
    title: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """A span of a reading, and the number by which all spans are ordered."""

    reading: SentenceReading
    span: FoundSpan
    order: float


def distinct(readings: Sequence[SentenceReading], ranked: Mapping[str, float], threshold: float) -> list[Scored]:
    """The spans, best first, without overlaps in a document; those that reach the no-answer threshold come first.

    `ranked` has the share of the ranking score by sentence key; sentences that were not ranked are not in it.
    """
    kept: list[Scored] = []
    taken: dict[str, list[tuple[int, int]]] = {}
    scored = [_scored(reading, span, ranked) for reading in readings for span in reading.spans]
    for item in sorted(scored, key=lambda item: (item.span.score < threshold, -item.order, str(item.reading.sentence))):
        span, others = item.span, taken.setdefault(item.reading.sentence.document_id, [])
        if span.start < span.end and all(span.end <= start or end <= span.start for start, end in others):
            others.append((span.start, span.end))
            kept.append(item)
    return kept


def _scored(reading: SentenceReading, span: FoundSpan, ranked: Mapping[str, float]) -> Scored:
    holder = replace(reading.sentence, index=span.sentence)
    return Scored(reading, span, span.score + ranked.get(str(holder), 0.0))


@dataclass(frozen=True, slots=True)
class Assembled:
    """The answers of a question, and the probability that there is none."""

    answers: tuple[Answer, ...]
    answerable: bool
    no_answer_score: float


def assemble(
    chosen: Sequence[Scored], records: Mapping[str, CitedDocument], manifest: Manifest, options: AskOptions
) -> Assembled:
    """The answers of the spans in `chosen`, which come best first; `records` has their documents by id."""
    answers: list[Answer] = []
    best = chosen[0].span.score if chosen else None
    answerable = best is not None and best >= manifest.no_answer_threshold
    probability = manifest.calibration.probability(best) if best is not None else 0.0
    if answerable or not options.no_answer:
        for scored in chosen:
            score = manifest.calibration.probability(scored.span.score)
            if score >= options.min_score and len(answers) < options.top_k:
                record = records[scored.reading.sentence.document_id]
                answers.append(_answer(len(answers) + 1, scored, score, record))
    if not answers:
        answerable = False
    return Assembled(tuple(answers), answerable, round(1 - probability, 6))


def _answer(rank: int, scored: Scored, score: float, record: CitedDocument) -> Answer:
    reading, span = scored.reading, scored.span
    source = read_map(record.metadata)
    return Answer(
        rank=rank,
        answer=reading.text(span),
        score=round(score, 6),
        logit=round(span.score, 4),
        start=span.start,
        end=span.end,
        document_id=reading.sentence.document_id,
        document_version=reading.version,
        passage_id=f"{reading.sentence.document_id}:{span.sentence}",
        title=record.title,
        context=reading.context,
        context_start=reading.context_start,
        context_end=reading.context_start + len(reading.context),
        shard=reading.shard,
        metadata=shown_metadata(record.metadata),
        section=source.section_at(span.start),
        source=source.source_at(span.start),
    )


def parse_cited_document(reply: Sequence[Any]) -> CitedDocument | None:
    """The reply to ``HMGET document:.. version title metadata``; None where there is no such document."""
    version, title, metadata = reply
    if version is None:
        return None
    try:
        read = orjson.loads(metadata or b"{}")
    except orjson.JSONDecodeError as error:
        raise ClusterError(f"metadata of a document cannot be read: {error}") from error
    return CitedDocument(version.decode(), (title or b"").decode(), read)
