"""The source map of a document: the headings of its text, and the lines or pages of its file.

The map is in the document's metadata under ``_source``:

    {"file": "gzip.1.gz", "format": "roff", "extractor": 3, "sections": [[0, 0, "NAME"], [46, 0, "OPTIONS"],
     [12, 1, "-f"]], "unit": "line", "places": "<base64>"}

Starts are counted in code points of the text. The fields are delta-encoded:

- An entry of `sections` has three parts: the distance from the previous start, the number of headings that it shares
  with the previous path, and its other headings. At an entry whose path has no headings, all sections end.
- `places` are pairs of numbers for paragraphs: the distance from the start of the previous paragraph, and the
  difference from its line or page. Each number is a varint: seven bits a byte, the lowest bits first. The second number
  has a sign: n is stored as 2 n, and -n as 2 n - 1.

Any client may store such metadata. A source map that cannot be read is ignored. A source map that is too large is
reduced: if `sections` is too large, the deepest headings are removed; if `places` is too large, every second pair is
removed. Both steps are repeated until the field is small enough.
"""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.types import Source

FIELD = "_source"
# The metadata field with the web address of the document's page.
URL = "url"
MAX_SECTIONS_BYTES = 28 * 1024
MAX_PLACES_BYTES = 20 * 1024
MAX_DEPTH = 12
UNITS = ("line", "page")


@dataclass(frozen=True, slots=True)
class SourceMap:
    """The positions of the parts of a document's text in its file.

    Attributes:
        file: the name of the file; empty if it is unknown.
        starts, paths: the start of each section, ascending, and its headings, the outermost first.
        unit: ``line`` or ``page``; empty if no lines or pages are known.
        place_starts, numbers: the start of each paragraph, ascending, and its line or page, counted from 1.
    """

    file: str = ""
    format: str = ""
    starts: tuple[int, ...] = ()
    paths: tuple[tuple[str, ...], ...] = ()
    unit: str = ""
    place_starts: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    def section_at(self, start: int) -> tuple[str, ...]:
        """Return the headings above an offset in the text, the outermost first; empty if no heading is above it."""
        found = bisect_right(self.starts, start)
        return self.paths[found - 1] if found else ()

    def number_at(self, start: int) -> int | None:
        """Return the line or page where the paragraph at an offset in the text starts; None if it is unknown."""
        found = bisect_right(self.place_starts, start)
        return self.numbers[found - 1] if found else None

    def source_at(self, start: int) -> Source | None:
        """Return the file, and the line or page where the paragraph at an offset in the text starts.

        None if the file is unknown.
        """
        if not self.file:
            return None
        number = self.number_at(start)
        return Source(self.file, number if self.unit == "line" else None, number if self.unit == "page" else None)


NO_MAP = SourceMap()


