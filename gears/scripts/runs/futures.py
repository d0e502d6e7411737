"""Allows functions to work longer than their step: with futures that suspend a record, and with scheduled coroutines.

A coroutine that a function schedules belongs to the function's execution and has the rights of the execution. A hooked
command is a client's read of a missing key, which starts a registered function. The client of a hooked command gets its
reply after all coroutines that the function has scheduled have ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

from ...shard.failures import GearsError
from ..host.atomic import guarded
from ..host.executions import OUTSIDE, Execution, current
from ..host.script_host import current_host


def _deliver(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class StepSlot:
    """Records the future that a step has created. Each coroutine that a step returns has a separate slot.

    Attributes:
        step_future: a weak reference to the future; None if there is no future yet; OUTSIDE after the coroutine's end.
    """

    __slots__ = ("step_future",)

    def __init__(self) -> None:
        self.step_future: object = None


step_slot: ContextVar[StepSlot | None] = ContextVar("step_slot", default=None)


class GearsFuture:
    """Suspends the record of the step that returns this future.

    `continueRun` sets the result of the step, and `continueFailed` fails the step. Any thread may call one of the two
    methods once. If the future is freed before this call, the step fails.

    >>> def step(record):  # doctest: +SKIP
    ...     future = gearsFuture()
    ...     threading.Thread(target=lambda: future.continueRun(slow(record))).start()
    ...     return future
    """

    def __init__(self) -> None:
        # set before the checks, because __del__ also runs after a failed check
        self._continued = True
        self._execution = current.get()
        self._step = step_slot.get() or self._execution
        if self._execution is None or self._step is None or self._step.step_future is OUTSIDE:
            raise GearsError("Future object can only be created inside certain execution steps")
        if self._step.step_future is not None:
            raise GearsError("Can not create async record twice on the same step")
        self._step.step_future = weakref.ref(self)
        self._loop = current_host().coroutines.loop
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._continued = False

    def suspended(self) -> asyncio.Future[Any]:
        """Return the asyncio future for which the record of the step waits."""
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        if self._step is not None:
            self._step.step_future = None  # a coroutine may await several futures one after the other
        return self._future.__await__()

    def __del__(self) -> None:
        if not self._continued:
            self._settle(None, GearsError("Async record did not called continue"))

    def continueRun(self, value: Any) -> None:
        """Continue the record with `value` as the result of the step. Raise GearsError at a second call."""
        self._once()
        self._settle(value, None)

    def continueFailed(self, message: object = None) -> None:
        """Fail the step for its record, with `message` as the error. Raise GearsError at a second call."""
        self._once()
        self._settle(None, GearsError(str(message or "Failed on continue")))

    def _once(self) -> None:
        if self._continued:
            raise GearsError("Can not continue with the same future twice")
        self._continued = True

    def _settle(self, value: Any, error: Exception | None) -> None:
        self._loop.call_soon_threadsafe(_deliver, self._future, value, error)


class SessionHandle:
    """A reference to an execution (`getGearsSession`).

    The handle may exist longer than the call of the function that has requested it. While the handle exists, the
    execution counts as used (`Execution.hold`).
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        execution.hold()
        release = weakref.finalize(self, current_host().loop.call_soon_threadsafe, execution.release)
        release.atexit = False


def get_gears_session() -> SessionHandle | None:
    """Return a handle of the caller's execution, or None if the caller belongs to no execution.

    If a hooked command has started the execution, the client gets no reply while the handle exists.
    """
    execution = current.get()
    return SessionHandle(execution) if execution is not None else None


def set_gears_session(session: SessionHandle | None) -> None:
    """Make the current thread or coroutine part of the handle's execution.

    With None, remove the thread or coroutine from its execution.
    """
    current.set(session.execution if session is not None else None)


class GearsSession:
    """`with GearsSession(session):` runs a block as part of the execution from `getGearsSession`.

    If `session` is None, the block belongs to no execution.
    """

    def __init__(self, session: SessionHandle | None) -> None:
        self._session = session
        self._token: contextvars.Token[Execution | None] | None = None

    def __enter__(self) -> SessionHandle | None:
        self._token = current.set(self._session.execution if self._session is not None else None)
        return self._session

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            current.reset(self._token)


_tasks: set[asyncio.Task[Any]] = set()


def run_coroutine(
    coroutine: Coroutine[Any, Any, Any], f: Any = None, delay: float = 0, session: SessionHandle | None = None
) -> asyncio.Future[Any]:
    """Schedule a coroutine on the loop of the coroutines, from any thread. Return the future that gets the outcome.

    This future is `f`, or a new future if `f` is None. The coroutine starts after `delay` seconds. It is part of the
    execution of `session`, or of the caller's execution if `session` is None.
    """
    if not asyncio.iscoroutine(coroutine):
        raise GearsError(f"runCoroutine needs a coroutine, got {type(coroutine).__name__}")
    host = current_host()
    execution = session.execution if session is not None else current.get()
    loop = host.coroutines.loop
    outcome: asyncio.Future[Any] = f if f is not None else loop.create_future()
    if execution is not None:
        execution.hold()

    def start() -> None:
        current.set(execution)
        task = loop.create_task(_drive(coroutine, outcome, delay))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        if execution is not None:
            task.add_done_callback(lambda _: host.loop.call_soon_threadsafe(execution.release))

    loop.call_soon_threadsafe(start, context=contextvars.copy_context())
    return outcome


async def _drive(coroutine: Coroutine[Any, Any, Any], outcome: asyncio.Future[Any], delay: float) -> None:
    try:
        if delay:
            await asyncio.sleep(delay)
        value = await guarded(coroutine, current_host().atomic)
    except asyncio.CancelledError:
        outcome.get_loop().call_soon_threadsafe(outcome.cancel)
        raise
    except BaseException as error:  # SystemExit of a function must not end the worker
        set_future_exception(outcome, error if isinstance(error, Exception) else GearsError(repr(error)))
        return
    finally:
        coroutine.close()
    set_future_results(outcome, value)


def create_future() -> asyncio.Future[Any]:
    """Return a future of the loop of the coroutines."""
    return current_host().coroutines.loop.create_future()


def set_future_results(future: asyncio.Future[Any], value: Any) -> None:
    """Set the result of a future, from any thread. A future that already has an outcome keeps it."""
    future.get_loop().call_soon_threadsafe(_deliver, future, value, None)


def set_future_exception(future: asyncio.Future[Any], error: object) -> None:
    """Set the error of a future, from any thread. A future that already has an outcome keeps it.

    If `error` is not an exception, the future gets a GearsError with the text of `error`.
    """
    failure = error if isinstance(error, Exception) else GearsError(str(error))
    future.get_loop().call_soon_threadsafe(_deliver, future, None, failure)
