"""Subscriptions to a real server. Before a process answers, it learns of the writes of other processes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import redis

from qa_cluster.asking import freshness as freshness_module
from qa_cluster.asking.freshness import Freshness
from qa_cluster.cluster.nodes.node import nodes_of
from qa_cluster.cluster.nodes.resharding import Move, move_slots
from qa_cluster.keys import Partitioning, epoch_key, index_key, slot
from qa_cluster.ranking.postings import pack_sentences
from qa_cluster.routing.connection import Login
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Address
from tests.harness.clusters import Cluster
from tests.harness.polling import eventually_async
from tests.harness.programs import binary_or_skip
from tests.harness.servers import Server

WRITES = 50
TAG = Partitioning(2).tags[0]


@asynccontextmanager
async def subscribed(server: Server) -> AsyncIterator[Freshness]:
    shards = Shards([Address("127.0.0.1", server.port)], Login(connect_timeout_seconds=10))
    await shards.open()
    freshness = Freshness(shards, Partitioning(2))
    await freshness.start()
    try:
        yield freshness
    finally:
        await freshness.aclose()
        await shards.aclose()


async def test_a_completed_write_is_detected_while_the_event_loop_is_blocked(server: Server) -> None:
    """The writer blocks the event loop, so only a check of the sockets can detect the change."""
    async with subscribed(server) as freshness:
        with redis.Redis(port=server.port) as writer:
            before = freshness.writes
            for number in range(WRITES):
                await eventually_async(freshness.drain)
                assert freshness.writes == before + number
                writer.incr(epoch_key(TAG))
                writer.get(epoch_key(TAG))
                assert not freshness.drained()


async def test_an_invalidated_question_is_reported_to_caches_and_pending_answers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness_module, "LEASE_SECONDS", 60.0)
    async with subscribed(server) as freshness:
        dropped: list[str] = []
        freshness.on_dropped.append(dropped.append)
        pending = freshness.pending_answer
        with redis.Redis(port=server.port) as writer, pending("one") as one, pending("two") as two:
            for name in ("one", "two"):
                words = [name, 60000, 0, 0, 0, 0, 0, 9, "TERMS", 1, name, 0, 0, 9, "DOCUMENTS", 0]
                assert writer.execute_command("QA.INDEX.WATCH", index_key(TAG), *words)
            generation = freshness.generation
            writer.execute_command("QA.INDEX.PUT", index_key(TAG), "d", "", pack_sentences(["Just one."]))
            assert await freshness.drain()
            assert (one.invalidated, two.invalidated, dropped) == (True, False, ["one"])
            assert freshness.generation == generation
        with redis.Redis(port=server.port) as writer:
            writer.flushall()
            assert await freshness.drain()
        assert freshness.generation > generation


async def test_the_first_write_of_a_slots_new_owner_invalidates_the_answers_of_the_old_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the write there is no periodic check, so only the new owner's epoch shows that the slot has moved."""
    monkeypatch.setattr(freshness_module, "CHECK_SECONDS", 3600.0)
    monkeypatch.setattr(freshness_module, "LEASE_SECONDS", 3600.0)
    with Cluster(binary_or_skip("valkey"), size=2) as cluster, ExitStack() as clients:
        nodes = [clients.enter_context(server.client()) for server in cluster.nodes]
        moved = slot(epoch_key(TAG))
        async with subscribed(cluster.nodes[0]) as freshness:
            await eventually_async(freshness.drain)
            found = [(next(n for n in nodes_of(client) if "myself" in n.flags), client) for client in nodes]
            found.sort(key=lambda entry: not any(first <= moved <= last for first, last in entry[0].slots))
            (source, _), (target, client) = found
            move_slots([Move(moved, source.id, target.id)], found)
            assert await freshness.drain()
            before = freshness.generation
            client.incr(epoch_key(TAG))
            assert not freshness.drained()
            assert await freshness.drain()
            assert freshness.generation > before


async def test_the_subscription_to_a_silent_server_is_not_trusted(server: Server) -> None:
    async with subscribed(server) as freshness:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await eventually_async(lambda: not freshness.drained())
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await eventually_async(freshness.drained)
