"""Ending a command that has started servers of its own, however it is told to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def until_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is done here the way Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """A second Ctrl-C must not cut the stopping short; until the end of `until_signal`."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
