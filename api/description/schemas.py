"""The fields of requests: one table for their validation and for the OpenAPI description.

A problem document reports the first 50 invalid fields, each by a pointer into the JSON body or by the name of the
parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from qa_cluster.asking.document_fields import MAX_SHOWN_VALUES
from qa_cluster.asking.editors.feedback import (
    MAX_ANSWER_CHARS,
    MAX_COMMENT_CHARS,
    MAX_CONTEXT_CHARS,
    MAX_QUESTION_CHARS,
    VERDICTS,
)
from qa_cluster.asking.editors.feedback import MAX_ID_BYTES as MAX_FEEDBACK_ID_BYTES
from qa_cluster.asking.editors.guidance import (
    MAX_GROUP_CHARS,
    MAX_GROUPS,
    MAX_PIN_ANSWER_CHARS,
    MAX_PIN_ID_BYTES,
    MAX_PIN_QUESTION_CHARS,
    MAX_PIN_URL_CHARS,
)
from qa_cluster.asking.questions import (
    MAX_DOC_IDS,
    MAX_MODEL_BYTES,
    MORE_VALUES,
    AskLimits,
)
from qa_cluster.documents.addresses import STYLES
from qa_cluster.documents.metadata_limits import MAX_METADATA_BYTES, check_integer, may_hold_long_number
from qa_cluster.documents.stored import MAX_ID_BYTES, MAX_TITLE_BYTES
from qa_cluster.errors import InputTooLong
from qa_cluster.keys import COLLECTION_PATTERN, DEFAULT_COLLECTION, MAX_COLLECTION_CHARS
from qa_cluster.off_loop import off_loop
from qa_cluster.options.documents import DEFAULT_PAGE, DEFAULT_SHOWN_VALUES, MAX_PAGE
from qa_cluster.options.questions import (
    CACHE_MODES,
    COVERAGES,
    LISTS,
    MAX_SEARCHED_COLLECTIONS,
    PARTIAL,
    AskOptions,
    SearchOptions,
)
from qa_cluster.ranking.meaning import RETRIEVERS
from qa_cluster.reading.passages import MAX_NEIGHBOURS
from qa_cluster.reading.plan import PLANS
from qa_cluster.shard_functions import MAX_RANK_COUNT
from qa_cluster.sources.formats import FORMATS
from qa_cluster.types import Synonyms

from ..http.error_map import HttpProblem
from ..http.messages import READ, Receive, Scope, read_body, require_json, require_method
from ..service.lifespan import ServiceOptions

MAX_SHORT_CHARS = 4096
# The name of a collection, or * for all.
_SEARCHED_PATTERN = rf"^(\*|{COLLECTION_PATTERN[1:-1]})$"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request.

    Attributes:
        kind: ``string``, ``integer``, ``number``, ``boolean`` or ``object``.
        help: the description of the field.
        default: the default that the description shows; None if it shows none.
        choices: the allowed values; empty if all values are allowed.
        repeated: whether the field may have several values: a list in a body, or a repeated parameter.
        minimum, maximum: the bounds of a number, or of the length of a string.
        pattern: the pattern of a string. Only the description shows it; the code that uses the value checks it.
        required_inside: the fields that an object must have. Only the description shows them, as for `pattern`.
        most: the limit of values of a repeated field.
        in_bytes: whether the maximum of a string is in bytes of UTF-8. JSON Schema has no such unit, so the schema
            shows this number as characters.
    """

    name: str
    kind: str
    help: str
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    pattern: str = ""
    required_inside: tuple[str, ...] = ()
    in_bytes: bool = False
    most: int = MAX_DOC_IDS

    def schema(self, *, null: bool = False) -> dict[str, Any]:
        """Return the JSON Schema of the field. `null` says whether the schema allows null."""
        schema: dict[str, Any] = {"type": self.kind}
        low, high = {"string": ("minLength", "maxLength"), "object": ("minProperties", "maxProperties")}.get(
            self.kind, ("minimum", "maximum")
        )
        if self.minimum is not None:
            schema[low] = self.minimum
        if self.maximum is not None:
            schema[high] = self.maximum
        if self.choices:
            schema["enum"] = [*self.choices, None] if null and not self.repeated else list(self.choices)
        if self.pattern:
            schema["pattern"] = self.pattern
        if self.required_inside:
            schema["required"] = list(self.required_inside)
        if self.repeated:
            schema = {"type": "array", "items": schema, "maxItems": self.most}
        if null:
            schema["type"] = [schema["type"], "null"]
        schema["description"] = self.help
        if self.default is not None and not self.repeated:
            schema["default"] = self.default
        return schema


