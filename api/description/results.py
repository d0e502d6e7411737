"""The OpenAPI schemas of results, from the types that the service sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from qa_cluster.types import (
    Answer,
    AskResult,
    CollectionEntry,
    Document,
    DocumentCounts,
    DocumentEntry,
    Hit,
    Index,
    Mention,
    Removal,
    SearchResult,
    Span,
    UploadedFile,
    WriteResult,
)

Schema = dict[str, Any]

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_SIMPLE = {str: STRING, int: INTEGER, float: NUMBER, bool: BOOLEAN}
_ORIGIN = {
    "section": "headings of the section, the outermost first",
    "source": "file of the document, and the line or page where the paragraph starts; null if unknown",
    "url": "web address of the document's page, from its metadata field url; empty if it has none",
}
_FAILURE = "why this version is not indexed and not tried again until it is written again; empty: it has not failed"
_DESCRIPTIONS: dict[type, dict[str, str]] = {
    Mention: _ORIGIN,
    Answer: {
        **_ORIGIN,
        "score": "probability that the answer is right; all scores and no_answer_score sum to 1",
        "logit": "score of the reader minus its score for no answer",
        "start": "offset of the first code point in the stored document",
        "end": "offset after the last code point",
        "context": "the sentence with the answer",
        "shard": "the shard that read it",
        "also_in": "other sentences with the same answer, best first",
    },
    AskResult: {"no_answer_score": "probability that no answer is right"},
    Index: {
        "partial": "whether shards were down, so that their documents were not searched",
        "missing": "addresses of the shards that were down",
    },
    Hit: {
        **_ORIGIN,
        "score": "BM25 over the whole collection, with weights for edges; comparable only within one result",
        "text": "the sentence",
        "start": "offset of its first code point in the stored document",
        "end": "offset after its last code point",
        "passage": "the sentence with its neighbours; null if the field context is 0",
    },
    SearchResult: {
        "terms": "terms of the query that the ranking uses",
        "sentences": "number of ranked sentences",
    },
    DocumentEntry: {
        "length": "number of code points of the text",
        "tokenized": "whether this version is indexed and answers questions; false: a new version is pending",
        "failure": _FAILURE,
    },
    Document: {"failure": _FAILURE},
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
        "remarks": "what was guessed, replaced or left out",
        "error": "why the file was not stored; empty: it was stored",
        "code": "code of the error, for programs",
    },
    Removal: {
        "complete": "false: some matching documents were not deleted, because the time was over or they were written"
        " meanwhile; repeat the request to continue",
    },
}
# The fields of the JSON form that the type does not have.
_MORE: dict[type, dict[str, Schema]] = {
    AskResult: {"object": {"const": "qa.result"}},
    SearchResult: {"object": {"const": "qa.search"}},
    DocumentEntry: {"object": {"const": "qa.document"}},
    CollectionEntry: {"object": {"const": "qa.collection"}},
}
_LEFT_OUT = {WriteResult: {"source_before"}}


def object_of(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    """The schema of an object; all its properties are required unless `required` names some."""
    return {"type": "object", "required": list(properties if required is None else required), "properties": properties}


def list_of(items: Schema, **more: Schema) -> Schema:
    """The schema of a list that is sent as an object."""
    return object_of({"object": {"const": "list"}, "data": {"type": "array", "items": items}, **more})


def schema_of(kind: Any) -> Schema:
    """The schema of the JSON form of a type."""
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if is_dataclass(kind):
        return _fields_of(kind)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if isinstance(kind, UnionType):
        schema = schema_of(get_args(kind)[0])
        return {**schema, "type": [schema["type"], "null"]}
    return {"type": "object"}


def _fields_of(kind: Any) -> Schema:
    texts, types = _DESCRIPTIONS.get(kind, {}), get_type_hints(kind)
    properties = dict(_MORE.get(kind, {}))
    for name in [each.name for each in fields(kind) if each.name not in _LEFT_OUT.get(kind, ())]:
        properties[name] = schema_of(types[name]) | ({"description": texts[name]} if name in texts else {})
    if kind is Answer:
        properties["highlights"] = {"type": "array", "items": schema_of(Span)}
    return object_of(properties)


_PAGE = {"type": ["string", "null"], "description": "cursor of the next page; null: this is the last"}
_LISTED = "indexed documents, or failed ones; pending documents, which are not indexed yet, are not listed"
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
}
