"""Lets in only as many questions as can be answered in time: the others are refused while they wait, not at the end.

`at_once` questions are worked on; others, `most_waiting` at most, wait in the order of their arrival. While some wait,
the times at which questions end tell the pace of the cluster. By that pace, a question that cannot end before its
deadline any more is refused at once, so its caller can go elsewhere or come back, and the cluster does no work that
nobody will get.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from qa_cluster.errors import QueueFull
from qa_cluster.tracing import step

# How many ends make a pace: a few that came together say little, and old ones speak of another load.
LEAST_ENDS = 8
MOST_ENDS = 64


@dataclass(eq=False, slots=True)
class _Waiting:
    """A question that waits: until when it must have ended, and what wakes it."""

    until: float
    turn: asyncio.Future[None]


class Admission:
    """The questions of one process that are worked on, and those that wait.

    >>> admission = Admission(64, 256)
    >>> async with admission.turn(seconds=10.0):
    ...     await answer()
    """

    def __init__(self, at_once: int, most_waiting: int, clock: Callable[[], float] = monotonic) -> None:
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._clock = clock
        self._working = 0
        self._queue: deque[_Waiting] = deque()
        self._ends: deque[float] = deque(maxlen=MOST_ENDS)
        self.refused = 0

    @property
    def waiting(self) -> int:
        """How many questions wait for their turn."""
        return len(self._queue)

    @property
    def pace(self) -> float:
        """Seconds from the end of one question to that of the next, while some wait; 0 if not known yet."""
        if len(self._ends) < LEAST_ENDS:
            return 0.0
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    @asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn; QueueFull as soon as it is clear that the work will not end in so many seconds."""
        if self._working >= self._at_once or self._queue:
            with step("admission", {"qa.waiting": len(self._queue)}):
                await self._wait(self._clock() + seconds)
        else:
            self._working += 1
        try:
            yield
        except BaseException:
            self._end()
            raise
        self._end(self._clock())

    async def _wait(self, until: float) -> None:
        if len(self._queue) >= self._most_waiting:
            self.refused += 1
            raise QueueFull(f"{self._working} questions are being answered and {len(self._queue)} wait, the limit")
        mine = _Waiting(until, asyncio.get_running_loop().create_future())
        self._queue.append(mine)
        self._refuse_late()
        try:
            await mine.turn
        except asyncio.CancelledError:
            if mine in self._queue:
                self._queue.remove(mine)
            elif not mine.turn.cancelled() and mine.turn.exception() is None:
                self._end()  # its turn had come in the same moment
            raise

    def _end(self, at: float | None = None) -> None:
        """One is done; `at` is when, None if it says nothing about the pace."""
        self._working -= 1
        if at is not None and self._queue:
            self._ends.append(at)
        self._refuse_late()
        while self._queue and self._working < self._at_once:
            turn = self._queue.popleft().turn
            if not turn.done():  # else its asker has left, and is about to notice
                self._working += 1
                turn.set_result(None)
        if not self._queue:
            self._ends.clear()  # from now on, questions end as they come, not as fast as they can

    def _refuse_late(self) -> None:
        """Refuse those that would end too late: each ends when all before it have, those being worked on included."""
        pace, now = self.pace, self._clock()
        if not pace:
            return
        stay: deque[_Waiting] = deque()
        for waiting in self._queue:
            if waiting.turn.done():
                continue
            needed = (self._working + len(stay) + 1) * pace
            if now + needed <= waiting.until:
                stay.append(waiting)
                continue
            self.refused += 1
            waiting.turn.set_exception(
                QueueFull(
                    f"{self._working} questions are being answered and {len(stay)} wait, which takes {needed:.1f} s:"
                    f" this one has {max(0.0, waiting.until - now):.1f} s left (timeout_ms)"
                )
            )
        self._queue = stay
