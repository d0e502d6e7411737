"""The types of questions, answers and documents that clients and the REST service exchange, and their JSON forms.

The JSON names are the names of the REST service. `answer`, `score`, `start` and `end` are Hugging Face's names. Offsets
are half-open, in code points of the stored document. For every answer except a pinned answer,
``document.text[answer.start:answer.end] == answer.answer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import orjson

from .errors import InvalidInput
from .keys import DEFAULT_COLLECTION

CONFIDENCES = SURE, LIKELY, UNSURE = "sure", "likely", "unsure"
"""The values of `Answer.confidence`: words for the score of an answer."""


class _Json:
    """A dataclass with a JSON form.

    A subclass has two class arguments. `what` is the name of the type in errors. `object` is the value of the JSON
    field ``object``; if `object` is empty, the JSON form has no such field.
    """

    __slots__ = ()
    _what: ClassVar[str] = ""
    _object: ClassVar[str] = ""

    def __init_subclass__(cls, what: str = "", object: str = "") -> None:
        cls._what = what or cls._what
        cls._object = object or cls._object

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON-ready types. The metadata is shared, not copied."""
        values: dict[str, Any] = _plain(self)
        return {"object": self._object, **values} if self._object else values

    def to_json(self) -> bytes:
        """Return the JSON text."""
        return orjson.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read the result of `to_dict`. Unknown fields are ignored.

        Raises:
            InvalidInput: a field without a default is missing, or a value has the wrong shape.
        """
        try:
            made: Self = _read(cls, value)
            return made
        except (TypeError, AttributeError) as error:
            raise InvalidInput(f"not {cls._what}: {error}") from error

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read the result of `to_json`."""
        return cls.from_dict(_object(text))


