"""Reads spreadsheets (.xlsx) with openpyxl: each sheet is a section, and its blocks of cells are tables."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lxml import etree
from openpyxl import load_workbook
from openpyxl.utils.cell import range_boundaries

from qa_cluster.errors import InputTooLong, InvalidInput

from ..extracted import Extracted, clean
from .archive import CORE_PROPERTIES, opened, title_in
from .cell_values import shown
from .tree import add, new_body, written

# The limit of cells of all sheets, including empty cells between others. Larger spreadsheets are data, not documents.
MAX_CELLS = 500_000
MAX_SHEETS = 500
MAX_MERGED_SLOTS = 100_000
_ERRORS = frozenset(["#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A", "#GETTING_DATA"])


def read(data: bytes) -> Extracted:
    """Return the text of a spreadsheet.

    The place of a paragraph (`Extracted.places`) is the number of its row in its sheet. Hidden sheets, rows and columns
    are left out.

    Raises:
        InputTooLong: the spreadsheet has more than `MAX_CELLS` cells.
    """
    with opened(data, ".xlsx") as archive:
        title = title_in(archive, CORE_PROPERTIES)
        workbook = load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        body, reader = new_body(), _Reader(archive)
        hidden = []
        if len(workbook.worksheets) > MAX_SHEETS:
            raise InvalidInput(f"has {len(workbook.worksheets)} sheets, the limit is {MAX_SHEETS}: split it")
        for sheet in workbook.worksheets:
            if sheet.sheet_state == "visible":
                reader.add(body, sheet)
            else:
                hidden.append(clean(sheet.title))
    remarks = [f"hidden sheets were left out: {', '.join(hidden[:5])}"] if hidden else []
    return written(body, title, unit="line").remarked(*remarks, *reader.remarks())


@dataclass(slots=True)
class _Layout:
    """The layout of a sheet: merged cells, hidden rows and columns, and formulas without a stored value.

    Attributes:
        merged: the numbers of columns and rows of each merged cell. The keys are the row and the column of its first
            cell, counted from 1.
        hidden_rows: the numbers of the hidden rows.
        hidden_columns: the first and the last column (inclusive) of each range of hidden columns.
        no_value: the number of formulas whose value is not in the file.
    """

    merged: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    no_value: int = 0

    def is_hidden(self, column: int) -> bool:
        """Return whether a column is hidden."""
        return any(first <= column <= last for first, last in self.hidden_columns)


@dataclass(slots=True)
class _Cell:
    """A cell and its text. The value of an empty cell is None."""

    column: int
    value: Any
    text: str


class _Reader:
    """Adds sheets to a tree, and counts the cells that are left out."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._cells_left = MAX_CELLS
        self._hidden = 0
        self._no_value = 0
        self._errors = 0

    def remarks(self) -> list[str]:
        """Return texts that say what was left out."""
        found = {
            "hidden rows and columns were left out": self._hidden,
            "formulas without a stored value were left out": self._no_value,
            "cells with an error were left out": self._errors,
        }
        return [f"{what}: {count}" for what, count in found.items() if count]

    def add(self, body: Any, sheet: Any) -> None:
        """Add the name of a sheet as a heading, and its blocks. A block is a series of rows without an empty row.

        A sheet without text is left out.
        """
        layout = _layout(self._archive, sheet._worksheet_path)
        self._no_value += layout.no_value
        self._hidden += len(layout.hidden_rows) + len(layout.hidden_columns)
        section = add(body, "section")
        add(section, "h2", clean(sheet.title))
        block: list[tuple[int, list[_Cell]]] = []
        for number, cells in self._rows(sheet, layout):
            if any(cell.text for cell in cells):
                block.append((number, cells))
            elif block and not self._is_covered(layout, block, number):
                _add_block(section, block, layout)
                block = []
        if block:
            _add_block(section, block, layout)
        if len(section) == 1:
            body.remove(section)

    @staticmethod
    def _is_covered(layout: _Layout, block: Sequence[tuple[int, list[_Cell]]], number: int) -> bool:
        """Return whether the empty row `number` belongs to a merged cell of the last row of `block`."""
        row, cells = block[-1]
        return any(row + layout.merged.get((row, cell.column), (1, 1))[1] > number for cell in cells)

    def _rows(self, sheet: Any, layout: _Layout) -> Iterator[tuple[int, list[_Cell]]]:
        sheet.reset_dimensions()  # the file may claim any size
        for number, row in enumerate(sheet.iter_rows(), 1):
            self._cells_left -= len(row)
            if self._cells_left < 0:
                raise InputTooLong(
                    f"has more than {MAX_CELLS} cells, the limit: split it, or store its rows as .jsonl documents"
                )
            if number in layout.hidden_rows:
                continue
            cells = [
                _Cell(column, cell.value, self._text(cell))
                for column, cell in enumerate(row, 1)
                if not layout.hidden_columns or not layout.is_hidden(column)
            ]
            yield number, cells

    def _text(self, cell: Any) -> str:
        value = cell.value
        if value is None:
            return ""
        if isinstance(value, str):
            if cell.data_type == "e" or value in _ERRORS:
                self._errors += 1
                return ""
            return clean(value)
        return shown(value, cell.number_format or "")


