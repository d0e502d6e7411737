"""Admits the questions that can be answered before their deadlines, and refuses other questions early.

`at_once` questions are answered at the same time, and up to `most_waiting` more are queued:

- Each asker (an API key, see `on_behalf`) has a queue. The next question comes from the asker with the fewest running
  questions. An asker's questions are taken in the order of their arrival.
- An asker without a running question need not wait for other askers: up to `SPARE_TURNS` such questions start in
  addition to the `at_once` questions.
- If all queues together are full, the asker with the most queued questions loses its newest question to an asker with
  fewer questions.

While questions are queued, the rate at which questions end is the throughput of the cluster. A question that cannot end
before its deadline at this rate is refused at once. Its caller can then retry elsewhere, and the cluster does not work
on a question that will time out.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from qa_cluster.errors import QueueFull
from qa_cluster.tracing import step

from .on_behalf import asker

# The rate is computed from the questions that ended last. It needs at least `LEAST_ENDS` ended questions, and at least
# as many as run at the same time, because questions end in groups. It uses at most `MOST_ENDS` ended questions, because
# older questions ran under a different load.
LEAST_ENDS = 8
MOST_ENDS = 64
SPARE_TURNS = 8


@dataclass(eq=False, slots=True)
class _Waiting:
    """A queued question: its asker, its deadline on the clock of `Admission`, and the future that wakes it."""

    asker: str
    until: float
    turn: asyncio.Future[None]


class Admission:
    """Counts the running questions of one process and queues the other questions.

    A new value of `at_once` applies from the next question that starts or ends.

    >>> admission = Admission(64, 256)
    >>> async with admission.turn(seconds=10.0):
    ...     await answer()
    """

    def __init__(self, at_once: int, most_waiting: int, clock: Callable[[], float] = monotonic) -> None:
        self.at_once = at_once
        self._most_waiting = most_waiting
        self._clock = clock
        self._working: Counter[str] = Counter()
        # The queues by asker. If several askers have the fewest running questions, the first of these askers in this
        # dictionary is next.
        self._queues: dict[str, deque[_Waiting]] = {}
        self._ends: deque[float] = deque(maxlen=MOST_ENDS)
        self.refused = 0

    @property
    def working(self) -> int:
        """The number of running questions."""
        return self._working.total()

    @property
    def waiting(self) -> int:
        """The number of queued questions."""
        return sum(map(len, self._queues.values()))

    @property
    def pace(self) -> float:
        """The mean time in seconds between the ends of two questions while questions are queued.

        0 if too few questions have ended to compute it.
        """
        if len(self._ends) < max(LEAST_ENDS, min(self.at_once, MOST_ENDS)):
            return 0.0
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    @asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait until this question may run (its *turn*). The question counts as running until the block ends.

        Raises:
            QueueFull: the queues are full, or the question is expected to end later than `seconds` from now. A question
                that already waits can get this error, too.
        """
        mine = asker()
        if self._may_begin(mine):
            self._working[mine] += 1
        else:
            with step("admission", {"qa.waiting": self.waiting}):
                await self._wait(mine, self._clock() + seconds)
        try:
            yield
        except BaseException:
            self._end(mine)
            raise
        self._end(mine, self._clock())

    def _may_begin(self, mine: str) -> bool:
        working = self.working
        if working < self.at_once:
            return not self._queues
        is_new = not self._working[mine] and mine not in self._queues
        return is_new and working < self.at_once + SPARE_TURNS

    async def _wait(self, mine: str, until: float) -> None:
        if self.waiting >= self._most_waiting:
            self._make_place(mine)
        waiting = _Waiting(mine, until, asyncio.get_running_loop().create_future())
        self._queues.setdefault(mine, deque()).append(waiting)
        self._refuse_late()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if not self._remove(waiting) and not waiting.turn.cancelled() and waiting.turn.exception() is None:
                self._end(mine)  # the question got its turn just before its task was cancelled
            raise

    def _make_place(self, mine: str) -> None:
        """Refuse the newest question of the asker with the most queued questions.

        The new question, whose asker is `mine`, counts as queued. If the new question is the question to refuse, raise
        QueueFull.
        """
        full = f"{self.working} questions are being answered and {self.waiting} are queued, which is the limit"
        self.refused += 1
        most = max(self._queues.values(), key=len, default=None)
        if most is None or len(most) <= len(self._queues.get(mine, ())) + 1:
            raise QueueFull(full)
        last = most[-1]
        self._remove(last)
        if not last.turn.done():
            last.turn.set_exception(QueueFull(f"{full}, and other users have fewer questions"))

    def _remove(self, waiting: _Waiting) -> bool:
        queue = self._queues.get(waiting.asker)
        if queue is None or waiting not in queue:
            return False
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.asker]
        return True

    def _end(self, mine: str, at: float | None = None) -> None:
        """End a question of the asker `mine`, and let the next questions start.

        `at` is the time of the end, on the clock of `Admission`; None if this end must not count for the rate.
        """
        self._working[mine] -= 1
        if not self._working[mine]:
            del self._working[mine]
        if at is not None and self._queues:
            self._ends.append(at)
        self._refuse_late()
        while self._queues and self.working < self.at_once:
            waiting = self._next()
            if not waiting.turn.done():  # `turn` is done if the question's task was cancelled
                self._working[waiting.asker] += 1
                waiting.turn.set_result(None)
        if not self._queues:
            # No question is queued any more. So the rate at which questions end is now the rate of their arrival, not
            # the throughput of the cluster.
            self._ends.clear()

    def _next(self) -> _Waiting:
        """Remove and return the first question of the asker with the fewest running questions."""
        mine = min(self._queues, key=lambda each: self._working[each])
        queue = self._queues.pop(mine)
        waiting = queue.popleft()
        if queue:
            self._queues[mine] = queue  # the asker is now behind all other askers
        return waiting

    def _in_turn(self) -> Iterator[_Waiting]:
        """Yield all queued questions, approximately in the order of their turns."""
        for place in range(max(map(len, self._queues.values()), default=0)):
            for queue in self._queues.values():
                if place < len(queue):
                    yield queue[place]

    def _refuse_late(self) -> None:
        """Refuse the queued questions that would end after their deadlines.

        A question is assumed to end after all running questions and all questions before it.
        """
        pace, now, working = self.pace, self._clock(), self.working
        if not pace:
            return
        before = 0
        for waiting in list(self._in_turn()):
            if waiting.turn.done():
                self._remove(waiting)
                continue
            needed = (working + before + 1) * pace
            if now + needed <= waiting.until:
                before += 1
                continue
            self.refused += 1
            self._remove(waiting)
            waiting.turn.set_exception(
                QueueFull(
                    f"{working} questions are being answered and {before} are queued, which takes {needed:.1f} s:"
                    f" this question has {max(0.0, waiting.until - now):.1f} s left (timeout)"
                )
            )
