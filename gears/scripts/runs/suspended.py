"""The records of a run that wait for a coroutine, a future or an earlier record.

Each waiting record has its own asyncio task, so a run can wait for many records at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from ..host.executions import Execution

MAX_SUSPENDED = 1024
"""The source pauses at this number of records that wait for coroutines or earlier records."""
MAX_FUTURES = 100_000
"""The source pauses at this total of waiting records, including records that wait for a `GearsFuture`. This limit is
larger, because functions may collect many futures to continue them together.
"""


class Suspended:
    """The tasks of one stage's waiting records. The coroutines of the tasks store errors and do not raise them.

    Attributes:
        ending: whether the run ends early and the tasks are cancelled.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._tasks: set[asyncio.Task[None]] = set()
        self._capacity: asyncio.Future[None] | None = None
        self.futures = 0  # the number of records that wait for a GearsFuture
        self.ending = False

    @property
    def full(self) -> bool:
        """Whether no more records may start to wait.

        The limit is `MAX_SUSPENDED` plus the number of records that wait for a `GearsFuture`, at most `MAX_FUTURES`.
        """
        return len(self._tasks) >= min(MAX_SUSPENDED + self.futures, MAX_FUTURES)

    def add(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs `rest`, the coroutine of a waiting record; return the task."""
        task = asyncio.get_running_loop().create_task(rest)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._execution.beats += 1  # the run has made progress
        if self._capacity is not None and not self._capacity.done():
            self._capacity.set_result(None)

    async def capacity(self) -> None:
        """Wait until one more record may start to wait."""
        while self.full:
            self._capacity = asyncio.get_running_loop().create_future()
            await self._capacity

    async def drain(self) -> None:
        """Wait until no record waits any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel the tasks of the waiting records at an early end of the run.

        The task that calls this method is not cancelled.
        """
        self.ending = True
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    async def end(self) -> None:
        """Cancel the waiting records, and wait for the end of their tasks."""
        self.ending = True
        while self._tasks:
            self.cancel()
            # If this wait is cancelled, it is repeated, because functions of the run are still running.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._tasks)


class Gate:
    """The position of a record among the waiting records of a step.

    Attributes:
        before: the gate of the previous record; None if no previous record still waits at the step.
        passed: is set when this record and all earlier records have passed the step.
    """

    __slots__ = ("before", "passed")

    def __init__(self, before: Gate | None) -> None:
        self.before = before if before is not None and not before.passed.done() else None
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait until the previous record has passed the step."""
        if self.before is not None:
            await asyncio.shield(self.before.passed)

    def open(self) -> None:
        """Let the next record pass the step, as soon as the previous record has passed the step."""
        if self.before is not None and not self.before.passed.done():
            self.before.passed.add_done_callback(lambda _: self._set())
        else:
            self._set()

    def _set(self) -> None:
        self.before = None  # without this, each gate would keep all earlier gates alive
        if not self.passed.done():
            self.passed.set_result(None)
