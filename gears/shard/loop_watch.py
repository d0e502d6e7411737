"""Detects that code without a job has blocked the event loop for too long.

A job has a deadline in the module, which kills a worker that does not end it. Code that runs without a job has no such
deadline: the heartbeat's thread asks this watch about it.
"""

from __future__ import annotations

import asyncio
import time

TURN_SECONDS = 0.25


class LoopWatch:
    """Records when the event loop last ran the callback of this watch.

    Attributes:
        jobs: the number of running jobs with a time limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_seconds: float) -> None:
        self._loop = loop
        self._limit = limit_seconds
        self._turn = time.monotonic()
        self.jobs = 0

    def begin(self) -> None:
        """Record the event loop's turns from now on."""
        self._turn = time.monotonic()
        self._loop.call_later(TURN_SECONDS, self.begin)

    def blocked_seconds(self) -> float | None:
        """How long code without a job has blocked the loop; None if not too long. Another thread calls it."""
        blocked = time.monotonic() - self._turn
        return blocked if blocked > self._limit and not self.jobs else None
