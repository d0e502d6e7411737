"""The scripted cluster for the tests of this folder, and an engine that asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from qa_cluster.asking.engine import Engine
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster, plain_server
from tests.client.scripted_fixtures import cluster, shared_cluster
from tests.harness.servers import Server

__all__ = ["cluster", "shared_cluster"]


@pytest.fixture
async def engine(cluster: ScriptedCluster) -> AsyncIterator[Engine]:
    """An engine with the default options, on a cluster without documents."""
    async with opened(cluster) as made:
        yield made


@pytest.fixture
async def second_engine(cluster: ScriptedCluster) -> AsyncIterator[Engine]:
    """A second engine, like the engine of another process."""
    async with opened(cluster) as made:
        yield made


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """One server of all slots, without a proxy, for all tests."""
    with plain_server() as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The server without keys."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server
