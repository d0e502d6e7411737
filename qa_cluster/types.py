"""The types of questions, answers and documents for users of the clients and of the REST service, and their JSON.

The JSON names are those of the REST service; `answer`, `score`, `start` and `end` are Hugging Face's. Offsets are
half-open, in code points of the stored document: ``document.text[answer.start:answer.end] == answer.answer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

import orjson

from .errors import InvalidInput

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a document was made of, and the line or page of it where the paragraph begins, counted from 1."""

    file: str
    line: int | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Mention:
    """A further place where an answer was read, with the same words: a span of a stored document.

    Attributes:
        section, source: as of an `Answer`.
    """

    document_id: str
    document_version: str
    passage_id: str
    title: str
    start: int
    end: int
    shard: str
    section: tuple[str, ...] = ()
    source: Source | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `asdict` makes."""
        mention: Self = _pick(cls, {**value, **_origin(value)})
        return mention


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: a span of a sentence of a stored document.

    Attributes:
        score: the probability that the answer is right; those of all answers and of no answer add up to 1.
        section: the headings above the answer, the outermost first.
        source: where it stands in the document's file; None if that is not known.
        also_in: other places with the same answer, the best first.
    """

    rank: int
    answer: str
    score: float
    logit: float
    start: int
    end: int
    document_id: str
    document_version: str
    passage_id: str
    title: str
    context: str
    context_start: int
    context_end: int
    shard: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    section: tuple[str, ...] = ()
    source: Source | None = None
    also_in: tuple[Mention, ...] = ()

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards of all its places."""
        return (self.shard, *(mention.shard for mention in self.also_in))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        mentions = tuple(Mention.from_dict(mention) for mention in value.get("also_in", ()))
        answer: Self = _pick(cls, {**value, **_origin(value), "also_in": mentions})
        return answer

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON-ready values."""
        values = {name: getattr(self, name) for name in _ANSWER_FIELDS}
        values["source"] = asdict(self.source) if self.source is not None else None
        values["also_in"] = [asdict(mention) for mention in self.also_in]
        values["highlights"] = [{"start": self.start, "end": self.end, "kind": "answer"}]
        return values


_ANSWER_FIELDS = tuple(entry.name for entry in fields(Answer))


