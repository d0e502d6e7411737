"""Reports the current page of a file to the process that requested its text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")
_EVERY_SECONDS = 0.2


def _ignore(page: int, pages: int) -> None:
    del page, pages


_report: Callable[[int, int], None] = _ignore


def report_to(report: Callable[[int, int], None]) -> None:
    """Make `reported` call `report` from now on, with the number of the current page and the number of all pages."""
    global _report  # noqa: PLW0603 - a process has only one function that reports
    _report = report


def reported(pages: Iterable[_T], total: int) -> Iterator[_T]:
    """Yield the pages. At most every `_EVERY_SECONDS`, report the current page. `total` is the number of pages.

    >>> list(reported("ab", 2))
    ['a', 'b']
    """
    last = time.monotonic()
    for number, page in enumerate(pages, 1):
        if time.monotonic() - last >= _EVERY_SECONDS:
            last = time.monotonic()
            _report(number, total)
        yield page
