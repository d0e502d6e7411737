"""Reads changelogs. Each version is a heading with its date, followed by its changes."""

from __future__ import annotations

import re

from .extracted import Extracted, TextBuilder
from .plain import read as read_plain

_DEBIAN = re.compile(r"([a-z0-9][a-z0-9+.-]+) \(([^()\s]+)\)[ \w-]*;.*")
_SIGNED = re.compile(r" -- (.+?)  ?(\w{3}, [ \d]\d \w{3} \d{4}).*")
_ITEM = re.compile(r"( {2,})([*+-]) +(.*)")
_VERSION = r"v?\d{1,4}\.\d{1,4}[\w.+~-]*"
_ENTRY = re.compile(
    rf"[ \t]{{0,4}}(?:[*#=-]++[ \t]*+)?(?:"
    rf"(?:[\w.+-]+[ \t]+){{0,2}}(?:(?:noteworthy |major )?changes (?:in|since|between|from)|new in)\b"
    rf".{{0,60}}\d.*"
    rf"|(?:[A-Za-z][\w.+-]*[ \t]+)?(?:version|release)[ \t]+{_VERSION}.{{0,60}}"
    rf"|(?:[A-Za-z][\w.+-]*[ \t,-]+)?{_VERSION}:?[ \t]*(?:[(\[,-].{{0,50}}|\d{{4}}-\d\d-\d\d.{{0,30}}|:)?"
    rf"|\d{{4}}-\d\d-\d\d[ \t]+\S.{{0,80}}"
    rf"|(?:RELEASE|Version)[ \t].{{0,20}}\d\S*.{{0,40}}"
    r")\Z",
    re.IGNORECASE,
)


def read(source: str) -> Extracted:
    """Return the text of a changelog.

    If the first line that is not blank has the form of a Debian entry, the changelog is read as a Debian changelog.
    Otherwise, it is read as plain text, in which each line that names a version (`is_entry`) is a heading.
    """
    first = next((line for line in source.split("\n") if line.strip()), "")
    return _debian(source) if _DEBIAN.match(first) else read_plain(source, is_entry)


def is_entry(line: str) -> bool:
    """Return whether a line is the heading of a version.

    >>> [is_entry(line) for line in ("version 1.34 - Ada, 2021-02-13", "* Changes in release 1.12", "1.5 times")]
    [True, True, False]
    """
    return _ENTRY.match(line.rstrip()) is not None and not line.rstrip().endswith((".", ";", ","))


def _debian(source: str) -> Extracted:
    builder = TextBuilder()
    lines = source.split("\n")
    dates: list[str] = []  # of the entries, the last entry first
    date = ""
    for line in reversed(lines):
        if signed := _SIGNED.match(line):
            date = signed[2].partition(", ")[2].strip()
        elif _DEBIAN.match(line):
            dates.append(date)
    item: list[str] = []
    at, depth, marker = 0, 0, True
    for number, line in enumerate([*lines, ""], 1):
        entry, found, signed = _DEBIAN.match(line), _ITEM.match(line), _SIGNED.match(line)
        if (entry or found or signed or not line.strip()) and item:
            text = " ".join(item)
            builder.item(text, at, "-", depth) if marker else builder.paragraph(text, at)
            item = []
        if entry:
            date = dates.pop()
            builder.heading(1, f"{entry[1]} {entry[2]}" + (f" ({date})" if date else ""), number)
            builder.title = builder.title or f"{entry[1]} changelog"
        elif found:
            item, at, marker = [found[3]], number, True
            depth = 0 if found[2] == "*" else 1
        elif signed:
            builder.paragraph(f"{signed[1]}, {signed[2]}", number)
        elif line.strip():
            if not item:
                at, marker = number, False
            item.append(line.strip())
    return builder.build()
