"""Servers whose worker is the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Cluster, Server, server_binary

__all__ = ["server_binary"]
WORKER = f'"{sys.executable}" -m qa_cluster.gears.worker'


@pytest.fixture
def shard(server_binary: Path) -> Iterator[Server]:
    """A server alone with a worker that is ready."""
    with Server(server_binary, worker=WORKER) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """Three primaries with workers that are ready."""
    with Cluster(server_binary, worker=WORKER) as running:
        for node in running.nodes:
            node.wait_ready()
        yield running
