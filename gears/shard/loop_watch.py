"""Detects that a function without a job has blocked the event loop for too long.

A job has a deadline in the module, which kills a worker that does not end it. Functions that run without a job (stream
batches, timers, `onRegistered`, coroutines) have no such deadline: the heartbeat's thread asks this watch about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator

TURN_SECONDS = 0.25


class LoopWatch:
    """Knows when the event loop last ran its own callback, and for how long a function may block it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_seconds: float, longest_seconds: float) -> None:
        self._loop = loop
        self._limit = limit_seconds
        self._longest = longest_seconds
        self._limited = 0
        self._turn = time.monotonic()
        self.jobs = 0

    def begin(self) -> None:
        """Note the event loop's turns from now on."""
        self._turn = time.monotonic()
        self._loop.call_later(TURN_SECONDS, self.begin)

    @contextlib.contextmanager
    def limited(self) -> Generator[None]:
        """Limit the functions in this block to the time of a job; outside of it, they have the longest time allowed."""
        self._limited += 1
        try:
            yield
        finally:
            self._limited -= 1

    def blocked_seconds(self) -> float | None:
        """How long a function without a job has blocked the loop, None if not too long; for use by another thread."""
        blocked = time.monotonic() - self._turn
        too_long = blocked > (self._limit if self._limited else self._longest)
        return blocked if too_long and not self.jobs else None
