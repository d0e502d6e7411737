"""The OpenAPI schema of the result of `/search`."""

from __future__ import annotations

from typing import Any


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_STRING, _INTEGER, _NUMBER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
INDEX = _object(
    {
        "version": _STRING,
        "shards_total": _INTEGER,
        "shards_answered": _INTEGER,
        "partial": {**_BOOLEAN, "description": "whether shards were down, so that their documents were not searched"},
        "missing": {"type": "array", "items": _STRING, "description": "addresses of the shards that were down"},
    }
)
SECTION = {"type": "array", "items": _STRING, "description": "headings of the section, the outermost first"}
SOURCE = {
    **_object({"file": _STRING, "line": {"type": ["integer", "null"]}, "page": {"type": ["integer", "null"]}}),
    "type": ["object", "null"],
    "description": "file of the document, and the line or page where the paragraph starts; null if unknown",
}
_HIT = _object(
    {
        "rank": _INTEGER,
        "score": {
            **_NUMBER,
            "description": "BM25 over the whole collection, with weights for edges; comparable only within one result",
        },
        "document_id": _STRING,
        "document_version": _STRING,
        "passage_id": _STRING,
        "title": _STRING,
        "text": {**_STRING, "description": "the sentence"},
        "start": {**_INTEGER, "description": "offset of its first code point in the stored document"},
        "end": {**_INTEGER, "description": "offset after its last code point"},
        "highlights": {"type": "array", "items": _object({"start": _INTEGER, "end": _INTEGER, "kind": _STRING})},
        "passage": {
            **_object({"text": _STRING, "start": _INTEGER, "end": _INTEGER}),
            "type": ["object", "null"],
            "description": "the sentence with its neighbours; null if the field context is 0",
        },
        "metadata": {"type": "object"},
        "section": SECTION,
        "source": SOURCE,
    }
)
RESULT = _object(
    {
        "id": _STRING,
        "object": {"const": "qa.search"},
        "created": _INTEGER,
        "query": _STRING,
        "terms": {"type": "array", "items": _STRING, "description": "terms of the query that the ranking uses"},
        "hits": {"type": "array", "items": _HIT},
        "sentences": {**_INTEGER, "description": "number of ranked sentences"},
        "index": INDEX,
        "timings_ms": _object({"rank": _NUMBER, "fetch": _NUMBER, "total": _NUMBER}),
    }
)