@dataclass(frozen=True, slots=True)
class Source:
    """The source file of a document, and the position in this file of an answer or a hit.

    `line` or `page` (counted from 1) is where the paragraph with the answer or hit starts. The other is None. Both are
    None if the position is unknown.
    """

    file: str
    line: int | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Mention:
    """Another span, in the same or another document, that contains the same answer.

    Attributes:
        passage_id, section, source, url: as in `Answer`.
        shard: the short name of the shard that stores the document.
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
    url: str = ""


@dataclass(frozen=True, slots=True)
class Answer(_Json, what="an answer"):
    """One answer: a span of a sentence of a stored document.

    Attributes:
        score: the probability that the answer is right. The scores of all answers that were found and of "no answer"
            add up to 1. This sum includes answers that are not returned, but not the pinned answer.
        logit: the score over null of the answer's span: its start logit plus its end logit, minus the null score.
        passage_id: the document's id, a colon, and the number of the answer's sentence (from 0).
        context: the text that the reader read: a ranked sentence, with its neighbours if they fit into the token budget
            of the reader. `context_start` and `context_end` are the offsets of this text in the document.
        section: the headings above the answer, the outermost first.
        source: the position in the document's source file; None if it is unknown.
        url: the web address of the document's page, from the document's metadata; empty if unknown.
        also_in: other spans with the same answer, the best first.
        pinned: whether an editor wrote the answer. A pinned answer has the score 1, the confidence ``sure``, the
            offsets 0 and its own text as `context`.
        confidence: a word for the score: ``sure``, ``likely`` or ``unsure``. The calibration of the reading plan
            includes the thresholds between these words. Empty in results of earlier versions of the service.
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
    url: str = ""
    also_in: tuple[Mention, ...] = ()
    pinned: bool = False
    confidence: str = ""

    @property
    def shards(self) -> tuple[str, ...]:
        """The short names of the shards that store the answer's document and the documents of `also_in`."""
        return (self.shard, *(mention.shard for mention in self.also_in))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-ready values."""
        values = {name: getattr(self, name) for name in _ANSWER_FIELDS}
        values["source"] = asdict(self.source) if self.source is not None else None
        values["also_in"] = [asdict(mention) for mention in self.also_in]
        values["highlights"] = [{"start": self.start, "end": self.end, "kind": "answer"}]
        return values


_ANSWER_FIELDS = tuple(entry.name for entry in fields(Answer))


@dataclass(frozen=True, slots=True)
class Model:
    """Identifies the reader that answered."""

    id: str
    revision: str
    precision: str


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How the caches were used.

    Attributes:
        status: ``hit``, ``miss``, or the question's option `cache` if it is ``refresh`` or ``off``.
        tier: the cache that had the answer: ``near`` (in the memory of the service or cluster client), ``shard``, or
            ``none`` (the answer was computed).
        age_s: the age of the cached answer in seconds; 0 if the answer was computed.
        ttl_s: the time until the cached answer expires, in seconds; 0 if the answer is not cached.
    """

    status: str
    tier: str
    age_s: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Index:
    """The state of the searched documents. `version` changes with every change of a document.

    Attributes:
        partial: whether shards did not answer, so that the result lacks their documents.
        missing: the addresses of the shards that did not answer.
    """

    version: str
    shards_total: int
    shards_answered: int
    partial: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The work that computed the answer.

    Attributes:
        candidates: the number of sentences that were ranked for reading.
        sentences_read: the number of sentences that were read, including cached sentence answers.
        sentences_cached: the number of the sentences whose answers were cached.
        waves: the number of waves.
        windows: the number of windows that were read, including the windows of cached sentence answers.
        truncated: whether the question was too long, so that its end was not read.
    """

    candidates: int
    sentences_read: int
    sentences_cached: int
    waves: int
    truncated: bool
    windows: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """How long each stage of a question took, in milliseconds; 0 if the stage was skipped.

    Attributes:
        cache: the search for a cached answer.
        rank: the ranking of the sentences.
        read: the waves of reading, one entry for each wave.
        total: the whole question.
    """

    cache: float = 0.0
    rank: float = 0.0
    read: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class AskResult(_Json, what="a result of a question"):
    """The result of one question.

    Attributes:
        created: the time of the response, in seconds since 1970.
        answerable: false if `answers` is empty, or if the best answer does not reach the no-answer threshold of the
            reading plan. In the second case, only a question with the option ``no_answer=False`` gets answers.
        no_answer_score: the probability that no answer is right.
    """

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
        """The first answer; None if there is no answer."""
        return self.answers[0] if self.answers else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the JSON-ready values that the REST service sends."""
        values: dict[str, Any] = orjson.loads(self.to_json())
        return values

    def to_json(self) -> bytes:
        """Return the result as JSON text."""
        head = answer_head(self.question, self.normalized_question)
        body = answer_body(
            model=self.model,
            answerable=self.answerable,
            no_answer_score=self.no_answer_score,
            answers=self.answers,
            index=self.index,
            usage=self.usage,
        )
        return answer_json(self.id, self.created, head, body, cache=self.cache, timings=self.timings_ms)


def answer_head(question: str, normalized: str) -> bytes:
    """Return the part of a result that depends only on the question: the fields of a JSON object, without braces.

    `normalized` is the normalized question.
    """
    return orjson.dumps({"question": question, "normalized_question": normalized})[1:-1]


def answer_body(
    *, model: Model, answerable: bool, no_answer_score: float, answers: Sequence[Answer], index: Index, usage: Usage
) -> bytes:
    """Return the part of a result that all responses with this answer share, as a JSON object."""
    return orjson.dumps(
        {
            "model": model,
            "answerable": answerable,
            "no_answer_score": no_answer_score,
            "answers": [answer.to_dict() for answer in answers],
            "index": index,
            "usage": usage,
        }
    )


