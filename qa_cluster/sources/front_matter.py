"""Reads the front matter of Markdown: YAML between lines of dashes, or TOML between lines of plus signs.

If the text between lines of dashes is not a mapping, the lines are thematic breaks.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from typing import Any

import orjson
import yaml

from .extracted import clean

MAX_FRONT_MATTER = 64 * 1024
# The limit of values, including the items of lists and the entries of mappings. Without this limit, a short text could
# have billions of values, because an alias in YAML repeats a value.
MAX_VALUES = 1000
MAX_DEPTH = 8
MAX_METADATA_BYTES = 8 * 1024
_YAML = re.compile(r"\A---[ \t]*\n(?=\S)(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TOML = re.compile(r"\A\+\+\+[ \t]*\n(.*?\n)\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL)


def split_front_matter(source: str) -> tuple[dict[str, Any], str]:
    """Return the values of the front matter as JSON values, and the source without the front matter.

    Blank lines replace the front matter, so the numbers of the other lines stay the same. `limited` says which values
    are left out. If there is no front matter, the values are empty and the source is unchanged.
    """
    head = source[:MAX_FRONT_MATTER]
    for pattern, load in ((_YAML, yaml.safe_load), (_TOML, tomllib.loads)):
        found = pattern.match(head)
        if found is None:
            continue
        try:
            values = load(found[1])
        except (yaml.YAMLError, tomllib.TOMLDecodeError, ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            return limited(values), "\n" * found[0].count("\n") + source[found.end() :]
    return {}, source


def limited(values: dict[Any, Any]) -> dict[str, Any]:
    """Return the values that have a JSON form, except keys that start with an underscore.

    While the values together exceed `MAX_METADATA_BYTES`, the largest value is left out.
    """
    left = [MAX_VALUES]
    found = {
        clean(str(key)): value
        for key, raw in values.items()
        if not str(key).startswith("_") and (value := _json_value(raw, left, 0)) is not None
    }
    sizes = {key: len(orjson.dumps(value)) for key, value in found.items()}
    while sum(sizes.values()) > MAX_METADATA_BYTES:
        largest = max(sizes, key=lambda key: sizes[key])
        del sizes[largest], found[largest]
    return found


def _json_value(value: Any, left: list[int], depth: int) -> Any:
    """Convert a value to a JSON value; None if it has no JSON form or is nested too deeply.

    `left` has one item: the number of values that are still allowed. If no more values are allowed, return None.
    `depth` is the number of lists and mappings around the value.
    """
    left[0] -= 1
    found: Any = None
    if left[0] < 0 or depth > MAX_DEPTH:
        pass
    elif isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) < 2**53):
        found = value
    elif isinstance(value, datetime.date | datetime.time):
        found = value.isoformat()
    elif isinstance(value, list | tuple):
        items = [_json_value(item, left, depth + 1) for item in value[:MAX_VALUES]]
        found = [item for item in items if item is not None]
    elif isinstance(value, dict):
        entries = {str(key): _json_value(item, left, depth + 1) for key, item in list(value.items())[:MAX_VALUES]}
        found = {key: item for key, item in entries.items() if item is not None}
    return found
