"""Whether a cached answer of a sentence may be given."""

from __future__ import annotations

from typing import Any

import orjson


def valid_answer(value: str | bytes | bytearray, version: str, revision: str) -> dict[str, Any] | None:
    """A cached answer, if it belongs to this version of its document and this revision of the reader."""
    try:
        answer: dict[str, Any] = orjson.loads(value)
        valid = answer["document_version"] == version and answer["model"]["revision"] == revision
    except (orjson.JSONDecodeError, KeyError, TypeError):  # a client wrote it
        return None
    return answer if valid else None


def is_valid(value: str | bytes | bytearray, version: str, revision: str) -> bool:
    """Whether a cached answer belongs to this version of its document and this revision of the reader."""
    return valid_answer(value, version, revision) is not None
