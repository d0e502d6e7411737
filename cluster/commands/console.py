"""What the command line prints: tables or JSON, steps, progress bars on a terminal and plain lines elsewhere.

Results go to standard output, everything about the work to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# Columns of text that may be broken into lines where the terminal is narrow.
_PROSE = frozenset({"question", "answer", "sentence", "help", "value", "error"})
_PLAIN_EVERY_SECONDS = 5.0

# The least width in which prose can be read.
_PROSE_WIDTH = 20
_COLUMN_GAP = 3
# Control characters, and those that reorder the text around them: a terminal obeys them. Line breaks and tabs stay.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

# Not a terminal: there is no width to fit into, and a wrapped table is hard to search.
_WIDTH = None if sys.stdout.isatty() else 160

out = Console(highlight=False, width=_WIDTH)
err = Console(stderr=True, highlight=False)


def safe(text: str) -> str:
    """The text with characters that a terminal would obey written as escapes.

    >>> safe("\x1b[2Jgone")
    '\\\\x1b[2Jgone'
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things.

    >>> counted(1, "document"), counted(2, "document"), counted(3, "process", "processes")
    ('1 document', '2 documents', '3 processes')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def step(text: str) -> None:
    """Tell what is being done now."""
    err.print(f"[dim]·[/dim] {escape(safe(text))}", soft_wrap=True)


def notice(text: str) -> None:
    """Tell what the user should know."""
    err.print(f"[yellow]note:[/yellow] {escape(safe(text))}", soft_wrap=True)


def error(text: str) -> None:
    """Tell what went wrong."""
    err.print(f"[red]error:[/red] {escape(safe(text))}", soft_wrap=True)


def say(text: str) -> None:
    """One line of the result."""
    out.print(escape(safe(text)), soft_wrap=True)


def say_json(value: Any) -> None:
    """The result as JSON."""
    out.file.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def table(
    rows: Sequence[Mapping[str, Any]], *, title: str = "", right: Sequence[str] = (), minor: Sequence[str] = ()
) -> None:
    """Rows as a table, the columns named in `right` aligned to the right. Only columns of prose are ever wrapped.

    Where they do not fit, the columns in `minor` are left out, the first ones first; if that is not enough, each row
    becomes a block of lines.
    """
    if not rows:
        return
    cells = [{name: safe("" if value is None else str(value)) for name, value in row.items()} for row in rows]
    names = list(cells[0])
    left_out = [name for name in minor if name in names]
    while left_out and _least_width(cells, names) > out.width:
        names.remove(left_out.pop(0))
    if _least_width(cells, names) > out.width:
        _blocks(cells, title)
        return
    shown = Table(title=escape(safe(title)) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        prose = name in _PROSE
        shown.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=not prose)
    for row in cells:
        shown.add_row(*(escape(row[name]) for name in names))
    with out.capture() as printed:
        out.print(shown)
    for line in printed.get().splitlines():  # rich fills lines up with spaces
        out.file.write(line.rstrip() + "\n")


def _least_width(cells: Sequence[Mapping[str, str]], names: Sequence[str]) -> int:
    """The columns a table needs that breaks only prose into lines."""
    width = _COLUMN_GAP * len(names)  # between them, and the edges
    for name in names:
        longest = max(cell_len(line) for text in (name, *(row[name] for row in cells)) for line in text.split("\n"))
        width += min(longest, _PROSE_WIDTH) if name in _PROSE else longest
    return width


def _blocks(cells: Sequence[Mapping[str, str]], title: str) -> None:
    """Rows as blocks of lines, name and value."""
    if title:
        say(title)
    margin = max(cell_len(" ".join(name.split())) for name in cells[0]) + 2
    for row in cells:
        say("")
        for name, value in row.items():
            if value:
                say(f"{' '.join(name.split()):<{margin}}{value}")
    say("")


class Advance(Protocol):
    """Tells a progress bar how many are done, and of how many where that is known only now."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """`done` are done now."""


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Advance]:
    """A bar on a terminal, else a line every few seconds."""
    if err.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err) as bar:
            task = bar.add_task(escape(safe(title)), total=total)
            yield lambda done, total=None: bar.update(task, completed=done, total=total)
        return
    started = last = time.monotonic()
    shown = f"{title}: 0"
    whole = total

    def plain(done: int, total: int | None = None) -> None:
        nonlocal last, shown
        of = total if total is not None else whole
        shown = f"{title}: {done}{f' of {of}' if of is not None else ''}"
        if time.monotonic() - last >= _PLAIN_EVERY_SECONDS:
            last = time.monotonic()
            step(shown)

    yield plain
    step(f"{shown} in {time.monotonic() - started:.1f} s")
