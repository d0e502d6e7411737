"""Servers with a fake worker. Triggers, scripts or the bytes of models say what the worker does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.harness.servers import Server
from tests.harness.workers import fake_worker

# a worker on a busy machine does not lose its lease
PATIENT: dict[str, object] = {"qa.atomic-lease-ms": 60_000, "qa.job-timeout-ms": 600_000, "qa.hook-timeout-ms": 600_000}


@pytest.fixture
def server(server_binary: Path) -> Iterator[Server]:
    """A server with a ready fake worker. Triggers and scripts say what it does."""
    with Server(server_binary, PATIENT, worker=fake_worker("functions")) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def shared(shared_binary: Path) -> Iterator[Server]:
    """A server with the scriptable worker for all tests of a file. Each test uses its own names."""
    with Server(shared_binary, PATIENT, worker=fake_worker("functions")) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def ai_server(server_binary: Path) -> Iterator[Server]:
    """A server with a ready fake worker. The bytes of models say what it does."""
    with Server(server_binary, {"appendonly": "yes"}, worker=fake_worker("models")) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def ai(ai_server: Server) -> Iterator[redis.Redis]:
    """A client of `ai_server` with RESP2 that does not decode replies."""
    with ai_server.client(decode_responses=False, protocol=2) as client:
        client.response_callbacks.pop("COMMAND", None)
        yield client


@pytest.fixture(scope="module")
def shared_ai_server(shared_binary: Path) -> Iterator[Server]:
    """Like `ai_server`, but one server for all tests of a file."""
    with Server(shared_binary, {"appendonly": "yes"}, worker=fake_worker("models")) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def shared_ai(shared_ai_server: Server) -> Iterator[redis.Redis]:
    """Like `ai`, for `shared_ai_server` without keys. A test that changes settings must reset them."""
    with shared_ai_server.client(decode_responses=False, protocol=2) as client:
        client.response_callbacks.pop("COMMAND", None)
        client.flushall()
        yield client
