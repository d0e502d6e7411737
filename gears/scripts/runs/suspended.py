"""The waiting records of a run. Each record has a task, so that several coroutines and futures run in parallel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from ..host.executions import Execution

MAX_SUSPENDED = 1024
"""The source pauses at this number of records that wait for coroutines or earlier records."""
MAX_FUTURES = 100_000
"""The source pauses at this total of waiting records. Functions may collect futures to continue them together."""


class Suspended:
    """The tasks of one stage's waiting records. Their coroutines store errors and do not raise them."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._tasks: set[asyncio.Task[None]] = set()
        self._capacity: asyncio.Future[None] | None = None
        self.futures = 0  # the number of records that wait for a GearsFuture
        self.ending = False

    @property
    def full(self) -> bool:
        """Whether the limit of waiting records is reached."""
        return len(self._tasks) >= min(MAX_SUSPENDED + self.futures, MAX_FUTURES)

    def add(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that continues a record."""
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
        """Cancel the waiting records at an early end of the run."""
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
            # continues to wait after a second cancellation, because functions of the run are still running
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._tasks)


class Gate:
    """The position of a record among the waiting records of a step.

    `passed` is set when the record reaches the next step.
    """

    __slots__ = ("before", "passed")

    def __init__(self, before: Gate | None) -> None:
        self.before = before if before is not None and not before.passed.done() else None
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait until the previous record has passed."""
        if self.before is not None:
            await asyncio.shield(self.before.passed)

    def open(self) -> None:
        """Let the next record pass, as soon as the previous record has passed."""
        if self.before is not None and not self.before.passed.done():
            self.before.passed.add_done_callback(lambda _: self._set())
        else:
            self._set()

    def _set(self) -> None:
        self.before = None  # without this, each gate would keep all earlier gates alive
        if not self.passed.done():
            self.passed.set_result(None)
