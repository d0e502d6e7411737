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
        "partial": {**_BOOLEAN, "description": "whether shards were down, so that their documents had no part in this"},
        "missing": {"type": "array", "items": _STRING, "description": "the addresses of these shards"},
    }
)
SECTION = {"type": "array", "items": _STRING, "description": "the headings above, the outermost first"}
SOURCE = {
    **_object({"file": _STRING, "line": {"type": ["integer", "null"]}, "page": {"type": ["integer", "null"]}}),
    "type": ["object", "null"],
    "description": "the file of the document, and the line or page where the paragraph begins; null if not known",
}
_HIT = _object(
    {
        "rank": _INTEGER,
        "score": {**_NUMBER, "description": "BM25 with edges, over the whole corpus: comparable within one result"},
        "document_id": _STRING,
        "document_version": _STRING,
        "passage_id": _STRING,
        "title": _STRING,
        "text": {**_STRING, "description": "the sentence"},
        "start": {**_INTEGER, "description": "its first code point in the stored document"},
        "end": {**_INTEGER, "description": "code point after its last"},
        "highlights": {"type": "array", "items": _object({"start": _INTEGER, "end": _INTEGER, "kind": _STRING})},
        "passage": {
            **_object({"text": _STRING, "start": _INTEGER, "end": _INTEGER}),
            "type": ["object", "null"],
            "description": "the sentence with its neighbours; null unless context asks for them",
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
        "terms": {"type": "array", "items": _STRING, "description": "what sentences are compared with"},
        "hits": {"type": "array", "items": _HIT},
        "sentences": {**_INTEGER, "description": "how many were ranked"},
        "index": INDEX,
        "timings_ms": _object({"rank": _NUMBER, "fetch": _NUMBER, "total": _NUMBER}),
    }
)
