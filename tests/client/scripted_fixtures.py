"""Fixtures of the scripted cluster: one for the whole run, empty and well-behaved again for every test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.client.scripted_cluster import ScriptedCluster, scripted_cluster

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for servers and tests: what a test awaits runs beside the proxies of the cluster."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="session")
def shared_cluster(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedCluster]:
    context = scripted_cluster(tmp_path_factory.mktemp("scripted"))
    cluster = runner.run(context.__aenter__())
    try:
        yield cluster
    finally:
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def cluster(runner: asyncio.Runner, shared_cluster: ScriptedCluster) -> ScriptedCluster:
    """The cluster without documents or clients, its functions as written."""
    runner.run(shared_cluster.drop_clients())
    shared_cluster.reset()
    runner.run(shared_cluster.clear())
    if shared_cluster.revision != "a" * 12:
        runner.run(shared_cluster.set_manifest("a"))
    return shared_cluster


@pytest.fixture
def run(runner: asyncio.Runner) -> Run:
    """Runs one coroutine to its end."""
    return runner.run


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if value is True or (value is not False and await value):
                return
            await asyncio.sleep(0.005)
