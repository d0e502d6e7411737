"""The limits of tool results, and the pure functions that shorten a text or a result to these limits.

A language model reads each result, so every result must be small. A shortened quote or passage is still an exact part
of the document, and its offsets are adjusted. Other shortened texts end with an ellipsis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

MAX_TOP_K = 10
DEFAULT_ASK_TOP_K = 3
DEFAULT_SEARCH_TOP_K = 5
# The number of sentences that are ranked for each requested document. One document may have several of the best
# sentences.
SENTENCES_PER_DOCUMENT = 4
MAX_QUOTES = 3
MAX_FILTERS = 20
MAX_FILTER_CHARS = 1000

MAX_QUOTE_CHARS = 500
MAX_PASSAGE_CHARS = 1000
MAX_TITLE_CHARS = 200
MAX_URL_CHARS = 1000
MAX_SECTION_CHARS = 200
MAX_METADATA_CHARS = 2000
MAX_COLLECTIONS = 100
MAX_ID_BYTES = 512

DEFAULT_FETCH_CHARS = 8000
MAX_FETCH_CHARS = 20_000
MAX_RESOURCE_CHARS = 100_000
# The maximum length of an `ask` or `search` result as JSON. The limits of single texts, such as `MAX_QUOTE_CHARS`,
# count characters before JSON escapes them.
MAX_RESULT_CHARS = 24_000
MAX_ERROR_CHARS = 1000

CUT = "…"


def shortened(text: str, limit: int) -> str:
    """Return the text, or its start with an ellipsis if the text is longer than `limit`.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + CUT


def around(text: str, start: int, end: int, limit: int) -> tuple[int, int]:
    """Return the bounds of a part of `text` around ``text[start:end]``, with at most `limit` characters.

    If ``text[start:end]`` itself has more than `limit` characters, return the bounds of its first `limit` characters.
    >>> around("0123456789", 5, 6, 4)
    (4, 8)
    """
    if len(text) <= limit:
        return 0, len(text)
    if end - start >= limit:
        return start, start + limit
    low = max(0, min(start - (limit - (end - start)) // 2, len(text) - limit))
    return low, low + limit


def metadata_within(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the metadata fields that fit into `MAX_METADATA_CHARS` characters as JSON, and the number of other fields.

    The fields are tried in their order. A field that is too long for the rest of the limit is left out.
    """
    kept: dict[str, Any] = {}
    left = MAX_METADATA_CHARS
    for name, value in metadata.items():
        size = len(orjson.dumps({name: value}).decode())
        if size <= left:
            kept[name] = value
            left -= size
    return kept, len(metadata) - len(kept)


def as_text(result: Mapping[str, Any]) -> str:
    """Return a result as compact JSON."""
    return orjson.dumps(result).decode()


def joined(first: str | None, second: str) -> str:
    """Return one note with both texts; the second text if the first is missing."""
    return f"{first}; {second}" if first else second


def within(result: dict[str, Any], items: str) -> dict[str, Any]:
    """Shorten a result to `MAX_RESULT_CHARS` as JSON: omit the last entries of a list, and say so in the note.

    `items` is the name of the result's field with the list. The first entry always remains, even if it is too long. A
    result that is short enough is returned unchanged.
    """
    omitted, note = 0, result.get("note")
    while len(as_text(result)) > MAX_RESULT_CHARS and len(result[items]) > 1:
        omitted += 1
        left_out = f"{omitted} more {items} are left out because the text is too long: lower top_k or be more precise"
        result = {**result, items: result[items][:-1], "note": joined(note, left_out)}
    return result
