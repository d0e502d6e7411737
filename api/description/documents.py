"""The OpenAPI schemas of `GET /documents` and `GET /documents/count`."""

from __future__ import annotations

from typing import Any

_STRING, _INTEGER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))

_ENTRY = {
    "object": {"const": "qa.document"},
    "id": _STRING,
    "title": _STRING,
    "version": _STRING,
    "length": {**_INTEGER, "description": "code points of the text"},
    "sentences": _INTEGER,
    "tokenized": {**_BOOLEAN, "description": "whether questions are answered from this version; false: being replaced"},
}
DOCUMENTS: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data", "next_cursor"],
    "properties": {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": {"type": "object", "required": list(_ENTRY), "properties": _ENTRY},
            "description": "documents that questions are answered from; those that wait for a worker are left out",
        },
        "next_cursor": {"type": ["string", "null"], "description": "of the next page; null: there is none"},
    },
}
_REMOVED = {
    "deleted": _INTEGER,
    "complete": {
        **_BOOLEAN,
        "description": "false: some that were chosen are still there, because the time was up "
        "or they were written meanwhile; removing again goes on",
    },
}
REMOVAL: dict[str, Any] = {"type": "object", "required": list(_REMOVED), "properties": _REMOVED}
_NUMBERS = {
    "documents": {**_INTEGER, "description": "those that questions are answered from"},
    "sentences": _INTEGER,
    "waiting": {"type": ["integer", "null"], "description": "stored, but not ready yet; null: not asked for"},
}
COUNTS: dict[str, Any] = {"type": "object", "required": list(_NUMBERS), "properties": _NUMBERS}
