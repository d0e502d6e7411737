"""Subscriptions to a real server: what another process has written is known before anything is answered."""

from __future__ import annotations

import os
import signal

import pytest
import redis

from qa_cluster.asking.connection import Login
from qa_cluster.asking.freshness import LEASE_SECONDS, Freshness
from qa_cluster.asking.shards import Shards
from qa_cluster.topology import Address
from tests.client.scripted_cluster import plain_server
from tests.client.scripted_fixtures import until

pytestmark = pytest.mark.anyio

WRITES = 200


async def test_a_finished_write_is_seen_without_giving_the_loop_a_turn() -> None:
    """The writer blocks this thread, so only a look into the sockets can tell that something changed."""

    async with plain_server() as port:
        shards = Shards([Address("127.0.0.1", port)], Login())
        await shards.open()
        freshness = Freshness(shards)
        await freshness.start(["t", "u"])
        with redis.Redis(port=port) as writer:
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
        await freshness.aclose()
        await shards.aclose()


async def test_a_restarted_server_counts_other_epochs() -> None:
    async with plain_server() as port:
        shards = Shards([Address("127.0.0.1", port)], Login())
        await shards.open()
        freshness = Freshness(shards)
        await freshness.start(["t"])
        before = await freshness.epochs()
        assert before is not None
        await freshness.aclose()
        async with plain_server() as other:
            again = Shards([Address("127.0.0.1", other)], Login())
            await again.open()
            second = Freshness(again)
            await second.start(["t"])
            after = await second.epochs()
            assert after is not None and after != before and after[0].endswith(":0")
            await second.aclose()
            await again.aclose()
        await shards.aclose()


async def test_a_server_that_dies_takes_readiness_with_it() -> None:
    shards = None
    async with plain_server() as port:
        shards = Shards([Address("127.0.0.1", port)], Login(connect_timeout_seconds=1))
        await shards.open()
        freshness = Freshness(shards)
        await freshness.start(["t"])
        assert freshness.drained()
    await until(lambda: not freshness.ready)
    assert not freshness.drained()
    assert await freshness.epochs() is None
    await freshness.aclose()
    await shards.aclose()


async def test_a_server_that_falls_silent_is_not_relied_on() -> None:
    async with plain_server() as port:
        shards = Shards([Address("127.0.0.1", port)], Login(connect_timeout_seconds=1))
        await shards.open()
        freshness = Freshness(shards)
        await freshness.start(["t"])
        with redis.Redis(port=port) as client:
            server = int(client.info("server")["process_id"])
        os.kill(server, signal.SIGSTOP)
        try:
            await until(lambda: not freshness.drained(), 3 * LEASE_SECONDS)
        finally:
            os.kill(server, signal.SIGCONT)
        await until(freshness.drained)
        await freshness.aclose()
        await shards.aclose()
