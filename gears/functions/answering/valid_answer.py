"""Whether a cached answer of a sentence may be given."""

from __future__ import annotations

from typing import Any

import orjson

# An answer that an older version of these functions kept lacks some; a client may have written anything.
_NEEDED = frozenset(
    {"answer", "score", "start", "end", "spans", "sentence", "sentence_start", "windows", "truncated", "model"}
)


def valid_answer(value: str | bytes | bytearray, version: str, revision: str) -> dict[str, Any] | None:
    """A cached answer, if it is whole and belongs to this version of its document and this revision of the reader.

    `revision` is the reading revision of the manifest: read in another way by the same weights, it is another answer.
    """
    try:
        answer: dict[str, Any] = orjson.loads(value)
        valid = answer["document_version"] == version and answer["reading_revision"] == revision
        return answer if valid and answer.keys() >= _NEEDED else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None


def is_valid(value: str | bytes | bytearray, version: str, revision: str) -> bool:
    """Whether `valid_answer` gives it."""
    return valid_answer(value, version, revision) is not None
