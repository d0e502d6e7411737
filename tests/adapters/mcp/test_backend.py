"""The limit of concurrent calls, and their deadline, without a service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qa_cluster.client import DeadlineExceeded, QueueFull
from qa_cluster.config import Settings
from qa_cluster.integrations.mcp.backend import Backend, BackendOptions


async def test_calls_beyond_the_limits_wait_or_are_refused() -> None:
    backend = Backend(BackendOptions(Settings(mcp_max_calls=2)))
    running = most = 0
    release = asyncio.Event()

    async def work(source: Any, seconds: float) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return 1

    calls = [asyncio.ensure_future(backend.call([], work)) for _ in range(15)]
    await asyncio.sleep(0.1)
    assert running == 2
    refused = [call.exception() for call in calls if call.done()]
    assert len(refused) == 5 and all(isinstance(error, QueueFull) for error in refused)
    release.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done.count(1) == 10 and most == 2
    assert await backend.call([], work) == 1
    await backend.aclose()


async def test_the_deadline_applies_to_waiting_and_running_calls() -> None:
    backend = Backend(BackendOptions(Settings(mcp_max_calls=1, mcp_timeout_ms=1000)))

    async def work(source: Any, seconds: float) -> None:
        assert seconds <= 1
        await asyncio.sleep(60)

    found = await asyncio.gather(*(backend.call([], work) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [DeadlineExceeded] * 3
    assert "mcp_timeout_ms" in str(found[0])

    async def quick(source: Any, seconds: float) -> str:
        return "free again"

    assert await backend.call([], quick) == "free again"
    await backend.aclose()


async def test_a_cancelled_call_frees_its_slot() -> None:
    backend = Backend(BackendOptions(Settings(mcp_max_calls=1)))

    async def work(source: Any, seconds: float) -> None:
        await asyncio.sleep(60)

    calls = [asyncio.ensure_future(backend.call([], work)) for _ in range(2)]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await backend.call([], work)
    await backend.aclose()
