"""Reads API keys that another program created, such as a secret store, from a sequence of JSON objects.

    {"key": "qac_0123456789ab_..", "name": "the shop", "scopes": ["ask"], "limits": {"requests_per_second": 20}}

``qa-cluster keys create --json`` prints such objects. This module reads the fields of the example, and the fields
``collections`` and ``expires``. The other fields that the command prints are ignored. An error names the line where
the object starts and never repeats a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from qa_cluster.errors import InvalidInput

from .records import ApiKey, KeyLimits, record_of

MAX_BYTES = 4 << 20
_SOMETHING = re.compile(r"\S")
_NEEDED = {"key", "name", "scopes"}
_ADMITTED = _NEEDED | {"collections", "limits", "expires"}
# The other fields that `keys create --json` prints. They are ignored, because the cluster sets their values.
_PRINTED = {"id", "created", "revoked"}


def given_keys(text: bytes, now: float) -> list[ApiKey]:
    """Return the records of the keys in the order of `text`; InvalidInput names the line of an invalid key.

    `now` is the time of creation in the records, in seconds since 1970.

    >>> given_keys(b'{"key": "qac_0123456789ab_' + b"s" * 43 + b'", "name": "the shop", "scopes": ["ask"]}', 0)[0].name
    'the shop'
    """
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"keys must have {MAX_BYTES} bytes at most, got more")
    found: dict[str, int] = {}
    keys = []
    for number, value in _objects(text):
        try:
            key = _given(value, now)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from error
        if key.id in found:
            raise InvalidInput(f"line {number}: key {key.id} is already in line {found[key.id]}")
        found[key.id] = number
        keys.append(key)
    if not keys:
        raise InvalidInput("no key found: give JSON objects, as `qa-cluster keys create --json` prints them")
    return keys


def _objects(text: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the objects, each with the number of the line where it starts."""
    try:
        rest = text.decode()
    except UnicodeDecodeError:
        raise InvalidInput("keys must be UTF-8 text") from None
    decoder, at = json.JSONDecoder(), 0
    while (found := _SOMETHING.search(rest, at)) is not None:
        number = rest.count("\n", 0, found.start()) + 1
        try:
            value, at = decoder.raw_decode(rest, found.start())
        except (ValueError, RecursionError):
            raise InvalidInput(f"line {number}: not JSON") from None
        yield number, value


def _given(value: Any, now: float) -> ApiKey:
    if not isinstance(value, dict):
        raise InvalidInput("must be a JSON object")
    if missing := _NEEDED - value.keys():
        raise InvalidInput(f"{', '.join(sorted(missing))} is missing")
    if unknown := value.keys() - _ADMITTED - _PRINTED:
        names = ", ".join(repr(name)[:50] for name in sorted(unknown))
        raise InvalidInput(f"{names}: unknown, known are {', '.join(sorted(_ADMITTED))}")
    scopes, collections = value["scopes"], value.get("collections") or []
    if not isinstance(scopes, list) or not isinstance(collections, list):
        raise InvalidInput("scopes and collections must be lists")
    limits = value.get("limits") or {}
    try:
        limited = KeyLimits(**limits)
    except TypeError as error:
        names = ", ".join(KeyLimits.__dataclass_fields__)
        raise InvalidInput(f"limits must be a JSON object with any of {names}") from error
    return record_of(
        value["key"],
        value["name"],
        scopes,
        collections=collections,
        limits=limited,
        expires=value.get("expires"),
        now=now,
    )
