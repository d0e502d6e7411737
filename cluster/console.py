"""What the command line prints: tables or JSON, steps, progress bars on a terminal and plain lines elsewhere.

Results go to standard output, everything about the work to standard error, so that output can be piped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# Columns of text that may be broken into lines where the terminal is narrow.
_PROSE = frozenset({"question", "answer", "sentence", "help", "value", "error"})
_PLAIN_EVERY_SECONDS = 5.0

# Not a terminal: there is no width to fit into, and a wrapped table is hard to search.
_WIDTH = None if sys.stdout.isatty() else 160

out = Console(highlight=False, width=_WIDTH)
err = Console(stderr=True, highlight=False)


def step(text: str) -> None:
    """Tell what is being done now."""
    err.print(f"[dim]·[/dim] {escape(text)}", soft_wrap=True)


def notice(text: str) -> None:
    """Tell what the user should know."""
    err.print(f"[yellow]note:[/yellow] {escape(text)}", soft_wrap=True)


def error(text: str) -> None:
    """Tell what went wrong."""
    err.print(f"[red]error:[/red] {escape(text)}", soft_wrap=True)


def say(text: str) -> None:
    """One line of the result."""
    out.print(escape(text), soft_wrap=True)


def say_json(value: Any) -> None:
    """The result as JSON."""
    out.file.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def table(rows: Sequence[Mapping[str, Any]], *, title: str = "", right: Sequence[str] = ()) -> None:
    """Rows as a table, the columns named in `right` aligned to the right. Only columns of prose are ever wrapped."""
    if not rows:
        return
    shown = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        prose = name in _PROSE
        shown.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=not prose)
    for row in rows:
        shown.add_row(*(escape("" if value is None else str(value)) for value in row.values()))
    out.print(shown)


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
            task = bar.add_task(escape(title), total=total)
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
