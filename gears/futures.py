"""`gearsFuture`: an object a step returns to suspend its record until someone continues it, from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from .executions import current
from .failures import GearsError
from .runtime import current_runtime


class GearsFuture:
    """Suspends a step; `continueRun` and `continueFailed` give its result.

    >>> def step(record):  # doctest: +SKIP
    ...     future = gearsFuture()
    ...     threading.Thread(target=lambda: future.continueRun(slow(record))).start()
    ...     return future
    """

    def __init__(self) -> None:
        if current.get() is None:
            raise GearsError("Future object can only be created inside certain execution steps")
        self._loop = current_runtime().loop
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._continued = False

    def __await__(self) -> Generator[Any, None, Any]:
        return self._future.__await__()

    def continueRun(self, value: Any) -> None:
        """The step's result is `value`."""
        self._once()
        self._loop.call_soon_threadsafe(self._settle, value, None)

    def continueFailed(self, message: object = None) -> None:
        """The step failed."""
        self._once()
        self._loop.call_soon_threadsafe(self._settle, None, GearsError(str(message or "Failed on continue")))

    def _once(self) -> None:
        if self._continued:
            raise GearsError("Can not continue with the same future twice")
        self._continued = True

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)


_tasks: set[asyncio.Task[Any]] = set()


def run_coroutine(coroutine: Coroutine[Any, Any, Any], f: Any = None, delay: float = 0) -> asyncio.Future[Any]:
    """Schedule a coroutine on the worker's loop, from any thread; `f`, a future or None, gets its outcome."""
    loop = current_runtime().loop
    outcome: asyncio.Future[Any] = f if f is not None else loop.create_future()

    async def work() -> None:
        try:
            if delay:
                await asyncio.sleep(delay)
            value = await coroutine
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except BaseException as error:  # SystemExit of a function must not end the worker
            if not outcome.done():
                outcome.set_exception(error if isinstance(error, Exception) else GearsError(repr(error)))
            return
        if not outcome.done():
            outcome.set_result(value)

    def start() -> None:
        task = loop.create_task(work())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    loop.call_soon_threadsafe(start)
    return outcome


def create_future() -> asyncio.Future[Any]:
    """A future of the worker's event loop."""
    return current_runtime().loop.create_future()


def set_future_results(future: asyncio.Future[Any], value: Any) -> None:
    """Give a future its result, from any thread."""
    current_runtime().loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))


def set_future_exception(future: asyncio.Future[Any], error: object) -> None:
    """Fail a future, from any thread."""
    failure = error if isinstance(error, Exception) else GearsError(str(error))
    current_runtime().loop.call_soon_threadsafe(lambda: None if future.done() else future.set_exception(failure))