def ask_fields(limits: AskLimits, coverage: str = PARTIAL) -> tuple[Field, ...]:
    """Return the fields of a question. `coverage` is the default of the field `coverage`."""
    options = AskOptions()
    return (
        Field("question", "string", "the question", required=True, minimum=1, maximum=limits.question_max_chars),
        _count("top_k", "maximum number of answers", options.top_k, limits.top_k_max),
        Field(
            "min_score",
            "number",
            "minimum score of an answer",
            default=options.min_score,
            minimum=0,
            maximum=1,
        ),
        _count("retriever_k", "maximum number of sentences read", limits.retriever_k, limits.retriever_k_max),
        _collection("whose documents answer the question"),
        _document_ids("answers from"),
        *_filters("answers from"),
        *_reading_fields(limits, options, coverage),
    )


def _reading_fields(limits: AskLimits, options: AskOptions, coverage: str) -> tuple[Field, ...]:
    """Return the fields of a question that affect the reader or the result."""
    return (
        Field("waves", "boolean", "stop reading when an answer has a high score", default=options.waves),
        _timeout(limits),
        Field(
            "cache",
            "string",
            "use: use a cached answer; refresh: compute and cache a new answer; only: 404 if the answer is not cached;"
            " off: neither read nor write the caches",
            default=options.cache,
            choices=CACHE_MODES,
        ),
        _coverage(coverage),
        Field(
            "no_answer",
            "boolean",
            "whether the result can be that there is no answer; false returns the best spans, even improbable ones",
            default=options.no_answer,
        ),
        Field(
            "model",
            "string",
            "id or id@revision of the loaded model that answers (GET /models); default: the default model",
            minimum=1,
            maximum=MAX_MODEL_BYTES,
            in_bytes=True,
        ),
        _retriever(options.retriever),
        Field(
            "plan",
            "string",
            "fast: read at most 6 sentences; balanced: read at most retriever_k sentences; accurate: read at most 12"
            " sentences, and if the answer is not sure enough, let a larger reader read the best 4 of them again;"
            " default: the plan of the service",
            choices=tuple(PLANS),
        ),
    )


def search_fields(limits: AskLimits, query: str = "query", coverage: str = PARTIAL) -> tuple[Field, ...]:
    """Return the fields of a search.

    `query` is the name of the field with the text, which is ``q`` in query strings. `coverage` is the default of the
    field `coverage`.
    """
    options = SearchOptions()
    return (
        Field(query, "string", "words or question", required=True, minimum=1, maximum=limits.question_max_chars),
        _count("top_k", "maximum number of sentences", options.top_k, MAX_RANK_COUNT),
        Field(
            "collection",
            "string",
            "a collection to search (GET /collections), repeatable; * searches all collections that the key may use",
            default=DEFAULT_COLLECTION,
            minimum=1,
            maximum=MAX_COLLECTION_CHARS,
            pattern=_SEARCHED_PATTERN,
            repeated=True,
            most=MAX_SEARCHED_COLLECTIONS,
        ),
        _document_ids("sentences of"),
        *_filters("sentences of"),
        Field(
            "context",
            "integer",
            "number of sentences before and after each hit that are returned with it",
            default=options.context,
            minimum=0,
            maximum=MAX_NEIGHBOURS,
        ),
        _timeout(limits),
        _coverage(coverage),
        _retriever(options.retriever),
        Field(
            "prefix",
            "boolean",
            "whether the last word may be incomplete, for results while a person types; only with retriever words",
            default=options.prefix,
        ),
    )


def _count(name: str, help: str, default: int, maximum: int) -> Field:
    return Field(name, "integer", help, default=default, minimum=1, maximum=maximum)


def _retriever(default: str) -> Field:
    return Field(
        "retriever",
        "string",
        "how to choose sentences. words: BM25; meaning: the vectors of passages; both: the sum. Without an encoder on"
        " the shards, both works like words",
        default=default,
        choices=RETRIEVERS,
    )