@dataclass(frozen=True, slots=True)
class Model:
    """The reader that answered."""

    id: str
    revision: str
    precision: str


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How caches were used: tier ``near``, ``shard`` or ``none``; status ``hit``, ``miss``, ``refresh`` or ``off``."""

    status: str
    tier: str
    age_s: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Index:
    """The state of the documents that was searched. `version` changes with every change of any document.

    Attributes:
        partial: whether some shards could not be asked, so that their documents had no part in this.
        missing: the addresses of these shards.
    """

    version: str
    shards_total: int
    shards_answered: int
    partial: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """How much work the answer took when it was made.

    Attributes:
        windows: the windows in which the sentences were read, including those of cached readings.
        truncated: whether the question was too long and its end was not read.
    """

    candidates: int
    sentences_read: int
    sentences_cached: int
    waves: int
    truncated: bool
    windows: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """How long each stage took, in milliseconds. `read` has one entry per wave."""

    cache: float = 0.0
    rank: float = 0.0
    read: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class AskResult:
    """The result of one question. If there is no answer, `answerable` is false."""

    id: str
    created: int
    question: str
    normalized_question: str
    model: Model
    answerable: bool
    no_answer_score: float
    answers: tuple[Answer, ...]
    cache: CacheUse
    index: Index
    usage: Usage
    timings_ms: Timings

    @property
    def best(self) -> Answer | None:
        """The first answer, or None."""
        return self.answers[0] if self.answers else None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values, as the REST service sends it."""
        return {
            "id": self.id,
            "object": "qa.result",
            "created": self.created,
            "question": self.question,
            "normalized_question": self.normalized_question,
            "model": asdict(self.model),
            "answerable": self.answerable,
            "no_answer_score": self.no_answer_score,
            "answers": [answer.to_dict() for answer in self.answers],
            "index": asdict(self.index),
            "usage": asdict(self.usage),
            "cache": asdict(self.cache),
            "timings_ms": asdict(self.timings_ms),
        }

    def to_json(self) -> bytes:
        """The result as JSON."""
        return orjson.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes; unknown fields are ignored, missing ones are an InvalidInput."""
        try:
            timings = value["timings_ms"]
            return cls(
                id=value["id"],
                created=value["created"],
                question=value["question"],
                normalized_question=value["normalized_question"],
                model=_pick(Model, value["model"]),
                answerable=value["answerable"],
                no_answer_score=value["no_answer_score"],
                answers=tuple(Answer.from_dict(answer) for answer in value["answers"]),
                cache=_pick(CacheUse, value["cache"]),
                index=_index(value["index"]),
                usage=_pick(Usage, value["usage"]),
                timings_ms=_pick(Timings, {**timings, "read": tuple(timings["read"])}),
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"not a result of a question: {error!r}") from error

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` makes."""
        return cls.from_dict(_object(text))


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a stored document."""

    start: int
    end: int
    kind: str = "term"


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence with its neighbours, as long as in the document; white space between sentences becomes spaces."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One sentence that a search has found: ``document.text[hit.start:hit.end] == hit.text``.

    Attributes:
        highlights: the places, in the document, of the sentence's words that match terms of the query.
        passage: the sentence with its neighbours; None unless `context` asked for them.
        section, source: as of an `Answer`.
    """

    rank: int
    score: float
    document_id: str
    document_version: str
    passage_id: str
    title: str
    text: str
    start: int
    end: int
    highlights: tuple[Span, ...] = ()
    passage: Passage | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    section: tuple[str, ...] = ()
    source: Source | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `asdict` makes."""
        passage = value.get("passage")
        spans = tuple(_pick(Span, span) for span in value.get("highlights", ()))
        read = None if passage is None else _pick(Passage, passage)
        hit: Self = _pick(cls, {**value, "highlights": spans, "passage": read, **_origin(value)})
        return hit


@dataclass(frozen=True, slots=True)
class SearchTimings:
    """How long each stage of a search took, in milliseconds."""

    rank: float = 0.0
    fetch: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of one search.

    Attributes:
        terms: the query's words after analysis; sentences are compared with these.
        sentences: the number of sentences that were ranked.
    """

    id: str
    created: int
    query: str
    terms: tuple[str, ...]
    hits: tuple[Hit, ...]
    sentences: int
    index: Index
    timings_ms: SearchTimings

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values, as the REST service sends it."""
        values = asdict(self)
        return {"id": values.pop("id"), "object": "qa.search", **values}

    def to_json(self) -> bytes:
        """The result as JSON."""
        return orjson.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes; unknown fields are ignored, missing ones are an InvalidInput."""
        try:
            return cls(
                id=value["id"],
                created=value["created"],
                query=value["query"],
                terms=tuple(value["terms"]),
                hits=tuple(Hit.from_dict(hit) for hit in value["hits"]),
                sentences=value["sentences"],
                index=_index(value["index"]),
                timings_ms=_pick(SearchTimings, value["timings_ms"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a result of a search: {error!r}") from error

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` makes."""
        return cls.from_dict(_object(text))


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. `tokenized` tells whether questions are answered from this version already."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    sentences: int = 0
    tokenized: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON-ready values."""
        return asdict(self)

    def to_json(self) -> bytes:
        """The document as JSON."""
        return orjson.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        return _read(cls, value, "a document")

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` makes."""
        return cls.from_dict(_object(text))


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """A document in a listing. `tokenized` is false while it is being replaced; `length` is in code points."""

    id: str
    title: str
    version: str
    length: int
    sentences: int
    tokenized: bool

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """A part of a listing, the last one if it has no `next_cursor`. Any page may be short, or empty."""

    documents: tuple[DocumentEntry, ...]
    next_cursor: str | None

    def to_dict(self) -> dict[str, Any]:
        """The page as JSON-ready values."""
        data = [{"object": "qa.document", **entry.to_dict()} for entry in self.documents]
        return {"object": "list", "data": data, "next_cursor": self.next_cursor}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        try:
            return cls(tuple(_pick(DocumentEntry, entry) for entry in value["data"]), value["next_cursor"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a page of documents: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """How many documents and sentences answers come from, and how many documents are not ready (None: not counted)."""

    documents: int
    sentences: int
    waiting: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        return _read(cls, value, "counts of documents")


@dataclass(frozen=True, slots=True)
class CollectionEntry:
    """A collection, and how many documents and sentences answers to its questions come from.

    `state` is ``ready``; ``deleting``; or ``incomplete``: a failure came between, creating it again completes it.
    """

    name: str
    state: str
    documents: int
    sentences: int

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON-ready values."""
        return {"object": "qa.collection", **asdict(self)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        return _read(cls, value, "a collection")


@dataclass(frozen=True, slots=True)
class Removal:
    """How many documents were removed; `complete` is false if some that were chosen are still there."""

    deleted: int
    complete: bool

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        return _read(cls, value, "a removal")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What writing a document did. `changed` is false if this version was already stored.

    `source_before` is where the version before came from, empty if that is not known; only the writer itself gets it.
    """

    id: str
    version: str
    changed: bool
    created: bool
    tokenized: bool
    source_before: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values."""
        values = asdict(self)
        del values["source_before"]  # a path on somebody's machine
        return values

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_dict` makes."""
        return _read(cls, value, "the result of a write")


def _read(kind: type[_Kind], value: Mapping[str, Any], what: str) -> _Kind:
    """An object of plain fields; InvalidInput where one is missing."""
    try:
        made: _Kind = _pick(kind, value)
        return made
    except TypeError as error:
        raise InvalidInput(f"not {what}: {error}") from error


def _pick(kind: Any, value: Mapping[str, Any]) -> Any:
    known = {entry.name for entry in fields(kind)}
    return kind(**{name: item for name, item in value.items() if name in known})


def _index(value: Mapping[str, Any]) -> Index:
    found: Index = _pick(Index, {**value, "missing": tuple(value.get("missing", ()))})
    return found


def _origin(value: Mapping[str, Any]) -> dict[str, Any]:
    source = value.get("source")
    return {"section": tuple(value.get("section", ())), "source": None if source is None else _pick(Source, source)}


def _object(text: bytes | str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"not a JSON object but a {type(value).__name__}")
    return value