def answer_json(request_id: str, created: int, head: bytes, body: bytes, *, cache: CacheUse, timings: Timings) -> bytes:
    """Return a whole result as JSON, from the results of `answer_head` and `answer_body`."""
    first = orjson.dumps({"id": request_id, "object": "qa.result", "created": created})
    last = orjson.dumps({"cache": cache, "timings_ms": timings})
    return b"%b,%b,%b,%b" % (first[:-1], head, body[1:-1], last[1:])


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a stored document, in code points. The kind ``term`` is a word that matches a term of the query."""

    start: int
    end: int
    kind: str = "term"


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence that a search found, with its neighbours. Passages with vectors are unrelated to this class.

    The text is as long as in the document, because one space replaces each white space character between sentences.
    """

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Hit(_Json, what="a hit"):
    """One sentence that a search found: ``document.text[hit.start:hit.end] == hit.text``.

    Attributes:
        collection: the collection of the document.
        highlights: the spans of the words that match terms of the query, as offsets in the document.
        passage: the sentence with its neighbours; None if the search did not set `context`.
        section, source, url: as in `Answer`.
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
    url: str = ""
    collection: str = DEFAULT_COLLECTION


@dataclass(frozen=True, slots=True)
class SearchTimings:
    """How long each stage of a search took, in milliseconds.

    Attributes:
        rank: the ranking of the sentences.
        fetch: the reading of the texts and metadata of the hits.
        total: the whole search.
    """

    rank: float = 0.0
    fetch: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchedCollection:
    """A collection that was searched, with the number of its sentences."""

    name: str
    sentences: int


@dataclass(frozen=True, slots=True)
class SearchResult(_Json, what="a result of a search"):
    """The result of one search.

    Attributes:
        terms: the words of the query after analysis; the ranking compares sentences with these words.
        sentences: the number of sentences that were ranked.
        collections: the searched collections. The scores use the term statistics of all these collections together.
    """

    id: str
    created: int
    query: str
    terms: tuple[str, ...]
    hits: tuple[Hit, ...]
    sentences: int
    index: Index
    timings_ms: SearchTimings
    collections: tuple[SearchedCollection, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the JSON-ready values that the REST service sends."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            "id": values.pop("id"),
            "object": "qa.search",
            **values,
            "hits": [hit.to_dict() for hit in self.hits],
            "index": asdict(self.index),
            "timings_ms": asdict(self.timings_ms),
            "collections": [asdict(each) for each in self.collections],
        }

    def to_json(self) -> bytes:
        """Return the JSON text. The encoder reads the hits directly, so their metadata is not copied."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return orjson.dumps({"id": values.pop("id"), "object": "qa.search", **values})


