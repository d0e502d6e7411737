"""Fixtures of the scripted cluster: one for the whole run, empty and well-behaved again for every test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.client.scripted_cluster import ScriptedCluster, scripted_cluster


@pytest.fixture(scope="session")
async def shared_cluster() -> AsyncIterator[ScriptedCluster]:
    """One for all tests, which keeps their event loop: its proxies serve while a test awaits something."""
    async with scripted_cluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: ScriptedCluster) -> ScriptedCluster:
    """The cluster without documents or clients, its functions as written."""
    await shared_cluster.reset()
    return shared_cluster


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if value is True or (value is not False and await value):
                return
            await asyncio.sleep(0.005)