def _coverage(default: str) -> Field:
    return Field(
        "coverage",
        "string",
        "what to do while a shard is down. partial: use the other shards, and set index.partial; full: fail with 503",
        default=default,
        choices=COVERAGES,
    )


def _collection(what: str) -> Field:
    return Field(
        "collection",
        "string",
        f"the collection {what} (GET /collections)",
        default=DEFAULT_COLLECTION,
        minimum=1,
        maximum=MAX_COLLECTION_CHARS,
        pattern=COLLECTION_PATTERN,
    )


def _document_ids(what: str) -> Field:
    help_text = f"only {what} this document; repeatable"
    return Field("doc_id", "string", help_text, minimum=1, maximum=MAX_ID_BYTES, repeated=True, in_bytes=True)


def _filters(what: str) -> tuple[Field, Field]:
    return (
        Field(
            "filters",
            "object",
            f"only {what} documents whose metadata meets this filter in Haystack's format; as JSON in a query string",
            required_inside=("operator",),
        ),
        Field(
            "filter",
            "string",
            f"only {what} documents whose metadata meets this condition, such as year>=2020, lang=en,de or lang=null;"
            " repeatable",
            minimum=1,
            maximum=MAX_SHORT_CHARS,
            repeated=True,
        ),
    )


def _timeout(limits: AskLimits) -> Field:
    return _count("timeout_ms", "time limit of the request in milliseconds", limits.timeout_ms, limits.timeout_ms_max)


def document_fields(max_bytes: int) -> tuple[Field, ...]:
    """Return the fields of the body that writes a document.

    `max_bytes` is the limit of the whole body in bytes. It is also the limit of characters of the text.
    """
    return (
        Field("text", "string", "text of the document", required=True, minimum=1, maximum=max_bytes),
        Field(
            "title",
            "string",
            f"title of the document, at most {MAX_TITLE_BYTES:,} bytes of UTF-8",
            default="",
            maximum=MAX_TITLE_BYTES,
            in_bytes=True,
        ),
        Field("metadata", "object", "JSON object that is returned with every answer"),
        Field(
            "vectors",
            "object",
            "vectors of the passages, which the client made with the encoder of the shards; if they do not fit the"
            " document or the encoder, the shards discard them and make new vectors",
            required_inside=("encoder", "dims", "version", "splitter", "sentences", "passages"),
        ),
    )


def metadata_parameters(limits: AskLimits) -> tuple[Field, ...]:
    """Return the query parameters for changing the metadata of a document."""
    return (*DOCUMENT_PARAMETERS, _timeout(limits))


def update_parameters(limits: AskLimits) -> tuple[Field, ...]:
    """Return the query parameters for changing the metadata of many documents.

    A prefix, a filter or `failed` is required; `update_all` checks this.
    """
    return (
        Field("cursor", "string", "next_cursor of an incomplete update; default: the first document"),
        *CHOICE_PARAMETERS,
        _timeout(limits),
    )


def write_parameters(limits: AskLimits) -> tuple[Field, ...]:
    """Return the query parameters for writing a document."""
    return (
        *DOCUMENT_PARAMETERS,
        Field("wait", "boolean", "whether to wait until this version is indexed", default=True),
        _timeout(limits),
    )


def upload_parameters(limits: AskLimits, timeout_ms: int) -> tuple[Field, ...]:
    """Return the query parameters of an upload.

    `timeout_ms` is the default time limit. A client may set a time limit up to the larger of `timeout_ms` and the limit
    for questions.
    """
    return (
        _collection("of the documents"),
        Field(
            "prefix",
            "string",
            "prefix of the ids; each id is the prefix and the name of the file",
            default="",
            maximum=MAX_ID_BYTES,
            in_bytes=True,
        ),
        Field(
            "base_url",
            "string",
            "address of a site with a page for each file; sets the metadata field url of each document",
            maximum=MAX_SHORT_CHARS,
        ),
        Field("url_style", "string", "form of the addresses below base_url", default=STYLES[0], choices=STYLES),
        Field("metadata", "object", "metadata of all documents; the metadata of a document itself has priority"),
        Field(
            "format",
            "string",
            "format of all files; default: detected from the name, else from the contents",
            choices=FORMATS,
        ),
        Field("wait", "boolean", "whether to wait until the documents are indexed", default=True),
        _count(
            "timeout_ms",
            "time limit for reading and storing the files in milliseconds",
            timeout_ms,
            max(timeout_ms, limits.timeout_ms_max),
        ),
    )


