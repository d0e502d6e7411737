"""Makes signals interrupt a command like Ctrl-C, so that the command stops the servers that it has started."""

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
    """Make SIGTERM and SIGHUP end the `with` block with KeyboardInterrupt, as Ctrl-C does. At the end, restore the
    former signal handlers.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. After SIGINT, SIGTERM or SIGHUP, cancel the coroutine, wait until it has ended, and raise
    KeyboardInterrupt.

    `until_signal` is not enough here: an exception inside the event loop would leave unfinished tasks behind.
    """

    signalled = False
    cancel: Callable[[], object] | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        if cancel is not None:
            cancel()

    async def cancelled_by_signal() -> None:
        nonlocal cancel
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is not None:
            cancel = partial(loop.call_soon_threadsafe, task.cancel)  # call_soon_threadsafe wakes the loop
        if signalled:  # the signal arrived before there was a task to cancel
            raise asyncio.CancelledError
        try:
            await work
        finally:
            cancel = None

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        asyncio.run(cancelled_by_signal())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        work.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if signalled:  # the signal arrived after the work had ended
        raise KeyboardInterrupt


def ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP until the block of `until_signal` ends, so that a second Ctrl-C does not
    interrupt the clean-up.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
