"""Calls `onRegistered`, a script's function that runs when a registration begins on a shard; failures are logged.

qa-cluster's own are called at once, users' on a thread. The functions of a registration begin when its `onRegistered`
has returned; if it is a coroutine function, its coroutine goes on in the background.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

from ..calling.strands import Strand
from ..calling.threads import Lane, TooManyCalls
from ..runs.coroutines import settled
from ..runs.own import is_own
from ..shard.executions import Execution, current
from ..shard.failures import error_line
from ..shard.host import Host
from .sessions import Registration, ScriptSession

logger = logging.getLogger(__name__)


class Beginnings:
    """The calls of `onRegistered` on this shard."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        # by registration: its functions wait for this
        self._begun: dict[str, asyncio.Future[None]] = {}

    def call(self, session: ScriptSession | None, registration: Registration) -> None:
        """Call the function of a registration, if it has one."""
        function = registration.on_registered
        if function is None:
            return
        own = is_own(function)
        execution = Execution(registration.id, session, lane=Lane.BACKGROUND, owner=registration.id, on_loop=own)
        token = current.set(execution)
        try:
            if own:
                outcome = function()
                if inspect.iscoroutine(outcome):
                    self._spawn(registration.id, settled(outcome, self._host.atomic))
            else:
                begun = self._begun[registration.id] = self._host.loop.create_future()
                strand = execution.strand = Strand.of(self._host.threads, execution.lane, execution.owner)
                task = self._spawn(registration.id, strand.run(self._on_strand(function, registration.id, begun)))
                task.add_done_callback(lambda _: self._note_begun(registration.id, begun))
        except BaseException as error:  # also SystemExit: a function must not end the worker
            logger.error("onRegistered of %s failed: %s", registration.id, error_line(error))
        finally:
            current.reset(token)

    async def _on_strand(self, function: Any, registration_id: str, begun: asyncio.Future[None]) -> None:
        outcome = function()
        self._host.loop.call_soon_threadsafe(self._note_begun, registration_id, begun)
        if inspect.iscoroutine(outcome):
            await settled(outcome, self._host.atomic)

    def _note_begun(self, registration_id: str, begun: asyncio.Future[None]) -> None:
        if not begun.done():
            begun.set_result(None)
        if self._begun.get(registration_id) is begun:
            del self._begun[registration_id]

    async def over(self, registration_id: str) -> None:
        """Return when the registration's functions may begin."""
        while (begun := self._begun.get(registration_id)) is not None:
            await asyncio.shield(begun)

    def _spawn(self, registration_id: str, work: Any) -> asyncio.Task[None]:
        # the task is made here so that it copies the context with this execution
        task = asyncio.get_running_loop().create_task(_finish(registration_id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _finish(registration_id: str, work: Any) -> None:
    try:
        await work
    except asyncio.CancelledError:
        raise
    except TooManyCalls as error:
        logger.error("onRegistered of %s was not called: %s", registration_id, error)
    except BaseException as error:
        logger.error("onRegistered of %s failed: %s", registration_id, error_line(error))
