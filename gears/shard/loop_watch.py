"""Notices an event loop that a function has blocked for too long, when nothing else can.

A job has a deadline in the module, which kills a worker that does not end it. Functions that run without a job (stream
batches, timers, `onRegistered`, coroutines) have none: this watch, asked by the heartbeat's thread, is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator

TURN_SECONDS = 0.25


class LoopWatch:
    """Knows when the loop last had its turn, and how long it may be kept from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_seconds: float, longest_seconds: float) -> None:
        self._loop = loop
        self._limit = limit_seconds
        self._longest = longest_seconds
        self._limited = 0
        self._turn = time.monotonic()
        self.jobs = 0

    def begin(self) -> None:
        """Note the loop's turns from now on."""
        self._turn = time.monotonic()
        self._loop.call_later(TURN_SECONDS, self.begin)

    @contextlib.contextmanager
    def limited(self) -> Generator[None]:
        """A function that has the time of a job runs; outside, the longest time is allowed."""
        self._limited += 1
        try:
            yield
        finally:
            self._limited -= 1

    def blocked_seconds(self) -> float | None:
        """For how long a function without a job has kept the loop, if that is too long (asked by another thread)."""
        blocked = time.monotonic() - self._turn
        too_long = blocked > (self._limit if self._limited else self._longest)
        return blocked if too_long and not self.jobs else None
