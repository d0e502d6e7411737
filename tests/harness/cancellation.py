"""Keeps the cancellation of one test away from the other tests: anyio runs all coroutines of tests in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


def uncancelled(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that fails if it is cancelled, or if it leaves its task marked as cancelled.

    A cancelled task would end, and each later test would fail without a fault of its own. In a task that is marked as
    cancelled, a later `asyncio.timeout` raises CancelledError instead of TimeoutError (Python 3.11.2).
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
