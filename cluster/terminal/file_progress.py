"""Shows the progress of a command that reads files: the numbers of files and bytes, and the page of the
current file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from . import console

_MIB = 1024 * 1024
_MAX_NAME = 40
_BAR_WIDTH = 12


@dataclass
class FileProgress:
    """The progress so far. Threads may update it while a display reads it.

    >>> progress = FileProgress("storing documents")
    >>> progress.expect(3, 2_500_000)
    >>> progress.begin("manual.pdf", 2_000_000)
    >>> progress.page(12, 900)
    >>> progress.store(0)
    >>> progress.text
    'storing documents: 0 of 3 files, 0.0 of 2.4 MiB, 0 documents; manual.pdf, page 12 of 900'
    """

    title: str
    files: int = 0
    bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    documents: int = 0
    name: str = ""
    _size: int = 0
    _page: int = 0
    _pages: int = 0

    def expect(self, files: int, size: int) -> None:
        """Set the number of files that will be read, and the sum of their sizes in bytes."""
        self.files, self.bytes = files, size

    def begin(self, name: str, size: int) -> None:
        """Make a file the current file, and count the previous current file as done. `size` is the size of the file in
        bytes.
        """
        self.end()
        self.name, self._size, self._page, self._pages = name, size, 0, 0

    def end(self) -> None:
        """Count the current file as done. If there is no current file, do nothing."""
        if self.name:
            self.done_files += 1
            self.done_bytes += self._size
        self.name, self._size = "", 0

    def page(self, page: int, pages: int) -> None:
        """Set the page that is being read, and the number of pages of the current file."""
        self._page, self._pages = page, pages

    def store(self, documents: int) -> None:
        """Set the number of stored documents."""
        self.documents = documents

    @property
    def part(self) -> float:
        """The fraction of all bytes that is done, from 0 to 1. The pages of the current file that have been read count
        in proportion.
        """
        within = self._size * self._page / self._pages if self._pages else 0
        return min((self.done_bytes + within) / self.bytes, 1.0) if self.bytes else 0.0

    @property
    def current(self) -> str:
        """The name of the current file and, if the file has pages, the page that is being read. A long name is cut at
        its start.
        """
        name = self.name if len(self.name) <= _MAX_NAME else f"..{self.name[2 - _MAX_NAME :]}"
        return f"{name}, page {self._page} of {self._pages}" if self._pages else name

    @property
    def short_current(self) -> str:
        """The page that is being read (if the file has pages) and the name of the current file without its folder, for
        the bar on a terminal.
        """
        page = f"page {self._page}/{self._pages} " if self._pages else ""
        return page + self.name.rpartition("/")[2]

    @property
    def counts(self) -> str:
        """The numbers of files, bytes and documents that are done, as text."""
        size = f"{self.done_bytes / _MIB:.1f} of {self.bytes / _MIB:.1f} MiB"
        documents = console.counted(self.documents, "document")
        return f"{self.done_files} of {console.counted(self.files, 'file')}, {size}, {documents}"

    @property
    def short_counts(self) -> str:
        """The numbers of files and bytes that are done, as a short text for the bar on a terminal."""
        size = f"{self.done_bytes / _MIB:.1f}/{self.bytes / _MIB:.1f} MiB"
        return f"{self.done_files}/{console.counted(self.files, 'file')} {size}"

    @property
    def text(self) -> str:
        """The progress as one line, for output that is not a terminal."""
        return f"{self.title}: {self.counts}" + (f"; {self.current}" if self.name else "")

    @contextmanager
    def shown(self) -> Iterator[Callable[[int], None]]:
        """Show the progress on standard error until the `with` block ends: as a bar on a terminal, elsewhere as a line
        every ten seconds. Yield the method `store`.
        """
        with self._bar() if console.err.is_terminal else self._lines():
            yield self.store

    @contextmanager
    def _bar(self) -> Iterator[None]:
        columns = (BarColumn(_BAR_WIDTH), TextColumn("{task.fields[counts]}"), TimeRemainingColumn())
        current = TextColumn("{task.fields[current]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        with Progress(TextColumn("{task.description}"), *columns, current, console=console.err, expand=True) as bar:
            task = bar.add_task(escape(console.safe(self.title.partition(" ")[0])), total=1.0, counts="", current="")

            def show() -> None:
                current = escape(console.safe(self.short_current))
                bar.update(task, completed=self.part, counts=self.short_counts, current=current)

            with console.repeated(show, console.BAR_EVERY_SECONDS):
                yield
            self.end()
            show()

    @contextmanager
    def _lines(self) -> Iterator[None]:
        started = time.monotonic()
        with console.repeated(lambda: console.step(self.text), console.PLAIN_EVERY_SECONDS):
            yield
        self.end()
        console.step(f"{self.text} in {time.monotonic() - started:.1f} s")
