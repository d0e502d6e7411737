"""Prints tables that fit the width of the terminal, or a block of lines for each row if a table does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import console

# Columns of prose, whose cells wrap on a narrow terminal.
_PROSE = frozenset({"question", "answer", "sentence", "help", "value", "error", "file", "why"})
# The smallest width in which prose is readable.
_PROSE_WIDTH = 20
_COLUMN_GAP = 3


def table(
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    minor: Sequence[str] = (),
    to: Console | None = None,
) -> None:
    """Print rows as a table. Its columns are the keys of the first row. Only columns of prose (`_PROSE`) wrap. The
    columns in `right` are aligned to the right. Without rows, nothing is printed.

    If the table does not fit, it omits the columns in `minor`, one after another. If it still does not fit, each row
    becomes a block of lines. `to` is the console that prints, by default standard output.
    """
    to = console.out if to is None else to
    if not rows:
        return
    cells = [{name: console.safe("" if value is None else str(value)) for name, value in row.items()} for row in rows]
    names = list(cells[0])
    left_out = [name for name in minor if name in names]
    while left_out and _least_width(cells, names) > to.width:
        names.remove(left_out.pop(0))
    if _least_width(cells, names) > to.width:
        _blocks(cells, title, to)
        return
    shown = Table(title=escape(console.safe(title)) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        prose = name in _PROSE
        shown.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=not prose)
    for row in cells:
        shown.add_row(*(escape(row[name]) for name in names))
    with to.capture() as printed:
        to.print(shown)
    for line in printed.get().splitlines():  # rich pads lines with spaces
        to.file.write(line.rstrip() + "\n")


def _least_width(cells: Sequence[Mapping[str, str]], names: Sequence[str]) -> int:
    """Return the smallest width, in characters, of a table with the columns `names` in which only columns of prose
    wrap.
    """
    width = _COLUMN_GAP * len(names)  # gaps between columns, and the edges
    for name in names:
        longest = max(cell_len(line) for text in (name, *(row[name] for row in cells)) for line in text.split("\n"))
        width += min(longest, _PROSE_WIDTH) if name in _PROSE else longest
    return width


def _blocks(cells: Sequence[Mapping[str, str]], title: str, to: Console) -> None:
    """Print each row as a block of lines. A line has the name of a column and the value in this row; empty values are
    left out.
    """

    def say(line: str) -> None:
        to.print(escape(console.safe(line)), soft_wrap=True)

    if title:
        say(title)
    margin = max(cell_len(" ".join(name.split())) for name in cells[0]) + 2
    for row in cells:
        say("")
        for name, value in row.items():
            if value:
                say(f"{' '.join(name.split()):<{margin}}{value}")
    say("")