def removal_parameters(limits: AskLimits) -> tuple[Field, ...]:
    """Return the query parameters for deleting many documents.

    A prefix, a filter or `failed` is required; `remove_all` checks this.
    """
    return (*CHOICE_PARAMETERS, _timeout(limits))


def timeout_parameters(limits: AskLimits) -> tuple[Field, ...]:
    """Return the query parameters of a request that has only a time limit."""
    return (_timeout(limits),)


def _text(name: str, help: str, most: int, *, required: bool = False) -> Field:
    return Field(name, "string", help, required=required, minimum=int(required), maximum=most)


# The query parameters for reading and deleting a document.
DOCUMENT_PARAMETERS = (_collection("of the document"),)
# The query parameters that select documents.
CHOICE_PARAMETERS = (
    _collection("of the documents"),
    Field("prefix", "string", "only documents whose ids start with this prefix", maximum=MAX_ID_BYTES, in_bytes=True),
    *_filters("those"),
    Field(
        "failed",
        "boolean",
        "documents that could not be indexed, instead of indexed documents; not with filter or filters",
        default=False,
    ),
)
# The query parameters for listing documents.
LIST_PARAMETERS = (
    Field("cursor", "string", "next_cursor of the previous page; default: the first page"),
    _count("limit", "maximum number of documents on the page", DEFAULT_PAGE, MAX_PAGE),
    *CHOICE_PARAMETERS,
)
# The query parameters for counting documents.
COUNT_PARAMETERS = (
    Field(
        "waiting",
        "boolean",
        "also count pending documents, which are not indexed yet; reads the record of every document; not with"
        " prefix, filter or filters",
        default=False,
    ),
    *CHOICE_PARAMETERS,
)
# The query parameters for the values of a field.
FIELD_VALUES_PARAMETERS = (
    _count("limit", "maximum number of values", DEFAULT_SHOWN_VALUES, MAX_SHOWN_VALUES),
    *_filters("count"),
)
# The query parameters of pins, synonyms, feedback and unanswered questions.
GUIDANCE_PARAMETERS = (_collection("of the entries"),)
# The query parameters for deleting a pin.
PIN_REMOVAL_PARAMETERS = (
    _text("question", "question of the pin", MAX_PIN_QUESTION_CHARS, required=True),
    *GUIDANCE_PARAMETERS,
)
# The fields of the body that creates a collection.
COLLECTION_FIELDS = (
    Field(
        "name",
        "string",
        "name of the collection: a-z, 0-9, _ and -, starting with a letter or digit",
        required=True,
        minimum=1,
        maximum=MAX_COLLECTION_CHARS,
        pattern=COLLECTION_PATTERN,
    ),
)
# The fields of the body that changes metadata.
METADATA_FIELDS = (
    Field("metadata", "object", "metadata fields to set, each with its new value; other fields stay unchanged"),
    Field("remove", "string", "names of metadata fields to remove", maximum=MAX_METADATA_BYTES, repeated=True),
)
# The fields of the body that sets a pin.
PIN_FIELDS = (
    _text("question", "question; case and a final ?, ! or . do not matter", MAX_PIN_QUESTION_CHARS, required=True),
    _text("answer", "the editor's answer", MAX_PIN_ANSWER_CHARS, required=True),
    _text("document_id", "document that the answer refers to", MAX_PIN_ID_BYTES),
    _text("title", "title of that document", MAX_PIN_ID_BYTES),
    _text("url", "web address of the document's page", MAX_PIN_URL_CHARS),
    _collection("of the pin"),
)
# The fields of the body that sets the synonyms of a collection.
SYNONYMS_FIELDS = (
    Field(
        "groups",
        "string",
        "words or phrases with the same meaning, separated by commas: vm, virtual machine",
        required=True,
        minimum=3,
        maximum=MAX_GROUP_CHARS,
        repeated=True,
        most=MAX_GROUPS,
    ),
    Field(
        "weight",
        "number",
        "weight of a synonym, relative to the weight that it has as a word of the question",
        default=Synonyms().weight,
        minimum=0,
        maximum=1,
    ),
    _collection("of the synonyms"),
)
# The fields of the body that stores feedback.
FEEDBACK_FIELDS = (
    _text("question", "the question", MAX_QUESTION_CHARS, required=True),
    Field("verdict", "string", "what the person says about the answer", required=True, choices=VERDICTS),
    _text("document_id", "document of the answer", MAX_FEEDBACK_ID_BYTES),
    _text("answer", "the answer; a part of context", MAX_ANSWER_CHARS),
    _text("context", "sentence of the answer", MAX_CONTEXT_CHARS),
    _text("better_document_id", "document of the better answer", MAX_FEEDBACK_ID_BYTES),
    _text("better_answer", "the better answer; required if verdict is better", MAX_ANSWER_CHARS),
    _text("better_context", "sentence of the better answer", MAX_CONTEXT_CHARS),
    _text("comment", "comment of the person", MAX_COMMENT_CHARS),
    _collection("that was asked"),
)


