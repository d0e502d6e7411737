"""Strands: event loops without threads of their own.

A strand runs the functions of one execution on threads of a pool. The execution is a run of a pipeline, or one call of
a script, of a timer or of `onRegistered`.

A strand has a thread only while one of its callbacks runs, so a record of the pipeline that waits, for example for a
future, needs no thread. Callbacks run one after the other, so the code of an execution needs no locks. A strand
supports only tasks, futures and timers. Code with sockets and processes runs on the event loop of coroutines
(`coroutines.py`).

A *turn* is one call of the strand on a thread of the pool. In a turn, the strand runs several callbacks.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .sections import Aborted, CodeSection
from .threads import AGAIN_SECONDS, Call, FunctionPool, FunctionThreads, TooManyCalls

logger = logging.getLogger(__name__)
MAX_TURN_SECONDS = 0.05


class Strand(asyncio.AbstractEventLoop):
    """The event loop of one execution. Only code on the worker's event loop calls `run`, once for each strand."""

    def __init__(self, threads: FunctionThreads, pool: FunctionPool, owner: str) -> None:
        self._threads = threads
        self._home = threads.loop
        self._pool = pool
        self._owner = owner
        self._ready: deque[asyncio.Handle] = deque()
        self._lock = threading.Lock()
        self._scheduled = False
        self._call: Call | None = None
        self._work: Coroutine[Any, Any, Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._outcome: asyncio.Future[tuple[Any, BaseException | None]] | None = None
        self._over: asyncio.Future[None] = self._home.create_future()

    @classmethod
    def of(cls, threads: FunctionThreads, pool: FunctionPool, owner: str) -> Strand:
        """Create a strand on the threads of a pool.

        Type checkers treat the class as abstract, so callers use this method instead of the constructor.

        Args:
            threads: all function threads of the worker.
            pool: the pool whose threads the strand uses.
            owner: the id of the registration, session or execution that the strand works for. The calls of all strands
                with the same owner count together against the owner's half of the pool's limit (`threads.py`).
        """
        return cls(threads, pool, owner)

    # ---- For the worker's event loop ----

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the work on threads, in the caller's context. Return the result of the work, or raise its error.

        If the caller is cancelled, raise CancelledError at once, and end the work in the background. Raise TooManyCalls
        without running the work if the queue of the pool is full.
        """
        try:
            self._threads.check_capacity(self._pool)
        except TooManyCalls:
            work.close()
            raise
        self._work = work
        self._outcome = self._home.create_future()
        self.call_soon_threadsafe(self._begin, work, context=contextvars.copy_context())
        try:
            value, error = await self._outcome
        except asyncio.CancelledError:
            self._end(0.0)
            raise
        if error is not None:
            raise error
        return value

    async def until_ended(self) -> None:
        """Wait until the work has also ended on its threads.

        After an abort, the end on the threads may be later than the end of `run`. If `run` has not started any work,
        return at once.
        """
        if self._outcome is not None:
            await asyncio.shield(self._over)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = self.create_task(captured(work))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        result = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        self._home.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: tuple[Any, BaseException | None]) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(result)
        if not self._over.done():
            self._over.set_result(None)
        if inspect.iscoroutine(self._work) and inspect.getcoroutinestate(self._work) == inspect.CORO_CREATED:
            self._work.close()  # without this, Python would warn that the coroutine was never awaited
        # the history refers to executions, and these refer to their strands, which must not keep functions' objects
        # alive
        self._work = self._task = self._call = None

    def _end(self, waited: float) -> None:
        """Interrupt running code, and cancel a waiting task. Work that still waits for its first thread ends at once.

        This method repeats itself every `AGAIN_SECONDS` until the work has ended. `waited` is the number of seconds
        since the first call.
        """
        if self._over.done():
            return
        call = self._call
        if self._task is None and call is not None and self._threads.withdraw(call):
            self._ready.clear()  # the work has not begun
            if self._work is not None:
                self._work.close()
            self._finish((None, asyncio.CancelledError()))
            return
        if call is not None:
            self._threads.interrupt(call, waited)
        self.call_soon_threadsafe(self._cancel)
        self._home.call_later(AGAIN_SECONDS, self._end, waited + AGAIN_SECONDS)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # ---- The turns ----

    def _schedule(self) -> None:
        """Request a thread for a turn (`_turn`). Call this method on the worker's event loop."""
        self._call = self._threads.submit(self._pool, self._owner, self._turn)

    def _turn(self, section: CodeSection) -> None:
        """Run the ready callbacks on a function thread: one turn.

        After about `MAX_TURN_SECONDS`, or after an interruption, the turn ends, and the remaining callbacks wait for
        the next turn. `section` is the section of this call, in which the callbacks run.
        """
        asyncio._set_running_loop(self)
        try:
            self._run_ready(section)
        finally:
            asyncio._set_running_loop(None)

    def _run_ready(self, section: CodeSection) -> None:
        until = time.monotonic() + MAX_TURN_SECONDS
        while True:
            with self._lock:
                if not self._ready:
                    self._scheduled = False
                    return
                if time.monotonic() > until or section.interrupted:
                    break
                handle = self._ready.popleft()
            try:
                if not handle.cancelled():
                    section.run(handle._context.run, handle._callback, *handle._args)  # type: ignore[attr-defined]
            except Aborted:
                # `Aborted` was raised in code of asyncio, before or after the code of a task, so the task has not got
                # it. The task may now wait forever. So the strand's main task is cancelled, and the caller of `run`
                # gets CancelledError.
                self._cancel()
                self._home.call_soon_threadsafe(self._finish, (None, asyncio.CancelledError()))
            except BaseException as error:  # raised by a task or a callback that the function created
                logger.error("a function raised %s: ignored", type(error).__name__)
            del handle
        self._home.call_soon_threadsafe(self._schedule)

    def _add(self, handle: asyncio.Handle) -> None:
        with self._lock:
            self._ready.append(handle)
            if self._scheduled:
                return
            self._scheduled = True
        if threading.current_thread() is threading.main_thread():
            self._schedule()
        else:
            self._home.call_soon_threadsafe(self._schedule)

    # ---- The interface for asyncio's tasks and futures ----

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in a turn, after the callbacks that are ready already. Any thread may call this method."""
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback when `time()` reaches `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self._add(handle)

        self._home.call_soon_threadsafe(lambda: self._home.call_later(max(0.0, when - self.time()), due))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing. asyncio calls this method after a timer was cancelled.

        `due` in `call_at` checks whether the timer was cancelled.
        """

    def time(self) -> float:
        """Return the current time of the clock for `call_at`, in seconds."""
        return time.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this strand."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Start a task that runs a coroutine on this strand."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function in an executor of the worker's event loop; return a future of this strand for the result.

        None as `executor` means the default thread pool of the worker's event loop.
        """
        outcome: asyncio.Future[Any] = self.create_future()

        def submit() -> None:
            work = self._home.run_in_executor(executor, func, *args)
            asyncio.ensure_future(work).add_done_callback(copy)

        def copy(done: asyncio.Future[Any]) -> None:
            self.call_soon_threadsafe(copy_outcome, done, outcome)

        self._home.call_soon_threadsafe(submit)
        return outcome

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode is off."""
        return False

    def is_running(self) -> bool:
        """Return whether the strand has a thread or waits for a thread."""
        return self._scheduled

    def is_closed(self) -> bool:
        """Return False: a strand is never closed."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass an unhandled error of a task to the exception handler of the worker's event loop."""
        self._home.call_exception_handler(context)


def copy_outcome(done: asyncio.Future[Any], to: asyncio.Future[Any]) -> None:
    """Give the future `to` the outcome of the finished future `done`. Do nothing if `to` already has an outcome."""
    if to.done():
        return
    if done.cancelled():
        to.cancel()
    elif (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())


async def captured(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return (result, None), or (None, error) if the work fails. Raise CancelledError if the work is cancelled.

    Without this function, a task would raise SystemExit or KeyboardInterrupt in its event loop.
    """
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
