"""Detects code that blocks the event loop for too long. The heartbeat's thread uses it.

A job has a deadline, and the module kills a worker that does not end the job in time. Code without a job has no
deadline, so the heartbeat's thread ends the worker. In both cases, the heartbeat reports the time that the loop was
silent.
"""

from __future__ import annotations

import asyncio
import time

TURN_SECONDS = 0.25
# The maximum time between two calls of `silence` that counts as silence. After a longer time, the calling thread was
# late, and the loop may be late for the same reason.
MOST_SECONDS = 0.2


class LoopWatch:
    """Records the last time when the event loop ran the callback of this watch.

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
        """Return the seconds for which code without a job has blocked the loop. Return None if they are within the
        limit, or while a job with a time limit runs.

        Call this on another thread.
        """
        blocked = time.monotonic() - self._turn
        return blocked if blocked > self._limit and not self.jobs else None

    def silence(self) -> float:
        """Return the seconds since the loop last ran the callback, without delays of the calling thread.

        Call this at regular intervals.
        """
        now, turn = time.monotonic(), self._turn
        self._silence = 0.0 if turn != self._seen_turn else self._silence + min(now - self._asked, MOST_SECONDS)
        self._seen_turn, self._asked = turn, now
        return self._silence
