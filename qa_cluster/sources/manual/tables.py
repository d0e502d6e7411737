"""Reads the tables of tbl(1) in a manual page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..extracted import TextBuilder
from .blocks import Blocks, joined
from .lines import Line, unescaped

_TAB = re.compile(r"tab\s*\(\s*(.)\s*\)")
_RULE = re.compile(r"[_=\s]+\Z|\\\^")
_ALTERNATING = ("BR", "BI", "IB", "IR", "RB", "RI")


def outside_tables(lines: Iterable[Line], blocks: Blocks, builder: TextBuilder) -> Iterator[Line]:
    """Yield the lines outside tables, and write the tables.

    A table is written at its ``.TE``, at the next table, or at the end of the page.
    """
    table: list[Line] | None = None
    for line in lines:
        if line.macro == "TS":
            blocks.flush()
            _read_table(table or (), builder)
            table = []
        elif line.macro == "TE" and table is not None:
            _read_table(table, builder)
            table = None
        elif table is not None:
            table.append(line)
        else:
            yield line
    _read_table(table or (), builder)


def _read_table(lines: Sequence[Line], builder: TextBuilder) -> None:
    """Write a table. `lines` are the lines between ``.TS`` and ``.TE``."""
    if not lines:
        return
    at, tab, formats, start = lines[0].number, "\t", "", 0
    for start, line in enumerate(lines):
        text = line.text
        if start == 0 and text.rstrip().endswith(";"):
            found = _TAB.search(text)
            tab = found[1] if found else tab
            continue
        formats += text + "\n"
        if text.rstrip().endswith("."):
            break
    rows, has_rule = _rows(lines[start + 1 :], tab)
    bold = "b" in formats.split("\n")[0].lower().replace("tab", "")
    single_column = all(len(row) < 2 for row in rows)
    builder.table(rows, (has_rule or bold) and not single_column and len(rows) > 1, at)


def _rows(lines: Sequence[Line], tab: str) -> tuple[list[list[str]], bool]:
    rows: list[list[str]] = []
    block: list[str] | None = None
    has_rule = in_format = False
    for line in lines:
        if line.macro == "T&":
            in_format = True
            continue
        if in_format:
            in_format = not line.text.rstrip().endswith(".")
            continue
        text = _text(line)
        if block is not None:
            if not text.startswith("T}"):
                block.append(text)
                continue
            rows[-1][-1] = joined(block)
            block, text = None, text[2:]
            cells = text.split(tab)[1:]
            rows[-1] += cells
        elif not text.strip() or (_RULE.match(text) and not line.macro):
            has_rule = has_rule or (len(rows) == 1 and bool(text.strip()))
            continue
        else:
            rows.append(text.split(tab))
        if rows[-1] and rows[-1][-1].strip() == "T{":
            block = []
    if block:
        rows[-1][-1] = joined(block)
    return rows, has_rule


def _text(line: Line) -> str:
    if not line.macro:
        return unescaped(line.text)
    words = [unescaped(word) for word in line.arguments]
    return ("" if line.macro in _ALTERNATING else " ").join(words) if line.macro[:1].isupper() else ""
