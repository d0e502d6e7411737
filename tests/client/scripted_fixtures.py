"""Fixtures of the scripted cluster: one cluster for the whole run, reset for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.scripted_cluster import ScriptedCluster, scripted_cluster


@pytest.fixture(scope="session")
async def shared_cluster() -> AsyncIterator[ScriptedCluster]:
    """One cluster for all tests. Its proxies run in the event loop of the tests."""
    async with scripted_cluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    """The cluster without documents and clients, with its original functions.

    Engines have longer leases and timeouts. Otherwise, one or two seconds without processor time would change results:
    the engine would bypass caches, cache no answers, count requests locally, and skip the keys of a slow shard.
    """
    monkeypatch.setattr("qa_cluster.asking.freshness.LEASE_SECONDS", 60.0)
    monkeypatch.setattr("qa_cluster.access.limits.COUNT_SECONDS", 10.0)
    monkeypatch.setattr("qa_cluster.access.store.PATIENCE_SECONDS", 30.0)
    monkeypatch.setattr("qa_cluster.access.store.READ_SECONDS", 60.0)
    monkeypatch.setattr("qa_cluster.asking.answers.answer_cache.STORE_TIMEOUT_SECONDS", 60.0)
    await shared_cluster.reset()
    return shared_cluster