def parse_query(query: bytes, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the values of a query string by field name. HttpProblem lists the invalid parameters, at most 50. If the
    only fault is a string that is too long, InputTooLong is raised instead.

    The result has no values for missing parameters. A repeated field has a list of values.
    """
    by_name = {field.name: field for field in fields}
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=200,
        )
    except ValueError as error:  # not name=value pairs, or not UTF-8
        raise HttpProblem(
            "malformed-query", f"the query string must be name=value pairs in percent-encoded UTF-8: {error}"
        ) from error
    values: dict[str, Any] = {}
    errors: list[tuple[str, str]] = []
    for name, text in pairs:
        field = by_name.get(name)
        if field is None:
            errors.append((name, f"is not a parameter of this route; parameters are {', '.join(by_name)}"))
            continue
        value = _from_text(field, text)
        if field.repeated:
            values.setdefault(name, []).append(value)
        elif name in values:
            errors.append((name, "is given twice, but only one value is allowed"))
        else:
            values[name] = value
    return _checked(values, fields, errors, "parameter")


def parse_body(body: bytes, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the values of a JSON object by field name. HttpProblem lists the invalid fields, at most 50. If the only
    fault is a string that is too long, InputTooLong is raised instead.

    The result has no values for missing fields. A repeated field has a list of values.
    """
    document = load_json(body)
    if not isinstance(document, dict):
        raise HttpProblem(
            "validation",
            f"the body must be a JSON object, got {_kind(document)}",
            errors=[{"pointer": "#", "detail": "must be an object"}],
        )
    by_name = {field.name for field in fields}
    errors = [
        (name, f"is not a field of this route; fields are {', '.join(sorted(by_name))}")
        for name in document
        if name not in by_name
    ]
    return _checked({name: document[name] for name in document if name in by_name}, fields, errors, "pointer")


async def read_values(
    scope: Scope, receive: Receive, options: ServiceOptions, parameters: Sequence[Field], fields: Sequence[Field]
) -> dict[str, Any]:
    """Return the values of a question or a search by field name.

    The values are the `parameters` of a GET or HEAD, or the `fields` in the body of a POST. Raise HttpProblem for any
    other method, and for a POST with a query string.
    """
    require_method(scope, *READ, "POST")
    if scope["method"] in READ:
        return parse_query(scope["query_string"], parameters)
    if scope["query_string"]:
        path = scope["path"]
        raise HttpProblem("validation", f"POST {path} takes its fields in the body, not in the query string")
    require_json(scope)
    body = await read_body(scope, receive, options)
    return await off_loop(len(body), parse_body, body, fields)


def load_json(body: bytes) -> Any:
    """Parse a body as JSON. Raise HttpProblem if it is not JSON, or has numbers that do not fit into 64 bits."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "number is infinity" in str(error):
            raise HttpProblem("validation", f"the body has a number beyond the limit of 64 bits: {error}") from error
        raise HttpProblem("malformed-json", f"the body is not JSON: {error}") from error
    if may_hold_long_number(body):
        try:
            json.loads(body, parse_int=check_integer)
        except (ValueError, RecursionError) as error:
            raise HttpProblem("validation", f"the body {error}") from error
    return value


def ask_options(values: Mapping[str, Any], coverage: str = PARTIAL) -> AskOptions:
    """Create the options of a question from its fields. `coverage` is the default of the option `coverage`."""
    return AskOptions(**({"coverage": coverage} | _options(values, "question")))


def search_options(values: Mapping[str, Any], coverage: str = PARTIAL) -> SearchOptions:
    """Create the options of a search from its fields. `coverage` is the default of the option `coverage`."""
    return SearchOptions(**({"coverage": coverage} | _options(values, "q", "query")))


def _options(values: Mapping[str, Any], *others: str) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if name not in others and value is not None}
    for name in LISTS & given.keys():
        given[name] = tuple(given[name])
    if "timeout_ms" in given:
        given["timeout"] = given.pop("timeout_ms") / 1000
    if isinstance(names := given.get("collection"), list):
        given["collection"] = tuple(names)
    return given


def _checked(
    values: dict[str, Any], fields: Iterable[Field], errors: list[tuple[str, str]], where: str
) -> dict[str, Any]:
    too_long = False
    for field in fields:
        if field.name not in values or (values[field.name] is None and not field.required):
            if field.required:
                errors.append((field.name, "is required"))
            continue
        value = values[field.name]
        items = value if field.repeated and isinstance(value, list) else [value]
        if field.repeated and len(items) > field.most:
            more = f": {MORE_VALUES}" if field.name in ("doc_id", "filter") else ""
            errors.append((field.name, f"has {len(items)} values, the limit is {field.most}{more}"))
            continue
        for item in items:
            wrong = _wrong(field, item)
            if wrong is not None:
                errors.append((field.name, wrong))
                too_long = too_long or (field.kind == "string" and isinstance(item, str) and "the limit is" in wrong)
        if field.repeated:
            values[field.name] = items
        elif field.kind == "number" and isinstance(value, int):
            values[field.name] = float(value)
    if errors:
        errors = [(_shown_name(name), text) for name, text in errors[:50]]
        detail = "; ".join(f"{name} {text}" for name, text in errors[:5])
        if too_long and len(errors) == 1:
            raise InputTooLong(detail)
        raise HttpProblem(
            "validation",
            detail,
            errors=[
                {where: f"#/{_escape(name)}" if where == "pointer" else name, "detail": text} for name, text in errors
            ],
        )
    return values


def _shown_name(name: str) -> str:
    """Return the name of a field for an error, shortened, because names of unknown fields may have any length."""
    return name if len(name) <= 100 else f"{name[:100]}.."


def _wrong(field: Field, value: Any) -> str | None:
    """Return why `value` is invalid for the field; None if it is valid."""
    if _kind(value) != field.kind and not (field.kind == "number" and _kind(value) == "integer"):
        shown = f" {value[:40]!r}" if isinstance(value, str) and field.kind != "string" else ""
        return f"must be {_article(field.kind)}, got {_kind(value)}{shown}"
    if field.choices and value not in field.choices:
        return f"must be one of {', '.join(field.choices)}, got {value[:40]!r}"
    if field.kind == "object":
        try:
            size, low, high, unit = len(orjson.dumps(value)), 0.0, float(MAX_METADATA_BYTES), "bytes"
        except orjson.JSONEncodeError:
            return "is nested too deeply"
    elif field.kind == "string":
        size, unit = (len(value.encode()), "bytes") if field.in_bytes else (len(value), "characters")
        low, high = field.minimum or 0, field.maximum or math.inf
    else:
        low, high = field.minimum or 0, field.maximum if field.maximum is not None else math.inf
        # An integer may have hundreds of digits and then does not fit into a float.
        within = field.kind == "boolean" or low <= value <= high
        return None if within else f"must be from {low:g} to {high:g}, got {str(value)[:40]}"
    if size > high:
        return f"has {size} {unit}, the limit is {high:.0f}"
    return "must not be empty" if size < low else None


def _from_text(field: Field, text: str) -> Any:
    """Convert the text of a query parameter to the type of the field. Return the text unchanged if this is not
    possible.
    """
    if field.kind == "boolean":
        return _BOOLEANS.get(text.lower(), text)
    if field.kind in ("integer", "number") and text.isascii() and "_" not in text:
        try:
            return int(text) if field.kind == "integer" else float(text)
        except ValueError:
            return text
    if field.kind == "object":
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "integer", float: "number", dict: "object", list: "array"}.get(type(value), "null")


def _article(kind: str) -> str:
    return {"integer": "an integer", "object": "an object", "boolean": "true or false"}.get(kind, f"a {kind}")


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
