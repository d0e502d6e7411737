"""A server without functions, for tests of scripts, and a whole cluster with functions and reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.harness.programs import MODULE, chosen_servers, find_binary
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

from .running_shards import Shards, running


@pytest.fixture(autouse=True)
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients trust their subscriptions for longer. Otherwise a pause of a second disables their near caches."""
    monkeypatch.setattr("qa_cluster.asking.freshness.LEASE_SECONDS", 60.0)


@pytest.fixture(scope="module")
def lone_server(shared_binary: Path) -> Iterator[Server]:
    """A server with the module whose worker does nothing."""
    with Server(shared_binary, {"enable-debug-command": "yes"}, worker=fake_worker("functions", "--bare")) as server:
        yield server


@pytest.fixture
def client(lone_server: Server) -> Iterator[redis.Redis]:
    """A client of an empty server."""
    with lone_server.client() as connection:
        connection.flushall()
        yield connection


@pytest.fixture(scope="session", params=chosen_servers())
def shards(request: pytest.FixtureRequest) -> Iterator[Shards]:
    """A whole cluster with functions and reader, shared by all tests of a run. Each test uses its own documents."""
    binary = find_binary(request.param)
    if binary is None:
        pytest.skip(f"no {request.param} server on this machine")
    if not MODULE.exists():
        raise pytest.UsageError(f"{MODULE} is missing: run `make -C native`")
    with running(binary) as found:
        yield found
