"""Subscriptions to a real server: a process knows of another's writes before it answers anything."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from qa_cluster.asking.freshness import Freshness
from qa_cluster.routing.connection import Login
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Address
from tests.client.scripted_cluster import plain_server
from tests.harness.polling import eventually_async
from tests.harness.servers import Server

WRITES = 200


@pytest.fixture
def server() -> Iterator[Server]:
    with plain_server() as running:
        yield running


@asynccontextmanager
async def subscribed(server: Server, *tags: str) -> AsyncIterator[Freshness]:
    shards = Shards([Address("127.0.0.1", server.port)], Login(connect_timeout_seconds=1))
    await shards.open()
    freshness = Freshness(shards)
    await freshness.start(list(tags))
    try:
        yield freshness
    finally:
        await freshness.aclose()
        await shards.aclose()


async def test_a_finished_write_is_seen_without_giving_the_loop_a_turn(server: Server) -> None:
    """The writer blocks this thread, so only a look into the sockets can show the change."""
    async with subscribed(server, "t", "u") as freshness:
        with redis.Redis(port=server.port) as writer:
            for number in range(1, WRITES):
                assert await freshness.drain()
                epochs = await freshness.epochs()
                assert epochs is not None and epochs[0].endswith(f":{number - 1}")
                generation = freshness.generation
                writer.incr("epoch:{t}")
                writer.get("epoch:{t}")
                assert not freshness.drained()
                assert await freshness.drain()
                assert freshness.generation > generation


async def test_a_restarted_server_counts_other_epochs(server: Server) -> None:
    async with subscribed(server, "t") as freshness:
        before = await freshness.epochs()
    with plain_server() as restarted:
        async with subscribed(restarted, "t") as freshness:
            after = await freshness.epochs()
    assert before is not None and after is not None
    assert after != before
    assert after[0].endswith(":0")


async def test_a_server_that_dies_takes_readiness_with_it(server: Server) -> None:
    async with subscribed(server, "t") as freshness:
        assert freshness.drained()
        server.stop()
        await eventually_async(lambda: not freshness.ready)
        assert not freshness.drained()
        assert await freshness.epochs() is None


async def test_a_server_that_falls_silent_is_not_relied_on(server: Server) -> None:
    async with subscribed(server, "t") as freshness:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await eventually_async(lambda: not freshness.drained())
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await eventually_async(freshness.drained)
