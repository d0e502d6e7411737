"""Servers whose worker is the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Cluster, Server, eventually, server_binary

__all__ = ["server_binary"]
WORKER = f'"{sys.executable}" -m qa_cluster.gears.worker'


@pytest.fixture
def shard(server_binary: Path) -> Iterator[Server]:
    """A server alone with a worker that is ready."""
    with Server(server_binary, worker=WORKER) as running:
        running.wait_ready()
        yield running


def reaches_all(node: Server) -> bool:
    """Whether a run started on this node gets all its records."""
    with node.client() as client:
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 1000)
        script = "GB('ShardsIDReader').repartition(str).run()"
        results, errors = client.execute_command("RG.PYEXECUTE", script)
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 5000)
    return len(results) == 3 and not errors


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """Three primaries with workers that are ready."""
    with Cluster(server_binary, worker=WORKER) as running:
        for node in running.nodes:
            node.wait_ready()
        for node in running.nodes:
            # the bus of a young cluster loses messages until all links stand
            eventually(lambda node=node: reaches_all(node), 30)  # type: ignore[misc]
        yield running
