"""The OpenAPI schemas of `GET /documents` and `GET /documents/count`."""

from __future__ import annotations

from typing import Any

_STRING, _INTEGER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))

_ENTRY = {
    "object": {"const": "qa.document"},
    "id": _STRING,
    "title": _STRING,
    "version": _STRING,
    "length": {**_INTEGER, "description": "number of code points of the text"},
    "sentences": _INTEGER,
    "tokenized": {
        **_BOOLEAN,
        "description": "whether this version is indexed and answers questions; false: a new version is pending",
    },
}
DOCUMENTS: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data", "next_cursor"],
    "properties": {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": {"type": "object", "required": list(_ENTRY), "properties": _ENTRY},
            "description": "indexed documents; pending documents, which are not indexed yet, are not listed",
        },
        "next_cursor": {"type": ["string", "null"], "description": "cursor of the next page; null: this is the last"},
    },
}
_REMOVED = {
    "deleted": _INTEGER,
    "complete": {
        **_BOOLEAN,
        "description": "false: some matching documents were not deleted, because the time was over or they were"
        " written meanwhile; repeat the request to continue",
    },
}
REMOVAL: dict[str, Any] = {"type": "object", "required": list(_REMOVED), "properties": _REMOVED}
_NUMBERS = {
    "documents": {**_INTEGER, "description": "number of indexed documents"},
    "sentences": _INTEGER,
    "waiting": {
        "type": ["integer", "null"],
        "description": "number of pending documents, which are stored but not indexed yet; null: not requested",
    },
}
COUNTS: dict[str, Any] = {"type": "object", "required": list(_NUMBERS), "properties": _NUMBERS}
