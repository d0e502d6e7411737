"""Calls `onRegistered`, the function of a script that runs when a registration becomes active on a shard.

`onRegistered` runs on a thread. Its failures are logged. Runs of a registration's functions wait until its
`onRegistered` has returned. If `onRegistered` is a coroutine function, the runs do not wait for the coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

from ...shard.failures import error_line
from ..calling.strands import Strand
from ..calling.threads import FunctionPool, TooManyCalls
from ..host.executions import Execution, current
from ..host.script_host import ScriptHost
from ..runs.coroutines import settled
from .sessions import Registration, ScriptSession

logger = logging.getLogger(__name__)


class OnRegisteredCalls:
    """The calls of `onRegistered` on this shard."""

    def __init__(self, host: ScriptHost) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        # for each registration id: a future that ends when `onRegistered` has returned, so that functions may start
        self._returned: dict[str, asyncio.Future[None]] = {}

    def call(self, session: ScriptSession | None, registration: Registration) -> None:
        """Start to call the `onRegistered` of a registration, if the registration has one. Do not wait for the call.

        `session` is the session of the registration; None: unknown.
        """
        function = registration.on_registered
        if function is None:
            return
        execution = Execution(registration.id, session, pool=FunctionPool.BACKGROUND, owner=registration.id)
        token = current.set(execution)
        try:
            returned = self._returned[registration.id] = self._host.loop.create_future()
            strand = execution.strand = Strand.of(self._host.threads, execution.pool, execution.owner)
            work = _logged(registration.id, strand.run(self._on_strand(function, registration.id, returned)))
            task = asyncio.get_running_loop().create_task(work)  # the task copies the context with this execution
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._note_returned(registration.id, returned))
        finally:
            current.reset(token)

    async def _on_strand(self, function: Any, registration_id: str, returned: asyncio.Future[None]) -> None:
        outcome = function()
        self._host.loop.call_soon_threadsafe(self._note_returned, registration_id, returned)
        if inspect.iscoroutine(outcome):
            await settled(outcome)

    def _note_returned(self, registration_id: str, returned: asyncio.Future[None]) -> None:
        if not returned.done():
            returned.set_result(None)
        if self._returned.get(registration_id) is returned:
            del self._returned[registration_id]

    async def until_returned(self, registration_id: str) -> None:
        """Wait until no call of a registration's `onRegistered` is running.

        After this, the functions of the registration may start.
        """
        while (returned := self._returned.get(registration_id)) is not None:
            await asyncio.shield(returned)


async def _logged(registration_id: str, work: Any) -> None:
    try:
        await work
    except asyncio.CancelledError:
        raise
    except TooManyCalls as error:
        logger.error("onRegistered of %s was not called: %s", registration_id, error)
    except BaseException as error:  # also SystemExit: a function must not end the worker
        logger.error("onRegistered of %s failed: %s", registration_id, error_line(error))