def _layout(archive: zipfile.ZipFile, part: str) -> _Layout:
    found = _Layout()
    slots = 0
    with archive.open(part) as file:
        for _, element in etree.iterparse(
            file, tag=("{*}row", "{*}col", "{*}mergeCell"), resolve_entities=False, no_network=True
        ):
            name = element.tag.rpartition("}")[2]
            is_hidden = element.get("hidden") in ("1", "true")
            if name == "mergeCell":
                left, top, right, bottom = range_boundaries(element.get("ref") or "A1")
                slots += (right - left + 1) * (bottom - top + 1)
                if slots <= MAX_MERGED_SLOTS:
                    found.merged[top, left] = (right - left + 1, bottom - top + 1)
            elif name == "col" and is_hidden:
                found.hidden_columns.append((int(element.get("min")), int(element.get("max"))))
            elif name == "row":
                if is_hidden and element.get("r"):
                    found.hidden_rows.add(int(element.get("r")))
                for formula in element.iterfind("./{*}c/{*}f"):
                    cell = formula.getparent()
                    found.no_value += not cell.findtext("./{*}v") and cell.get("t") != "str"
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]
    return found


def _add_block(section: Any, block: list[tuple[int, list[_Cell]]], layout: _Layout) -> None:
    """Add the rows of `block`, which have no empty row between them. Each row has its number and its cells.

    The rows at the start that have only one cell with text, such as titles, become paragraphs. The other rows become a
    table.
    """
    at = 0
    while at < len(block) and sum(bool(cell.text) for cell in block[at][1]) == 1:
        at += 1
    is_column = at == len(block)
    for number, cells in block[:at]:
        add(section, "p", next(cell.text for cell in cells if cell.text), at=number)
    if is_column:
        return
    first = min(cell.column for _, cells in block[at:] for cell in cells if cell.text)
    rows = [(number, [cell for cell in cells if cell.column >= first]) for number, cells in block[at:]]
    headers = _header_rows(rows, layout)
    table = add(section, "table")
    covered: dict[int, int] = {}  # the last row that a merged cell covers, by column
    for index, (number, cells) in enumerate(rows):
        row = add(table, "tr")
        for cell in cells:
            if covered.get(cell.column, 0) >= number:
                continue
            made = add(row, "th" if index < headers else "td", cell.text, at=0 if len(row) else number)
            width, height = layout.merged.get((number, cell.column), (1, 1))
            if width > 1 or height > 1:
                columns = range(cell.column, cell.column + width)
                made.set("colspan", str(sum(not layout.is_hidden(column) for column in columns)))
                made.set("rowspan", str(height))
                covered.update(dict.fromkeys(columns, number + height - 1))


def _header_rows(rows: list[tuple[int, list[_Cell]]], layout: _Layout) -> int:
    """Return the number of rows with column names: 0, 1 or 2.

    The cells of such a row have only text. The second row counts only if the first row has a column name that spans
    several columns.
    """

    def is_text(cells: list[_Cell]) -> bool:
        return all(cell.value is None or isinstance(cell.value, str) for cell in cells)

    if len(rows) < 2 or not is_text(rows[0][1]):
        return 0
    number, cells = rows[0]
    is_merged = any(layout.merged.get((number, cell.column), (1, 1))[0] > 1 for cell in cells)
    return 2 if is_merged and len(rows) > 2 and is_text(rows[1][1]) else 1
