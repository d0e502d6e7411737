"""Fixtures of the scripted cluster: one for the whole run, empty and well-behaved again for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.scripted_cluster import ScriptedCluster, scripted_cluster


@pytest.fixture(scope="session")
async def shared_cluster() -> AsyncIterator[ScriptedCluster]:
    """One cluster for all tests, in their event loop: its proxies serve while a test awaits something."""
    async with scripted_cluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    """The cluster without documents or clients, its functions as written.

    Engines rely on their subscriptions for longer: caches would be left out after a second without processor time.
    """
    monkeypatch.setattr("qa_cluster.asking.freshness.LEASE_SECONDS", 60.0)
    await shared_cluster.reset()
    return shared_cluster
