"""Awaits coroutines and futures that user functions return.

Coroutines run on the loop of the coroutines (`calling/coroutines.py`), not on the worker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Coroutine
from typing import Any

from ..calling.sections import CodeSection
from ..calling.strands import captured, copy_outcome
from ..calling.threads import AGAIN_SECONDS
from ..host.atomic import guarded
from ..host.script_host import ScriptHost, current_host

logger = logging.getLogger(__name__)
STUCK_SECONDS = 10.0


async def settled(value: Any) -> Any:
    """Await a coroutine, a future or another awaitable object of a user function; return its result or raise its error.

    Everything except an asyncio future runs on the loop of the coroutines.
    """
    if asyncio.isfuture(value):
        return await _of_other_loop(value)
    work = _Coroutine(current_host(), value)
    del value  # a reference here would keep a GearsFuture alive that the function can no longer continue
    return await work.result()


async def _of_other_loop(future: asyncio.Future[Any]) -> Any:
    here, there = asyncio.get_running_loop(), future.get_loop()
    if here is there:
        return await future
    copied: asyncio.Future[Any] = here.create_future()
    there.call_soon_threadsafe(
        future.add_done_callback, lambda done: here.call_soon_threadsafe(copy_outcome, done, copied)
    )
    try:
        return await copied
    except asyncio.CancelledError:
        there.call_soon_threadsafe(future.cancel)
        raise


class _Coroutine:
    """A coroutine of a function. It runs on the loop of the coroutines, and a strand awaits it."""

    def __init__(self, host: ScriptHost, value: Any) -> None:
        self._host = host
        self._there = host.coroutines.loop
        self._here = asyncio.get_running_loop()
        self._section = CodeSection()
        self._outcome: asyncio.Future[tuple[Any, BaseException | None]] = self._here.create_future()
        self._ended = self._cancelled = False
        self._task: asyncio.Task[tuple[Any, BaseException | None]] | None = None
        if inspect.iscoroutine(value):
            value = guarded(value, host.atomic, self._section)
        self._there.call_soon_threadsafe(self._start, captured(value))

    def _start(self, work: Coroutine[Any, Any, tuple[Any, BaseException | None]]) -> None:
        self._task = self._there.create_task(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
        self._ended = True
        result = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        self._here.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: tuple[Any, BaseException | None]) -> None:
        if not self._outcome.done():
            self._outcome.set_result(result)

    async def result(self) -> Any:
        """Return the result of the coroutine or raise its error.

        If the caller is cancelled, end the coroutine (`_end`), wait for its end, and raise CancelledError.
        """
        try:
            value, error = await asyncio.shield(self._outcome)
        except asyncio.CancelledError:
            self._host.loop.call_soon_threadsafe(self._end, 0.0)
            while not self._outcome.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({self._outcome})
            raise
        if error is not None:
            raise error
        return value

    def _end(self, waited: float) -> None:
        """Cancel a waiting coroutine, or interrupt a running coroutine.

        This method repeats itself every `AGAIN_SECONDS` until the coroutine has ended. `waited` is the number of
        seconds since the first call. If the coroutine still runs after `STUCK_SECONDS`, the worker ends and is
        replaced.

        After an interruption, the coroutine has `AGAIN_SECONDS` for its clean-up before it is interrupted again. A
        coroutine that waits is cancelled once, so its clean-up may wait, too. After `STUCK_SECONDS`, each repetition
        cancels the coroutine.
        """
        if self._ended:
            return
        interrupted = self._section.interrupt()
        if not (interrupted or self._cancelled) or waited >= STUCK_SECONDS:
            self._cancelled = True
            self._there.call_soon_threadsafe(self._cancel)
        if waited >= STUCK_SECONDS and self._section.running:
            self._host.threads.give_up("an aborted coroutine does not end and blocks all other coroutines")
        self._host.loop.call_later(AGAIN_SECONDS, self._end, waited + AGAIN_SECONDS)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