@dataclass(frozen=True, slots=True)
class Document(_Json, what="a document"):
    """A stored document.

    Attributes:
        tokenized: whether this version is indexed.
        failure: why this version could not be indexed; empty if no worker has given up indexing it.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    sentences: int = 0
    tokenized: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class DocumentEntry(_Json):
    """A document in a list.

    Attributes:
        length: the length of the text in code points.
        tokenized: whether this version is indexed; false while this version is pending, and after indexing has failed.
        failure: why this version could not be indexed; empty if no worker has given up indexing it.
    """

    id: str
    title: str
    version: str
    length: int
    sentences: int
    tokenized: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class DocumentPage(_Json):
    """A page of a list of documents. Only the last page has no `next_cursor`.

    Any page may have fewer documents than the limit, or none.
    """

    documents: tuple[DocumentEntry, ...]
    next_cursor: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the page as JSON-ready values."""
        data = [{"object": "qa.document", **entry.to_dict()} for entry in self.documents]
        return {"object": "list", "data": data, "next_cursor": self.next_cursor}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read the result of `to_dict`."""
        try:
            return cls(tuple(_read(DocumentEntry, entry) for entry in value["data"]), value["next_cursor"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a page of documents: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DocumentCounts(_Json, what="counts of documents"):
    """The numbers of indexed documents and of their sentences.

    `waiting` is the number of pending documents; None if the pending documents were not counted.
    """

    documents: int
    sentences: int
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class CollectionEntry(_Json, what="a collection", object="qa.collection"):
    """A collection, with the numbers of its indexed documents and of their sentences.

    `state` is ``ready``, ``deleting`` or ``incomplete``. A failure during the creation leaves an incomplete collection.
    Create it again to complete it.
    """

    name: str
    state: str
    documents: int
    sentences: int


@dataclass(frozen=True, slots=True)
class Removal(_Json, what="a removal"):
    """The result of deleting the documents that a prefix or a filter selects, or of deleting a collection.

    Attributes:
        deleted: the number of deleted documents.
        complete: false if some selected documents may remain, because the time limit ended the deletion, or because
            other clients changed or deleted documents at the same time.
    """

    deleted: int
    complete: bool


@dataclass(frozen=True, slots=True)
class MetadataUpdate(_Json, what="an update of metadata"):
    """The numbers of documents that an update of metadata changed, left unchanged, and skipped.

    Attributes:
        skipped: documents that another client wrote or removed during the update.
        next_cursor: the cursor with which the next call continues an update that reached its time limit; None if the
            update reached the last document.
        complete: false if the time limit ended the update, or if documents were skipped. Repeat the update to change
            the documents that it skipped or did not reach.
    """

    updated: int
    unchanged: int
    skipped: int
    complete: bool
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class FieldEntry(_Json, what="a field"):
    """A metadata field of a collection.

    Attributes:
        documents: the number of documents that have the field.
        texts, numbers, booleans, times: how many values of the field have this type. Each item of an array is a value.
            Values that filters cannot use are not counted.
    """

    name: str
    documents: int
    texts: int = 0
    numbers: int = 0
    booleans: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True)
class FieldList(_Json, what="a list of fields"):
    """The metadata fields of a collection, the most frequent first. `complete` is false if fields are left out."""

    fields: tuple[FieldEntry, ...]
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the list as JSON-ready values."""
        data = [{"object": "qa.field", **asdict(entry)} for entry in self.fields]
        return {"object": "list", "data": data, "complete": self.complete}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read the result of `to_dict`."""
        try:
            return cls(tuple(_read(FieldEntry, entry) for entry in value["data"]), value["complete"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a list of fields: {error!r}") from error


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A value of a field, and the number of documents that have it. A time is text in ISO 8601."""

    value: str | int | float | bool
    documents: int


