"""Single flight: identical questions that are asked at the same time share one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from qa_cluster.tracing import step

_Result = TypeVar("_Result")


class _Flight(Generic[_Result]):
    """A running task, and how many callers wait for it."""

    def __init__(self, task: asyncio.Task[_Result]) -> None:
        self.task = task
        self.callers = 0


class SingleFlight(Generic[_Result]):
    """Runs one task for each key at a time; `len()` is the number of running tasks.

    >>> flights = SingleFlight[bytes]()
    >>> await asyncio.gather(flights.run("k", work), flights.run("k", work))  # `work` runs once
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[_Result]] = {}
        self._alone = 0

    def __len__(self) -> int:
        return len(self._flights)

    async def run(
        self, key: Hashable, work: Callable[[], Coroutine[Any, Any, _Result]], *, joint: bool = True
    ) -> _Result:
        """Join the running task of this key or start one, and return its result.

        `work` returns the coroutine of a new task. The task is cancelled when all its callers have been cancelled. If
        `joint` is false, the caller does not join a running task, and no other caller joins the task of this caller.
        """
        self._alone += not joint
        key = (key, 0 if joint else self._alone)
        flight = self._flights.get(key)
        traced: AbstractContextManager[Any] = nullcontext()
        if flight is None:
            flight = self._start(key, work)
        else:
            traced = step("shared", {"qa.shared": True})  # the trace of the first caller contains the task's steps
        flight.callers += 1
        try:
            with traced:
                return await asyncio.shield(flight.task)
        finally:
            flight.callers -= 1
            if flight.callers == 0 and not flight.task.done():
                self._flights.pop(key, None)
                flight.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Flight[_Result]:
        flight = self._flights[key] = _Flight(asyncio.create_task(work()))

        def done(task: asyncio.Task[_Result]) -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]
            if not task.cancelled():
                task.exception()  # without this call, asyncio logs an error that no caller waits for

        flight.task.add_done_callback(done)
        return flight
