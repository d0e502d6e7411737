"""Makes the answers of a question from what was chosen among its readings: as many as wanted, cited, or none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.documents.source_map import read_map, shown_metadata
from qa_cluster.errors import ClusterError
from qa_cluster.reading.choosing import Choice, Chosen, Scored
from qa_cluster.reading.manifest import Manifest
from qa_cluster.types import Answer, Mention

from .questions import AskOptions

MAX_PLACES = 5
"""Places that are told of an answer, its own included."""


@dataclass(frozen=True, slots=True)
class CitedDocument:
    """What an answer cites of its document, read after the sentences: its current version, title and metadata."""

    version: str
    title: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The answers of a question, and the probability that there is none."""

    answers: tuple[Answer, ...]
    answerable: bool
    no_answer_score: float


def cited(chosen: Chosen, options: AskOptions) -> list[Scored]:
    """The places of which `assemble` needs the documents."""
    return [place for choice in chosen.choices[: options.top_k] for place in choice.places[:MAX_PLACES]]


def assemble(
    chosen: Chosen, records: Mapping[str, CitedDocument], manifest: Manifest, options: AskOptions
) -> Assembled:
    """The answers of what was chosen; `records` has the documents of `cited` by id.

    A place whose document is not there, or has another version than was read, is left out, and an answer without any
    place, too.
    """
    answers: list[Answer] = []
    answerable = chosen.reaches(manifest.no_answer_threshold, manifest.calibration)
    if answerable or not options.no_answer:
        for choice in chosen.choices[: options.top_k]:
            places = [place for place in choice.places[:MAX_PLACES] if is_current(place, records)]
            if places and choice.probability >= options.min_score:
                answers.append(_answer(len(answers) + 1, choice, places, records))
    if not answers:
        answerable = False
    return Assembled(tuple(answers), answerable, round(chosen.none, 6))


def is_current(place: Scored, records: Mapping[str, CitedDocument]) -> bool:
    """Whether the document of a place still has the version that was read."""
    record = records.get(place.reading.sentence.document_id)
    return record is not None and record.version == place.reading.version


def _answer(rank: int, choice: Choice, places: Sequence[Scored], records: Mapping[str, CitedDocument]) -> Answer:
    reading, span = places[0].reading, places[0].span
    own, *others = (_mention(place, records) for place in places)
    return Answer(
        rank=rank,
        answer=places[0].text,
        score=round(choice.probability, 6),
        logit=round(span.score, 4),
        start=own.start,
        end=own.end,
        document_id=own.document_id,
        document_version=own.document_version,
        passage_id=own.passage_id,
        title=own.title,
        context=reading.context,
        context_start=reading.context_start,
        context_end=reading.context_start + len(reading.context),
        shard=own.shard,
        metadata=shown_metadata(records[own.document_id].metadata),
        section=own.section,
        source=own.source,
        also_in=tuple(others),
    )


def _mention(place: Scored, records: Mapping[str, CitedDocument]) -> Mention:
    reading, span = place.reading, place.span
    document_id = reading.sentence.document_id
    record = records[document_id]
    source = read_map(record.metadata)
    return Mention(
        document_id=document_id,
        document_version=reading.version,
        passage_id=f"{document_id}:{span.sentence}",
        title=record.title,
        start=span.start,
        end=span.end,
        shard=reading.shard,
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
