"""Checks metadata, so that every JSON parser reads the same values.

Parsers refuse deep nesting, each at its own depth. They convert an integer that does not fit into 64 bits to a float.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput

MAX_METADATA_BYTES = 64 * 1024
MAX_DEPTH = 32
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1

# A text without 19 digits in a row contains no integer beyond 64 bits.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def may_hold_long_number(text: bytes) -> bool:
    """Return whether JSON may contain an integer beyond 64 bits, which a fast parser would convert to a float."""
    return _LONG_NUMBER.search(text) is not None


def check_integer(digits: str) -> int:
    """Parse an integer, as a hook for JSON parsers; ValueError if it does not fit into 64 bits."""
    # Python refuses to parse integers with thousands of digits.
    value = int(digits) if len(digits) <= 20 else MAX_INTEGER + 1
    if (fault := _of_integer(value, digits)) is not None:
        raise ValueError(fault)
    return value


def parse_metadata(text: str | bytes) -> dict[str, Any]:
    """Return the metadata of a stored document; ValueError if it is not a JSON object with finite numbers."""
    value = orjson.loads(text or b"{}")
    if not isinstance(value, dict):
        raise ValueError(f"metadata must be a JSON object, got {type(value).__name__}")
    return value


def readable_metadata(text: str | bytes) -> dict[str, Any]:
    """Return the metadata of a stored document; empty if it cannot be read.

    Administrators and earlier versions may have written any value into the record. One such document must not make a
    request for many documents fail.
    """
    try:
        return parse_metadata(text)
    except ValueError:
        return {}


def fault_of(value: Any, depth: int = 1) -> str | None:
    """Return why metadata must be refused: it is nested too deeply, or has an integer beyond 64 bits; otherwise None.

    The reason is the end of a sentence that starts with the name of the metadata. Values that are not JSON are not
    found here; `canonical_metadata` refuses them. `depth` is the number of objects and arrays around `value`, plus 1.

    >>> fault_of({"a": [1]}), fault_of({"a": 2**64})
    (None, 'has the number 18446744073709551616, the limit is 64 bits: write it as text')
    """
    if isinstance(value, int):
        return _of_integer(value)
    if not isinstance(value, Mapping | list | tuple):
        return None
    if depth > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep, the limit: flatten it"
    for item in value.values() if isinstance(value, Mapping) else value:
        fault = fault_of(item, depth + 1)
        if fault is not None:
            return fault
    return None


def canonical_metadata(metadata: object, what: str) -> str:
    """Return metadata as JSON that is the same for equal metadata; InvalidInput or InputTooLong if it is invalid.

    `what` says in the errors which metadata is invalid, such as ``of document 'a'``.
    """
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata {what} must be an object, got {type(metadata).__name__}", place="metadata")
    if (fault := fault_of(metadata)) is not None:
        raise InvalidInput(f"metadata {what} {fault}", place="metadata")
    try:
        text = json.dumps(dict(metadata), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"metadata {what} is not JSON: {error}", place="metadata") from error
    if size > MAX_METADATA_BYTES:
        raise InputTooLong(f"metadata {what} has {size} bytes as JSON, the limit is {MAX_METADATA_BYTES}")
    return text


def _of_integer(value: int, digits: str = "") -> str | None:
    if MIN_INTEGER <= value <= MAX_INTEGER:
        return None
    shown = digits or (str(value) if abs(value) < 10**40 else f"of {value.bit_length()} bits")
    shown = shown if len(shown) <= 40 else f"{shown[:20]}.. of {len(shown)} digits"
    return f"has the number {shown}, the limit is 64 bits: write it as text"
