"""From what sentences answered to the answers of a question: ordered, distinct, scored, or none. Pure.

The order is the reader's score over null plus the manifest's share of the ranking score; the score shown is the
reader's alone, turned into a probability. Spans of one document that overlap are one answer, the best of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.errors import ClusterError
from qa_cluster.keys import SentenceRef
from qa_cluster.manifest import Manifest
from qa_cluster.questions import AskOptions
from qa_cluster.types import Answer


@dataclass(frozen=True, slots=True)
class Reading:
    """What one sentence answered. `start` and `end` are in the document, `score` is over null."""

    sentence: SentenceRef
    answer: str
    score: float
    start: int
    end: int
    version: str
    context: str
    context_start: int
    model: str
    cached: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Record:
    """What is asked about the document of an answer at the end: the version that stands, title and metadata."""

    version: str
    title: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """A reading with the two numbers that order it."""

    reading: Reading
    order: float
    shard: str


def distinct(readings: Sequence[Scored], threshold: float) -> list[Scored]:
    """The readings best first, those over the no-answer threshold before all others, without overlaps in a document."""
    kept: list[Scored] = []
    spans: dict[str, list[tuple[int, int]]] = {}
    for scored in sorted(
        readings, key=lambda item: (item.reading.score < threshold, -item.order, str(item.reading.sentence))
    ):
        reading = scored.reading
        taken = spans.setdefault(reading.sentence.document_id, [])
        if reading.start < reading.end and all(reading.end <= start or end <= reading.start for start, end in taken):
            taken.append((reading.start, reading.end))
            kept.append(scored)
    return kept


@dataclass(frozen=True, slots=True)
class Assembled:
    """The answers of a question and how sure it is that there is none."""

    answers: tuple[Answer, ...]
    answerable: bool
    no_answer_score: float


def assemble(
    chosen: Sequence[Scored], records: Mapping[str, Record], manifest: Manifest, options: AskOptions
) -> Assembled:
    """The answers of `chosen`, which is in order; `records` are those of their documents, by id."""
    answers: list[Answer] = []
    best = chosen[0].reading.score if chosen else None
    answerable = best is not None and best >= manifest.no_answer_threshold
    probability = manifest.calibration.probability(best) if best is not None else 0.0
    if answerable or not options.no_answer:
        for scored in chosen:
            score = manifest.calibration.probability(scored.reading.score)
            if score >= options.min_score and len(answers) < options.top_k:
                record = records[scored.reading.sentence.document_id]
                answers.append(_answer(len(answers) + 1, scored, score, record))
    if not answers:
        answerable = False
    return Assembled(tuple(answers), answerable, round(1 - probability, 6))


def _answer(rank: int, scored: Scored, score: float, record: Record) -> Answer:
    reading = scored.reading
    return Answer(
        rank=rank,
        answer=reading.answer,
        score=round(score, 6),
        logit=round(reading.score, 4),
        start=reading.start,
        end=reading.end,
        document_id=reading.sentence.document_id,
        document_version=reading.version,
        passage_id=f"{reading.sentence.document_id}:{reading.sentence.index}",
        title=record.title,
        context=reading.context,
        context_start=reading.context_start,
        context_end=reading.context_start + len(reading.context),
        shard=scored.shard,
        metadata=record.metadata,
    )


def parse_record(reply: Sequence[Any]) -> Record | None:
    """The reply to ``HMGET document:.. version title metadata``; None where there is no such document."""
    version, title, metadata = reply
    if version is None:
        return None
    try:
        read = orjson.loads(metadata or b"{}")
    except orjson.JSONDecodeError as error:
        raise ClusterError(f"metadata of a document cannot be read: {error}") from error
    return Record(version.decode(), (title or b"").decode(), read)
