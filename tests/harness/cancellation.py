"""Prevents the cancellation of a test from ending the task in which anyio runs all coroutine tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


def uncancelled(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that fails if it is cancelled, or if it leaves its task marked as cancelled.

    A cancellation would end the shared task, and all later tests would fail. In a task that is marked as cancelled, a
    later `asyncio.timeout` raises CancelledError instead of TimeoutError (Python 3.11.2).
    """

    @wraps(test)
    async def run(*arguments: Any, **fixtures: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await test(*arguments, **fixtures)
        except asyncio.CancelledError as error:
            raise AssertionError("the test was cancelled") from error
        finally:
            left = task.cancelling()
            for _ in range(left):
                task.uncancel()
        assert not left, "the test leaves its task marked as cancelled, so that later timeouts raise CancelledError"

    return run
