"""Servers whose worker is the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from qa_cluster.gears.inference.model_store import ModelStore
from tests.gears.runtimes import opened_store
from tests.harness.clusters import Cluster, ready_cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

LEASE_MS = 60_000
"""The lease of atomic blocks on the shared server. It is long, because a busy machine is slow."""
IDLE_MS = 60_000
"""`ExecutionMaxIdleTime` of the shared cluster. Tests of idle runs set a shorter time."""


@pytest.fixture(scope="module")
def shared_shard(shared_binary: Path) -> Iterator[Server]:
    """A standalone server with a ready worker, for all tests of a file."""
    with Server(shared_binary, {"qa.atomic-lease-ms": LEASE_MS}, worker=WORKER) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def shard(shared_shard: Server) -> Iterator[Server]:
    """The shared server without keys, registrations, executions and command statistics."""
    yield shared_shard
    shared_shard.wait_ready()
    for entry in execute(shared_shard, "RG.DUMPREGISTRATIONS"):
        execute(shared_shard, "RG.UNREGISTER", entry[1])
    for entry in execute(shared_shard, "RG.DUMPEXECUTIONS"):
        execute(shared_shard, "RG.ABORTEXECUTION", entry[1])
        eventually(partial(dropped, shared_shard, entry[1]))
    execute(shared_shard, "FLUSHALL")
    execute(shared_shard, "CONFIG", "RESETSTAT")


def dropped(server: Server, execution_id: str) -> bool:
    """Drop an execution; returns False if it has not ended yet. An aborted execution needs some time to end."""
    try:
        return bool(execute(server, "RG.DROPEXECUTION", execution_id) == "OK")
    except redis.ResponseError:
        return False


@pytest.fixture
def own_cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster for a test that changes it."""
    with ready_cluster(server_binary) as running:
        yield running


@pytest.fixture(scope="module")
def shared_cluster(shared_binary: Path) -> Iterator[Cluster]:
    """One cluster for all tests of a file."""
    with ready_cluster(shared_binary) as running:
        for node in running.nodes:
            execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", IDLE_MS)
        yield running


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster. After the test, its keys, users, registrations and `ExecutionMaxIdleTime` are reset."""
    yield shared_cluster
    first = shared_cluster.nodes[0]
    for entry in execute(first, "RG.DUMPREGISTRATIONS"):
        execute(first, "RG.UNREGISTER", entry[1])
    for node in shared_cluster.nodes:
        eventually(lambda node=node: execute(node, "RG.DUMPREGISTRATIONS") == [])  # type: ignore[misc]
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", IDLE_MS)
        execute(node, "ACL", "DELUSER", "tenant")
        execute(node, "FLUSHALL")


@pytest.fixture
async def store() -> AsyncIterator[ModelStore]:
    """A store of models without a shard."""
    async with opened_store() as made:
        yield made
