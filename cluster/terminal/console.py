"""Prints results to standard output, and steps, notes, errors and progress to standard error.

Users can therefore pipe the results. Progress is a bar on a terminal, and lines of text elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

# How often progress is shown: as a line of text where there is no terminal, and as a bar on a terminal.
PLAIN_EVERY_SECONDS = 10.0
BAR_EVERY_SECONDS = 0.2
# Control characters that a terminal would obey (except line breaks and tabs), characters that reorder text, and lone
# surrogates, which represent bytes of file names that are not UTF-8.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# The width of the output in characters where there is no terminal. Lines that wrap at 80 characters would be hard to
# search.
_PLAIN_WIDTH = 160

out = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
err = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _PLAIN_WIDTH)


def safe(text: str) -> str:
    """Escape the characters that a terminal would obey.

    >>> safe("\x1b[2Jgone")
    '\\\\x1b[2Jgone'
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the singular or plural.

    >>> counted(1, "document"), counted(2, "document"), counted(3, "process", "processes")
    ('1 document', '2 documents', '3 processes')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def step(text: str) -> None:
    """Print to standard error the step that the command starts now."""
    err.print(f"[dim]·[/dim] {escape(safe(text))}", soft_wrap=True)


def notice(text: str) -> None:
    """Print a note for the user to standard error."""
    err.print(f"[yellow]note:[/yellow] {escape(safe(text))}", soft_wrap=True)


def error(text: str) -> None:
    """Print an error to standard error."""
    err.print(f"[red]error:[/red] {escape(safe(text))}", soft_wrap=True)


def say(text: str) -> None:
    """Print one line of the result to standard output."""
    out.print(escape(safe(text)), soft_wrap=True)


def say_marked(parts: Iterable[tuple[str, bool]]) -> None:
    """Print one line of the result to standard output. `parts` are the pieces of the line. Each piece has a flag: True
    if the piece is marked. Marked pieces are bold on a terminal.
    """
    out.print(Text.assemble(*((safe(text), "bold" if marked else "") for text, marked in parts)), soft_wrap=True)


def say_json(value: Any) -> None:
    """Print the result to standard output, as JSON."""
    out.file.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def is_answered() -> bool:
    """Return whether a person can answer a question of the command, because standard input and standard error are a
    terminal.
    """
    return sys.stdin.isatty() and err.is_terminal


def confirm(question: str) -> bool:
    """Ask a question on standard error, and return whether the user has typed y or yes."""
    err.print(f"{escape(safe(question))} \\[y/N] ", end="", soft_wrap=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that `done` items are done. If `total` is given, it replaces the expected number of items."""


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Advance]:
    """Show a progress bar on a terminal, and elsewhere a line every ten seconds and at the end. `total` is the expected
    number of items; None if it is unknown. Yield the function that updates the progress.
    """
    if err.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err) as bar:
            task = bar.add_task(escape(safe(title)), total=total)
            yield lambda done, total=None: bar.update(task, completed=done, total=total)
        return
    started = time.monotonic()
    shown = f"{title}: 0"
    whole = total

    def plain(done: int, total: int | None = None) -> None:
        nonlocal shown
        of = total if total is not None else whole
        shown = f"{title}: {done}{f' of {of}' if of is not None else ''}"

    with repeated(lambda: step(shown), PLAIN_EVERY_SECONDS):
        yield plain
    step(f"{shown} in {time.monotonic() - started:.1f} s")


@contextmanager
def repeated(show: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `show` every `seconds` seconds until the `with` block ends."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            show()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
