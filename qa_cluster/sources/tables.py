"""Lays out the cells of a table on a grid, so that each cell is named by the headers of its columns.

A cell belongs to all columns and rows that it spans. It is written once in a row, and in each row that it spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

# Spans of a table with more slots than this count as 1: a few short tags could claim billions.
MAX_SLOTS = 200_000
MAX_COLUMNS_SPANNED = 1000
# A longer cell is written only in the first of its rows.
MAX_REPEATED = 200


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row, and for each the header of its first column; empty: no header, or the previous cell's."""

    cells: list[str]
    headers: list[str]
    first: Any


@dataclass(slots=True)
class _Grid:
    """Where each cell of a row is; `held` has the cells of earlier rows that span further rows, by column."""

    left: int = MAX_SLOTS
    held: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def lay_out(self, cells: list[Any]) -> list[tuple[int, Any]]:
        """The columns of a row with their cells, also those that began in an earlier row."""
        slots: list[tuple[int, Any]] = []
        held, self.held = self.held, {}
        waiting, column = iter(cells), 0
        cell = next(waiting, None)
        while held or cell is not None:
            if column in held:
                rows, above = held.pop(column)
                self._put(slots, column, above, rows - 1)
                column += 1
            elif cell is not None:
                for _ in range(_span(cell, "colspan", MAX_COLUMNS_SPANNED) if self.left > 0 else 1):
                    if column in held:
                        break
                    self._put(slots, column, cell, _span(cell, "rowspan", MAX_SLOTS) - 1)
                    column += 1
                cell = next(waiting, None)
            else:
                column = min(held)
        return slots

    def _put(self, slots: list[tuple[int, Any]], column: int, cell: Any, rows_left: int) -> None:
        slots.append((column, cell))
        self.left -= 1
        if rows_left > 0 and self.left > 0:
            self.held[column] = (rows_left, cell)


def table_rows(rows: list[list[Any]], text_of: Callable[[Any], str]) -> Iterator[TableRow]:
    """Yield the rows below the header rows.

    Header rows are the first rows that have only cells of headers (``th``). The header of a column joins their texts.
    """
    grid, headers, above = _Grid(), dict[int, list[Any]](), len(rows) > 1
    names: dict[int, str] = {}
    for number, cells in enumerate(rows):
        slots = grid.lay_out(cells)
        above = above and number < len(rows) - 1 and bool(cells) and all(cell.tag == "th" for cell in cells)
        if above:
            for column, cell in slots:
                above_it = headers.setdefault(column, [])
                if (
                    not above_it or above_it[-1] is not cell
                ):  # a header that spans rows is in rows that follow each other
                    above_it.append(cell)
            continue
        if headers:
            names = {column: " ".join(map(text_of, found)) for column, found in headers.items()}
            headers = {}
        yield _row(slots, cells, names, text_of)


def _row(
    slots: list[tuple[int, Any]], own: list[Any], names: dict[int, str], text_of: Callable[[Any], str]
) -> TableRow:
    texts: list[str] = []
    headers: list[str] = []
    previous, begun_here = "", set(own)
    for cell, group in groupby(slots, key=lambda slot: slot[1]):
        columns = [column for column, _ in group]
        text = text_of(cell)
        if cell not in begun_here and len(text) > MAX_REPEATED:
            text = ""
        name = names.get(columns[0], "")
        texts.append(text)
        headers.append("" if name == previous else name)
        previous = name
    return TableRow(texts, headers, own[0] if own else None)


def _span(cell: Any, name: str, most: int) -> int:
    written = cell.get(name) or "1"
    return min(int(written), most) if written.isascii() and written.isdecimal() and len(written) < 7 else 1
