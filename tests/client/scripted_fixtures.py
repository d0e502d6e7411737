"""Fixtures of the scripted cluster: one for the whole run, empty and well-behaved again for every test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.client.scripted_cluster import ScriptedCluster, scripted_cluster


@pytest.fixture(scope="session")
async def shared_cluster(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScriptedCluster]:
    """Keeps one event loop for the whole run: the proxies of the cluster serve whatever test awaits something."""
    async with scripted_cluster(tmp_path_factory.mktemp("scripted")) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: ScriptedCluster) -> ScriptedCluster:
    """The cluster without documents or clients, its functions as written."""
    await shared_cluster.drop_clients()
    shared_cluster.reset()
    await shared_cluster.clear()
    if shared_cluster.revision != "a" * 12:
        await shared_cluster.set_manifest("a")
    return shared_cluster


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if value is True or (value is not False and await value):
                return
            await asyncio.sleep(0.005)
