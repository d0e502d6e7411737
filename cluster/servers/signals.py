"""Makes signals end a command in order, as Ctrl-C does, so that it stops the servers that it has started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def until_signal() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end this block with KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; a signal cancels it, and raises KeyboardInterrupt after it has ended in order.

    `until_signal` is not enough here: an exception raised inside the event loop would leave unfinished tasks behind.
    """

    asked = False
    cancel: Callable[[], object] | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if cancel is not None:
            cancel()

    async def cancelled_by_signal() -> None:
        nonlocal cancel
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is not None:
            cancel = partial(loop.call_soon_threadsafe, task.cancel)  # this also wakes the loop
        if asked:  # the signal came before there was a task to cancel
            raise asyncio.CancelledError
        try:
            await work
        finally:
            cancel = None

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        asyncio.run(cancelled_by_signal())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        work.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:  # the signal came after the work had ended
        raise KeyboardInterrupt


def ignore_signals() -> None:
    """Ignore signals until the end of `until_signal`, so that a second Ctrl-C does not interrupt the stopping."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
