"""The OpenAPI schemas of results, derived from the types that the service sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from qa_cluster.types import (
    CONFIDENCES,
    Answer,
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    FeedbackEntry,
    FieldEntry,
    FieldValue,
    FieldValues,
    Hit,
    Index,
    Mention,
    MetadataUpdate,
    Pin,
    Removal,
    SearchResult,
    Span,
    Synonyms,
    UnansweredQuestion,
    UploadedFile,
    WriteResult,
)

Schema = dict[str, Any]

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_SIMPLE = {str: STRING, int: INTEGER, float: NUMBER, bool: BOOLEAN}
_ORIGIN = {
    "section": "headings of the section, the outermost first",
    "source": "file of the document, and the line or page where the paragraph starts; null if unknown",
    "url": "web address of the document's page, from the metadata field url; empty if the document has no such field",
}
_FAILURE = "why this version could not be indexed (writing the document again retries); empty: indexing has not failed"
_DESCRIPTIONS: dict[type, dict[str, str]] = {
    Mention: _ORIGIN,
    Answer: {
        **_ORIGIN,
        "score": "probability that the answer is right; all scores and no_answer_score sum to 1",
        "logit": "score of the reader minus its score for no answer",
        "start": "offset of the first code point in the stored document",
        "end": "offset after the last code point",
        "context": "the sentence with the answer",
        "shard": "the shard that found the answer",
        "also_in": "other sentences with the same answer, best first",
        "pinned": "whether an editor pinned this answer; if so, its score is 1, its confidence is sure, and its offsets"
        " are 0",
        "confidence": "the score as a word; the limits of the words are fitted to questions with known answers",
    },
    AskResult: {"no_answer_score": "probability that no answer is right"},
    Index: {
        "partial": "whether shards were down, so that their documents were not searched",
        "missing": "addresses of the shards that were down",
    },
    Hit: {
        **_ORIGIN,
        "score": "retriever words: BM25 over all searched collections, plus a bonus if the sentence has several terms"
        " of the query; meaning: the similarity of vectors; both: a weighted sum; comparable only within one result",
        "text": "the sentence",
        "start": "offset of its first code point in the stored document",
        "end": "offset after its last code point",
        "passage": "the sentence with its neighbours; null if the field context is 0",
        "collection": "the collection of the document",
    },
    SearchResult: {
        "terms": "terms of the query that the ranking uses",
        "sentences": "number of ranked sentences",
        "collections": "the searched collections; scores use the statistics of all these collections together",
    },
    DocumentEntry: {
        "length": "number of code points of the text",
        "tokenized": "whether this version is indexed and answers questions; false: a new version is pending",
        "failure": _FAILURE,
    },
    Document: {"failure": _FAILURE},
    WriteResult: {
        "vectors": "the result for the vectors in the request: stored, other_encoder, other_document, other_sentences,"
        " stale or refused; empty: no vectors",
    },
    DocumentCounts: {
        "documents": "number of indexed documents",
        "waiting": "number of pending documents, which are stored but not indexed yet; null: not requested",
    },
    CollectionEntry: {
        "state": "incomplete: create the collection again; deleting: if the deletion was interrupted, delete it again",
        "documents": "number of indexed documents",
    },
    UploadedFile: {
        "id": "the prefix and the name of the file",
        "format": "format in which the file was read",
        "sentences": "number of sentences; null: the document is not indexed yet",
        "remarks": "remarks about guessed, replaced or omitted text",
        "error": "why the file was not stored; empty: it was stored",
        "code": "code of the error, for programs",
    },
    MetadataUpdate: {
        "updated": "number of documents with changed metadata",
        "unchanged": "number of matching documents that already had this metadata",
        "skipped": "number of matching documents that a client wrote or deleted meanwhile",
        "complete": "false: repeat the request; if next_cursor is not null, send it as cursor",
        "next_cursor": "where the update continues; null: it has reached the last document",
    },
    FieldEntry: {
        "documents": "number of indexed documents that have the field",
        "texts": "number of values that are text; an array has several values",
        "numbers": "number of values that are numbers",
        "booleans": "number of values that are true or false",
        "times": "number of values that are a date or a time of ISO 8601",
    },
    FieldValues: {
        "documents": "number of chosen documents that have the field",
        "missing": "number of chosen documents without the field",
        "distinct": "number of distinct values; a lower bound if exact is false",
        "other": "number of distinct values that are not listed",
        "values": "the most frequent values, each with the number of documents that have it",
        "minimum": "the smallest number; null: no value is a number",
        "maximum": "the greatest number; null: no value is a number",
        "earliest": "the first time; null: no value is a time",
        "latest": "the last time; null: no value is a time",
        "exact": "false: there are too many distinct values to count each",
    },
    Removal: {
        "complete": "false: some matching documents were not deleted, because the time limit ended or a client wrote"
        " them meanwhile; repeat the request to continue",
    },
}
# Fields of the JSON form that are not fields of the type.
_MORE: dict[type, dict[str, Schema]] = {
    AskResult: {"object": {"const": "qa.result"}},
    SearchResult: {"object": {"const": "qa.search"}},
    DocumentEntry: {"object": {"const": "qa.document"}},
    CollectionEntry: {"object": {"const": "qa.collection"}},
    FieldEntry: {"object": {"const": "qa.field"}},
    FeedbackEntry: {"object": {"const": "qa.feedback"}},
    UnansweredQuestion: {"object": {"const": "qa.unanswered"}},
    FieldValues: {"object": {"const": "qa.field.values"}},
}
_LEFT_OUT = {WriteResult: {"source_before"}}


def object_of(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    """Return the schema of an object. `required` are the names of the required properties; None: all of them."""
    return {"type": "object", "required": list(properties if required is None else required), "properties": properties}


def json_of(name: str) -> Schema:
    """Return the content of a JSON body whose schema is the component `name`."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def path_parameter(name: str, description: str = "", **rules: Any) -> Schema:
    """Return the description of a part of the path. `rules` are the keywords of its schema."""
    about = {"description": description} if description else {}
    return {"name": name, "in": "path", "required": True, **about, "schema": {**STRING, **rules}}


