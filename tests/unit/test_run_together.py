"""Coroutines that run together, as in `put_documents`: only the first error is raised, and the task stays usable."""

from __future__ import annotations

import asyncio

import pytest

from qa_cluster.clients.async_cluster_client import run_together
from tests.harness.cancellation import uncancelled


async def fails(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    raise ValueError("wrong")


async def test_the_first_error_ends_all_and_is_raised_alone() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Future()
        finally:
            ended.append("endless")

    with pytest.raises(ValueError, match="wrong"):
        await run_together([endless(), fails(), endless()])
    assert ended == ["endless"] * 2


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_after_an_error_the_calling_task_is_not_marked_as_cancelled(seconds: float) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(ValueError, match="wrong"):
        await run_together([fails(seconds), fails()])
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Future()


async def test_a_cancellation_from_outside_ends_all() -> None:
    together = asyncio.create_task(run_together([asyncio.sleep(0), asyncio.sleep(600)]))
    await asyncio.sleep(0.01)
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together


async def test_no_coroutines_are_no_error() -> None:
    await run_together([])


async def test_a_test_that_is_cancelled_fails_alone() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def marked() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="was cancelled"):
        await uncancelled(cancelled)()
    with pytest.raises(AssertionError, match="marked as cancelled"):
        await uncancelled(marked)()