@dataclass(frozen=True, slots=True)
class FieldValues(_Json, what="the values of a field", object="qa.field.values"):
    """The values of a field in the selected documents, the most frequent first.

    Attributes:
        documents: the number of selected documents that have the field.
        missing: the number of selected documents without the field.
        distinct: the number of distinct values; a lower bound if `exact` is false.
        other: `distinct` minus the number of listed values.
        minimum, maximum: the least and the greatest number; None if the field has no numbers.
        earliest, latest: the first and the last time, as text in ISO 8601; None if the field has no times.
        exact: false if there were too many distinct values to count each value.
    """

    name: str
    documents: int
    missing: int
    distinct: int
    other: int
    values: tuple[FieldValue, ...]
    minimum: int | float | None = None
    maximum: int | float | None = None
    earliest: str | None = None
    latest: str | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class WriteResult(_Json, what="the result of a write"):
    """The result of a write. `changed` is false if this version was already stored.

    `source_before` is the source of the previous version; empty if unknown. A source is a text that says where a
    document comes from, such as a path. The REST service does not send `source_before`.

    `vectors` is the result for vectors that the writer sent with the document: ``stored``, or the reason why the shards
    compute the vectors instead. `vectors` is empty if the writer sent no vectors.
    """

    id: str
    version: str
    changed: bool
    created: bool
    tokenized: bool
    source_before: str = ""
    vectors: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values, without `source_before`."""
        values = asdict(self)
        del values["source_before"]  # it may be a path on the machine of the writer
        return values


@dataclass(frozen=True, slots=True)
class UploadedFile(_Json, what="the result of an upload"):
    """The result for one uploaded file: the stored document, or the error.

    Attributes:
        name: the name of the file.
        id: the id of its document, with the prefix of the upload.
        format: the format in which the file was read.
        sentences: the number of sentences; None while the document is not indexed.
        version, changed, created, tokenized: as in `WriteResult`.
        remarks: texts that say what was guessed, replaced or left out.
        error: why the file was not stored; empty if it was stored.
        code: the code of the error, as in the REST service's problem documents; empty if there is no error.
    """

    name: str
    id: str
    title: str = ""
    format: str = ""
    sentences: int | None = None
    version: str = ""
    changed: bool = False
    created: bool = False
    tokenized: bool = False
    remarks: tuple[str, ...] = ()
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class LoadedModel(_Json, what="a model"):
    """A model on the shards.

    Attributes:
        kind: ``reader`` or ``encoder``.
        default: whether the model is the reader of questions that name no reader.
        warm: the number of shards where the model is ready.
        shards: the number of all shards of the cluster.
        bytes: the size of the model file.
        context_tokens: the token budget for a sentence with its neighbours, or of an encoder's passage.
    """

    name: str
    id: str
    revision: str
    default: bool
    precision: str
    bytes: int
    context_tokens: int
    warm: int
    shards: int
    kind: str = "reader"


@dataclass(frozen=True, slots=True)
class Pin(_Json, what="a pin"):
    """An editor's answer to a question. Results show it before all other answers.

    Attributes:
        document_id, title, url: the document that the answer refers to; empty if it refers to no document.
    """

    question: str
    answer: str
    document_id: str = ""
    title: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Synonyms(_Json, what="a list of synonyms"):
    """The synonyms of a collection.

    Attributes:
        groups: groups of words or phrases with one meaning, with commas between them: ``"vm, virtual machine"``.
        weight: the weight of a synonym, relative to the weight of the query's own term.
    """

    groups: tuple[str, ...] = ()
    weight: float = 0.5


@dataclass(frozen=True, slots=True)
class Feedback(_Json, what="feedback"):
    """A person's judgement of an answer.

    Attributes:
        verdict: ``right``, ``wrong``, or ``better`` if the person names a better answer.
        document_id, answer, context: the answer that the person judges, and its sentence.
        better_document_id, better_answer, better_context: the better answer, and its sentence.
    """

    question: str
    verdict: str
    document_id: str = ""
    answer: str = ""
    context: str = ""
    better_document_id: str = ""
    better_answer: str = ""
    better_context: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class FeedbackEntry(_Json, what="an entry of feedback", object="qa.feedback"):
    """Stored feedback with its id. `created` is in seconds since 1970."""

    id: str
    created: int
    feedback: Feedback


@dataclass(frozen=True, slots=True)
class UnansweredQuestion(_Json, what="an unanswered question", object="qa.unanswered"):
    """A question that got no answer, or an unsure answer.

    Attributes:
        count: how often the question was computed on the shards; results from a cache do not count.
        score: the score of the last answer; 0 if the question got no answer the last time.
        first, last: when the question was first and last asked, in seconds since 1970.
    """

    question: str
    count: int
    score: float
    first: int
    last: int


def _plain(value: Any) -> Any:
    """Convert dataclasses to dictionaries, also in tuples. Other values are shared, not copied."""
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


@cache
def _types_of(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields. The keys are the names of the fields."""
    types = get_type_hints(kind)
    return {entry.name: types[entry.name] for entry in fields(kind)}


def _read(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type `kind`. Unknown fields are ignored."""
    if is_dataclass(kind):
        types = _types_of(kind)  # type: ignore[arg-type]
        return kind(**{name: _read(types[name], item) for name, item in value.items() if name in types})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in value)
    if isinstance(kind, UnionType):
        return None if value is None else _read(get_args(kind)[0], value)
    return value


def _object(text: bytes | str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"not a JSON object but a {type(value).__name__}")
    return value
