"""`registerTE`: functions that run at intervals while their session exists on this shard.

A timer belongs to the worker that has started it. A script's timer runs only on the shard that ran the script, until
this worker ends. A timer of `onRegistered` runs on every shard, and starts again with each new worker.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...shard.failures import GearsError, error_line
from ..calling.strands import Strand
from ..calling.threads import FunctionPool
from ..host.executions import Execution, current
from ..host.script_host import ScriptHost
from ..runs.coroutines import settled
from .sessions import ScriptSession

logger = logging.getLogger(__name__)
MAX_TIMERS = 1000
MIN_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Timer:
    """A running timer. `owner` is the id of the execution, registration or session that started it."""

    session: ScriptSession
    owner: str
    task: asyncio.Task[None]


class Timers:
    """All timers of the worker."""

    def __init__(self, host: ScriptHost) -> None:
        self._host = host
        self._timers: list[Timer] = []

    def start(self, session: ScriptSession, seconds: float, function: Callable[[], Any], owner: str, user: str) -> None:
        """Call `function` every `seconds`, with the rights of `user` (empty: the worker's).

        A call starts `seconds` after the end of the previous call. `owner` is the id of the execution, registration or
        session that starts the timer. Raises GearsError if an argument is invalid, or if the worker already has
        `MAX_TIMERS` timers.
        """
        check_timer(seconds, function)
        if len(self._timers) >= MAX_TIMERS:
            raise GearsError(f"ERR too many timers: limit {MAX_TIMERS}, unregister the sessions that started them")
        task = self._host.loop.create_task(self._repeat(session, seconds, function, user))
        self._timers.append(Timer(session, owner, task))

    def stop_session(self, session_id: str) -> None:
        """End the timers of all versions of a session."""
        self._stop(lambda timer: timer.session.id == session_id)

    def stop_earlier(self, session: ScriptSession) -> None:
        """End the timers of earlier versions of a session, which have the same id."""
        self._stop(lambda timer: timer.session.id == session.id and timer.session is not session)

    def stop_dead(self) -> None:
        """End the timers of sessions that were replaced or have lost their last registration (`ScriptSession.dead`)."""
        self._stop(lambda timer: timer.session.dead)

    def stop_owned(self, owner: str) -> None:
        """End the timers that the execution, registration or session with the id `owner` started."""
        self._stop(lambda timer: timer.owner == owner)

    def _stop(self, ends: Callable[[Timer], bool]) -> None:
        for timer in self._timers:
            if ends(timer):
                timer.task.cancel()
        self._timers = [timer for timer in self._timers if not ends(timer)]

    def sessions(self) -> list[ScriptSession]:
        """Return the session of each timer. A session with several timers occurs several times."""
        return [timer.session for timer in self._timers]

    async def _repeat(self, session: ScriptSession, seconds: float, function: Callable[[], Any], user: str) -> None:
        current.set(None)
        while True:
            await asyncio.sleep(seconds)
            execution = Execution(self._host.ids.next(), session, user=user, pool=FunctionPool.BACKGROUND)
            current.set(execution)
            try:
                execution.strand = Strand.of(self._host.threads, execution.pool, session.id)
                await execution.strand.run(_call(function))
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # also SystemExit: a function must not end the worker
                logger.error("a timer of session %s failed: %s", session.id, error_line(error))


async def _call(function: Callable[[], Any]) -> None:
    outcome = function()
    if inspect.iscoroutine(outcome):
        await settled(outcome)


def check_timer(seconds: object, function: object) -> None:
    """Raise GearsError if `seconds` is not a valid interval of a timer, or `function` is not a function."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= MIN_SECONDS:
        raise GearsError(f"registerTE needs a number of seconds of at least {MIN_SECONDS}, got {seconds!r}")
    if not callable(function):
        raise GearsError("argument must be a function")