def list_of(items: Schema, **more: Schema) -> Schema:
    """Return the schema of a list that is sent as an object, with the items in `data`.

    `items` is the schema of an item, and `more` are the schemas of other properties of the object.
    """
    return object_of({"object": {"const": "list"}, "data": {"type": "array", "items": items}, **more})


def schema_of(kind: Any) -> Schema:
    """Return the schema of the JSON form of a type.

    `kind` is a simple type, a dataclass, a tuple of items of one type, or a union. Any other type has the schema of an
    object with any properties.
    """
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if is_dataclass(kind):
        return _fields_of(kind)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if isinstance(kind, UnionType):
        schemas = [schema_of(one) for one in get_args(kind) if one is not NoneType]
        # JSON Schema has one type, number, for int | float.
        return {**schemas[-1], "type": [schemas[-1]["type"], "null"]}
    return {"type": "object"}


def _fields_of(kind: Any) -> Schema:
    texts, types = _DESCRIPTIONS.get(kind, {}), get_type_hints(kind)
    properties = dict(_MORE.get(kind, {}))
    for name in [each.name for each in fields(kind) if each.name not in _LEFT_OUT.get(kind, ())]:
        properties[name] = schema_of(types[name]) | ({"description": texts[name]} if name in texts else {})
    if kind is FieldValue:
        properties["value"] = {"type": ["string", "number", "boolean"], "description": "a time is text in ISO 8601"}
    if kind is Answer:
        properties["confidence"]["enum"] = list(CONFIDENCES)
        properties["highlights"] = {"type": "array", "items": schema_of(Span)}
    return object_of(properties)


_PAGE = {"type": ["string", "null"], "description": "cursor of the next page; null: this is the last"}
_LISTED = "indexed or failed documents; pending documents, which are not indexed yet, are not listed"
COLLECTION = schema_of(CollectionEntry)
COLLECTION["properties"]["state"]["enum"] = ["ready", "incomplete", "deleting"]
_DOCUMENTS = list_of(schema_of(DocumentEntry), next_cursor=_PAGE)
_DOCUMENTS["properties"]["data"]["description"] = _LISTED
RESULTS = {
    "Result": schema_of(AskResult),
    "Search": schema_of(SearchResult),
    "Document": schema_of(Document),
    "Documents": _DOCUMENTS,
    "DocumentCounts": schema_of(DocumentCounts),
    "Removal": schema_of(Removal),
    "Collection": COLLECTION,
    "Collections": list_of(COLLECTION),
    "Created": object_of(
        {"name": STRING, "created": {**BOOLEAN, "description": "false: the collection already existed"}}
    ),
    "Write": schema_of(WriteResult),
    "Upload": list_of(
        schema_of(UploadedFile), stored={**INTEGER, "description": "number of files that were stored; at least 1"}
    ),
    "Update": schema_of(MetadataUpdate),
    "Pins": list_of(schema_of(Pin)),
    "Pin": schema_of(Pin),
    "Synonyms": schema_of(Synonyms),
    "FeedbackId": object_of({"id": STRING}),
    "FeedbackList": list_of(schema_of(FeedbackEntry)),
    "Unanswered": list_of(schema_of(UnansweredQuestion)),
    "Fields": list_of(schema_of(FieldEntry), complete={**BOOLEAN, "description": "false: the list is incomplete"}),
    "FieldValues": schema_of(FieldValues),
}