def write_map(
    file: str,
    format: str,
    extractor: int,
    sections: Sequence[tuple[int, Sequence[str]]],
    *,
    unit: str = "",
    places: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Return a source map as the value of the metadata field `FIELD`.

    Args:
        file: the name of the file.
        format: the format of the file.
        extractor: the version of the extractor that made the text.
        sections: the start of each section, ascending, with its headings, the outermost first.
        unit: ``line`` or ``page``; with any other value, `places` are left out.
        places: the start of each paragraph, ascending, with its line or page.

    >>> write_map("a.rst", "rst", 1, [(0, ["Top"]), (9, ["Top", "Below"])])["sections"]
    [[0, 0, 'Top'], [9, 1, 'Below']]
    """
    value: dict[str, Any] = {"file": file, "format": format, "extractor": extractor}
    if sections:
        value["sections"] = _packed_sections(sections)
    if places and unit in UNITS:
        value |= {"unit": unit, "places": _packed_places(places)}
    return value


def _packed_sections(sections: Sequence[tuple[int, Sequence[str]]]) -> list[list[Any]]:
    for depth in range(MAX_DEPTH, -1, -1):
        packed = list(_differences(sections, depth))
        if len(json.dumps(packed, ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_SECTIONS_BYTES:
            return packed
    return []


def _differences(sections: Sequence[tuple[int, Sequence[str]]], depth: int) -> Iterator[list[Any]]:
    last = 0
    before: tuple[str, ...] = ()
    for start, headings in sections:
        path = tuple(headings[:depth])
        if path == before:
            continue
        kept = next(
            (at for at, (a, b) in enumerate(zip(path, before, strict=False)) if a != b), min(len(path), len(before))
        )
        yield [start - last, kept, *path[kept:]]
        last, before = start, path


def _packed_places(places: Sequence[tuple[int, int]]) -> str:
    while True:
        data = bytearray()
        last = (0, 0)
        for start, number in places:
            _append(data, start - last[0])
            _append(data, _signed(number - last[1]))
            last = (start, number)
        packed = base64.b64encode(data).decode("ascii")
        if len(packed) <= MAX_PLACES_BYTES:
            return packed
        places = places[::2]


def _signed(number: int) -> int:
    return number * 2 if number >= 0 else -number * 2 - 1


def _append(data: bytearray, number: int) -> None:
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def read_map(metadata: Mapping[str, Any]) -> SourceMap:
    """Return the source map in a document's metadata; `NO_MAP` if it is missing or cannot be read."""
    value = metadata.get(FIELD)
    if not isinstance(value, Mapping):
        return NO_MAP
    try:
        starts, paths = _sections(value.get("sections") or ())
        unit = value.get("unit", "")
        place_starts, numbers = _places(value.get("places") or "") if unit in UNITS else ((), ())
        file, format = value.get("file", ""), value.get("format", "")
        if not isinstance(file, str) or not isinstance(format, str):
            return NO_MAP
        return SourceMap(file, format, starts, paths, unit if place_starts else "", place_starts, numbers)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, binascii.Error):
        return NO_MAP


def _sections(packed: Any) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    starts: list[int] = []
    paths: list[tuple[str, ...]] = []
    at, path = 0, tuple[str, ...]()
    for distance, kept, *headings in packed:
        if not (isinstance(distance, int) and isinstance(kept, int) and distance >= 0 and 0 <= kept <= len(path)):
            raise ValueError(f"not a section: {distance!r}, {kept!r}")
        if not all(isinstance(heading, str) for heading in headings):
            raise ValueError("a heading is not text")
        at, path = at + distance, (*path[:kept], *headings)[:MAX_DEPTH]
        starts.append(at)
        paths.append(path)
    return tuple(starts), tuple(paths)


def _places(packed: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    numbers = list(_unpacked(base64.b64decode(packed, validate=True)))
    starts: list[int] = []
    found: list[int] = []
    at = number = 0
    for distance, signed in zip(numbers[::2], numbers[1::2], strict=True):
        at += distance
        number += -(signed + 1) // 2 if signed & 1 else signed // 2
        starts.append(at)
        found.append(number)
    return tuple(starts), tuple(found)


def _unpacked(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
        elif shift > 28:
            raise ValueError("a number of more than 28 bits")


def url_of(metadata: Mapping[str, Any]) -> str:
    """Return the address of a document's page, from its metadata field `url`; empty if the field is not a web address.

    >>> url_of({"url": "https://docs.example.org/a.html"}), url_of({"url": "javascript:alert(1)"}), url_of({})
    ('https://docs.example.org/a.html', '', '')
    """
    value = metadata.get(URL)
    return value if isinstance(value, str) and value.lower().startswith(("http://", "https://")) else ""


def shown_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata as answers show them: without the source map.

    Answers have the fields `section` and `source` instead.
    """
    if FIELD not in metadata:
        return metadata
    return {name: value for name, value in metadata.items() if name != FIELD}


def filter_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata as filters use them: only the file name and the format of the source map remain."""
    value = metadata.get(FIELD)
    if not isinstance(value, Mapping):
        return metadata
    return {**metadata, FIELD: {name: value[name] for name in ("file", "format") if name in value}}
