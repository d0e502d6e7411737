"""The records of a run that wait: each is a task, so that the coroutines and futures of one execution run together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from ..host.executions import Execution

# a source goes on reading while fewer records of its run wait; futures that are continued in batches need smaller ones
MAX_SUSPENDED = 1024


class Suspended:
    """The tasks of one stage's waiting records. Their coroutines keep their own errors, and so do not raise."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._tasks: set[asyncio.Task[None]] = set()
        self._room: asyncio.Future[None] | None = None
        self.ending = False

    @property
    def full(self) -> bool:
        """Whether no more records should begin to wait."""
        return len(self._tasks) >= MAX_SUSPENDED

    def add(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a record go on by itself."""
        task = asyncio.get_running_loop().create_task(rest)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._execution.beats += 1  # the run has made progress
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def room(self) -> None:
        """Return when another record may begin to wait."""
        while self.full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def drain(self) -> None:
        """Return when no record waits."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel what still waits, because the run ends early."""
        self.ending = True
        here = asyncio.current_task()
        for task in self._tasks:
            if task is not here:
                task.cancel()

    async def end(self) -> None:
        """Cancel what still waits, and return when nothing of it runs any more."""
        self.ending = True
        while self._tasks:
            self.cancel()
            # a run that is cancelled once more goes on waiting: its functions still run
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._tasks)


class Gate:
    """A record's place in the order of those that wait at one step; `passed` once it has gone on to the next step."""

    __slots__ = ("before", "passed")

    def __init__(self, before: Gate | None) -> None:
        self.before = before if before is not None and not before.passed.done() else None
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Return when the record before has passed."""
        if self.before is not None:
            await asyncio.shield(self.before.passed)

    def open(self) -> None:
        """Let the next record pass; if the one before has not passed yet, after that."""
        if self.before is not None and not self.before.passed.done():
            self.before.passed.add_done_callback(lambda _: self._set())
        else:
            self._set()

    def _set(self) -> None:
        self.before = None  # otherwise every gate would keep all those before it
        if not self.passed.done():
            self.passed.set_result(None)
