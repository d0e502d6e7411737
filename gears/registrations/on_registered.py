"""Calls `onRegistered`, a script's function that runs when a registration begins on a shard; failures are logged."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from typing import Any

from ..shard.atomic import guarded
from ..shard.executions import Execution, current
from ..shard.failures import error_line
from ..shard.host import Host
from .sessions import Registration, ScriptSession

logger = logging.getLogger(__name__)


def call_on_registered(
    host: Host, session: ScriptSession | None, registration: Registration
) -> asyncio.Task[None] | None:
    """Call it; return the task of its coroutine, or None if it has finished."""
    if registration.on_registered is None:
        return None
    token = current.set(Execution(registration.id, session))
    try:
        outcome = registration.on_registered()
        # the task is made here so that it copies the context with this execution
        return _task(registration.id, guarded(outcome, host.atomic)) if inspect.iscoroutine(outcome) else None
    except BaseException as error:  # also SystemExit: a function must not end the worker
        logger.error("onRegistered of %s failed: %s", registration.id, error_line(error))
        return None
    finally:
        current.reset(token)


def _task(registration_id: str, outcome: Awaitable[Any]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(_finish(registration_id, outcome))


async def _finish(registration_id: str, outcome: Awaitable[Any]) -> None:
    try:
        await outcome
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        logger.error("onRegistered of %s failed: %s", registration_id, error_line(error))
