"""Detects code that blocks the event loop for too long. The heartbeat's thread uses this module.

If a job with a time limit does not end in time, the module kills the worker. While no such job runs, no deadline would
end code that blocks the loop. So the heartbeat's thread ends the worker if the loop has been blocked for longer than a
limit (`blocked_seconds`). In both cases, the heartbeat reports the silence of the loop: the time since the loop last
ran the callback of `LoopWatch`.
"""

from __future__ import annotations

import asyncio
import time

TURN_SECONDS = 0.25
# The maximum time that a call of `silence` adds. If more time has passed since the previous call, the calling thread
# was late, and the loop may be late for the same reason.
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
        """Record now, and then every `TURN_SECONDS`, that the event loop runs."""
        self._turn = time.monotonic()
        self._loop.call_later(TURN_SECONDS, self.begin)

    def blocked_seconds(self) -> float | None:
        """Return the seconds since the loop last ran the callback, if they exceed the limit. Return None if they are
        within the limit, or while a job with a time limit runs.

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
