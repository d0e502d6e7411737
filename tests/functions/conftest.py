"""Plain servers, enough for scripts that touch no tensors, and a whole cluster with functions and reader."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.programs import MODULE, chosen_servers, find_binary

from .running_shards import Shards, running


@pytest.fixture(scope="session", params=chosen_servers())
def plain_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that keeps nothing."""
    binary = find_binary(request.param)
    if binary is None:
        pytest.skip(f"no {request.param} server on this machine")
    port = free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(
        command, cwd=tmp_path_factory.mktemp("server"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            with redis.Redis(port=port) as client:
                eventually(client.ping)
            yield port
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture
def client(plain_server: int) -> Iterator[redis.Redis]:
    """A client of an empty plain server."""
    with redis.Redis(port=plain_server, decode_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.fixture(scope="session", params=chosen_servers())
def shards(request: pytest.FixtureRequest) -> Iterator[Shards]:
    """A whole cluster with functions and reader, shared by the tests of a run: each uses documents of its own."""
    binary = find_binary(request.param)
    if binary is None:
        pytest.skip(f"no {request.param} server on this machine")
    if not MODULE.exists():
        raise pytest.UsageError(f"{MODULE} is missing: run `make -C native`")
    with running(binary) as found:
        yield found
