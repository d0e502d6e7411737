"""Fixtures of the scripted cluster: one cluster for the whole run, reset for every test."""

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

    Engines rely on their subscriptions for longer, and have longer timeouts. Otherwise a second or two without
    processor time would change results: caches would be bypassed, answers not cached, requests counted locally, and the
    keys of a slow shard left out.
    """
    monkeypatch.setattr("qa_cluster.asking.freshness.LEASE_SECONDS", 60.0)
    monkeypatch.setattr("qa_cluster.access.limits.COUNT_SECONDS", 10.0)
    monkeypatch.setattr("qa_cluster.access.store.PATIENCE_SECONDS", 30.0)
    monkeypatch.setattr("qa_cluster.access.store.READ_SECONDS", 60.0)
    monkeypatch.setattr("qa_cluster.asking.answers.answer_cache.STORE_TIMEOUT_SECONDS", 60.0)
    await shared_cluster.reset()
    return shared_cluster
