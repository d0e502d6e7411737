"""The OpenAPI schemas of `/collections` and `/collections/{name}`."""

from __future__ import annotations

from typing import Any

from qa_cluster.keys import COLLECTION_PATTERN, MAX_COLLECTION_CHARS

_STRING, _INTEGER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))

_ENTRY = {
    "object": {"const": "qa.collection"},
    "name": _STRING,
    "state": {
        **_STRING,
        "enum": ["ready", "incomplete", "deleting"],
        "description": "incomplete: create the collection again; deleting: if the deletion was interrupted, delete it"
        " again",
    },
    "documents": {**_INTEGER, "description": "number of indexed documents"},
    "sentences": _INTEGER,
}
COLLECTION: dict[str, Any] = {"type": "object", "required": list(_ENTRY), "properties": _ENTRY}
COLLECTIONS: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": COLLECTION}},
}
_CREATED = {"name": _STRING, "created": {**_BOOLEAN, "description": "false: the collection already existed"}}
CREATED: dict[str, Any] = {"type": "object", "required": list(_CREATED), "properties": _CREATED}
NAME: dict[str, Any] = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {**_STRING, "minLength": 1, "maxLength": MAX_COLLECTION_CHARS, "pattern": COLLECTION_PATTERN},
}
