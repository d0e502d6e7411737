"""Detects that code has blocked the event loop for too long. The heartbeat's thread calls it.

A job has a deadline in the module, which kills a worker that does not end the job. Code that runs without a job has no
such deadline, so the heartbeat's thread ends the worker. In both cases the heartbeat reports how long the loop was
silent.
"""

from __future__ import annotations

import asyncio
import time

TURN_SECONDS = 0.25
# A longer time between two calls of `silence` counts as this long, because the calling thread was late, and the loop
# may be late for the same reason.
MOST_SECONDS = 0.2


class LoopWatch:
    """Records when the event loop last ran the callback of this watch.

    Attributes:
        jobs: the number of running jobs with a time limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_seconds: float) -> None:
        self._loop = loop
        self._limit = limit_seconds
        self._turn = time.monotonic()
        self._seen_turn = self._asked = self._turn
        self._silence = 0.0
        self.jobs = 0

    def begin(self) -> None:
        """Start to record the turns of the event loop."""
        self._turn = time.monotonic()
        self._loop.call_later(TURN_SECONDS, self.begin)

    def blocked_seconds(self) -> float | None:
        """Return for how many seconds code without a job has blocked the loop; None if not too long.

        Called by another thread.
        """
        blocked = time.monotonic() - self._turn
        return blocked if blocked > self._limit and not self.jobs else None

    def silence(self) -> float:
        """Return the seconds since the loop last ran the callback, without the time in which the calling thread itself
        was late.

        The heartbeat's thread calls this at regular intervals.
        """
        now, turn = time.monotonic(), self._turn
        self._silence = 0.0 if turn != self._seen_turn else self._silence + min(now - self._asked, MOST_SECONDS)
        self._seen_turn, self._asked = turn, now
        return self._silence
