"""Arranges the cells of a table in a grid, so that each cell gets the headers of its columns.

A cell belongs to all columns and rows that it spans. Its text is written once in each row that it spans, but a long
text (`MAX_REPEATED`) only in the first of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

# A slot is a place in the grid: one column of one row. If the cells of a table fill more slots than this limit, all
# later cells span only one slot. A few short tags could otherwise claim billions of slots.
MAX_SLOTS = 200_000
MAX_COLUMNS_SPANNED = 1000
# A cell with more characters is written only in the first row that it spans.
MAX_REPEATED = 200
# The limit of header characters that are repeated in the rows of one table.
MAX_REPEATED_HEADERS = 1_000_000


@dataclass(frozen=True, slots=True)
class TableRow:
    """The texts of the cells of a row, and the header of each cell's first column.

    A header is empty if the column has no header, or if the previous cell has the same header.

    Attributes:
        first: the element of the first cell that starts in this row; None if no cell starts in it.
        is_named: whether the first cell is the header of the row.
    """

    cells: list[str]
    headers: list[str]
    first: Any
    is_named: bool = False


@dataclass(slots=True)
class _Grid:
    """Assigns the cells of a table to columns, row by row.

    Attributes:
        left: the number of slots that the table may still fill.
        held: the cells of earlier rows that also span the next row. The keys are columns, counted from 0. A value has
            the number of rows that the cell still spans, starting with the next row, and the cell.
    """

    left: int = MAX_SLOTS
    held: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def lay_out(self, cells: list[Any]) -> list[tuple[int, Any]]:
        """Return the columns of the next row with their cells, in ascending order.

        `cells` are the cells that start in this row. The result also has the cells that started in an earlier row and
        span this row.
        """
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

    `rows` has the cells of each row, as elements. `text_of` returns the text of a cell.

    Header rows are the first rows whose cells are headers (``th``, or in ``thead``) or empty. The header of a column
    joins the texts of its header cells. A header that is too long to repeat is written once, in a row of its own before
    the first row. After `MAX_REPEATED_HEADERS` characters of headers, rows get no headers.
    """
    grid, headers, above = _Grid(), dict[int, list[Any]](), len(rows) > 1
    names: dict[int, str] = {}
    left = MAX_REPEATED_HEADERS
    for number, cells in enumerate(rows):
        slots = grid.lay_out(cells)
        above = above and number < len(rows) - 1 and _is_header_row(cells, text_of)
        if above:
            for column, cell in slots:
                above_it = headers.setdefault(column, [])
                # A header that spans rows is in consecutive rows.
                if not above_it or above_it[-1] is not cell:
                    above_it.append(cell)
            continue
        if headers:
            names = {column: " ".join(map(text_of, found)) for column, found in headers.items()}
            headers = {}
            long = {column: name for column, name in names.items() if len(name) > MAX_REPEATED}
            if long:
                names = {column: name for column, name in names.items() if column not in long}
                yield TableRow(list(dict.fromkeys(long.values())), [], cells[0] if cells else None)
        row = _row(slots, cells, names if left > 0 else {}, text_of)
        left -= sum(map(len, row.headers))
        yield row


def _is_header_row(cells: list[Any], text_of: Callable[[Any], str]) -> bool:
    tags = {cell.tag for cell in cells}
    if tags == {"th"} or not cells:
        return bool(cells)
    parent = cells[0].getparent()
    if parent is not None and parent.getparent() is not None and parent.getparent().tag == "thead":
        return True
    # The corner cell above the row names may be empty.
    return "th" in tags and not any(cell.tag != "th" and text_of(cell).strip() for cell in cells)


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
    is_named = len(texts) > 1 and bool(texts[0].strip()) and bool(own) and own[0].tag == "th" and slots[0][1] is own[0]
    return TableRow(texts, headers, own[0] if own else None, is_named)


def _span(cell: Any, name: str, most: int) -> int:
    written = cell.get(name) or "1"
    return min(int(written), most) if written.isascii() and written.isdecimal() and len(written) < 7 else 1
