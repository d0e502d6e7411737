"""The waiting records of a run. Each is a task, so that several coroutines and futures of an execution run at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from ..host.executions import Execution

MAX_SUSPENDED = 1024
"""A source continues while fewer records of its run wait for coroutines and for earlier records."""
MAX_FUTURES = 100_000
"""A source continues while fewer records wait in all. Functions may collect futures and continue them together."""


class Suspended:
    """The tasks of one stage's waiting records. Their coroutines store their errors, so they do not raise."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._tasks: set[asyncio.Task[None]] = set()
        self._capacity: asyncio.Future[None] | None = None
        self.futures = 0  # how many of the records wait for a GearsFuture
        self.ending = False

    @property
    def full(self) -> bool:
        """Whether no more records should start to wait."""
        return len(self._tasks) >= min(MAX_SUSPENDED + self.futures, MAX_FUTURES)

    def add(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in which a record continues."""
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
        """Wait until another record may start to wait."""
        while self.full:
            self._capacity = asyncio.get_running_loop().create_future()
            await self._capacity

    async def drain(self) -> None:
        """Return when no record waits any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel the waiting records, because the run ends early."""
        self.ending = True
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    async def end(self) -> None:
        """Cancel the waiting records, and return when their tasks have ended."""
        self.ending = True
        while self._tasks:
            self.cancel()
            # even if the run is cancelled again, this waits, because its functions are still running
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._tasks)


class Gate:
    """The position of a record among the records that wait at a step.

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
        self.before = None  # otherwise every gate would keep all earlier gates alive
        if not self.passed.done():
            self.passed.set_result(None)
