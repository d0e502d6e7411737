"""Shards that are down: answers without them, refusals, and the cached answers that stay valid."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.engine import Engine
from qa_cluster.errors import ClusterError, NotFound
from qa_cluster.keys import PARTITIONS_KEY, partition_of
from qa_cluster.routing.shards import ShardDown
from tests.client.engines import ask, opened, search
from tests.client.scripted_cluster import Node, ScriptedCluster, refusal
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async

QUESTION = "Who wrote programs?"
LONG_SECONDS = 60
"""A timeout that a test exceeds only if the engine waits for the shard that is down."""


def name_on(engine: Engine, node: Node) -> str:
    """A document id that belongs to this node."""
    names = (f"doc {number}" for number in range(1000))
    return next(
        n for n in names if engine.shards.shard_of_key(f"{{{partition_of(n, PARTITIONS)}}}").address.port == node.port
    )


async def write_on(engine: Engine, node: Node, text: str) -> None:
    await engine.documents.put(name_on(engine, node), text, wait=True)


async def killed(node: Node) -> None:
    node.cut()


async def frozen(node: Node) -> None:
    os.kill(node.server.pid, signal.SIGSTOP)


@asynccontextmanager
async def without(engine: Engine, node: Node, how: Callable[[Node], Any] = killed) -> AsyncIterator[None]:
    """Take the node down, and wait until the engine has detected it. After the block, the node is up again."""
    await how(node)
    try:
        await eventually_async(lambda: [shard.address.port for shard in engine.shards.down] == [node.port])
        yield
    finally:
        if how is frozen:
            os.kill(node.server.pid, signal.SIGCONT)
        else:
            await node.listen()
        await eventually_async(engine.freshness.drained)


async def test_the_remaining_shards_answer_a_question(cluster: ScriptedCluster, engine: Engine) -> None:
    for node, writer in zip(cluster.nodes, ("Ada", "Bob", "Cyd"), strict=True):
        await write_on(engine, node, f"{writer} wrote programs.")
    for node, writer in zip(cluster.nodes[:2], ("Ada", "Bob"), strict=True):
        async with without(engine, node):
            result = await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)
            assert {answer.answer for answer in result.answers} == {"Ada", "Bob", "Cyd"} - {writer}
            assert result.index.partial
            assert result.index.missing == (f"127.0.0.1:{node.port}",)
            assert (result.index.shards_answered, result.index.shards_total) == (2, 3)
            assert result.cache.ttl_s == 0
            found = await search(engine, "wrote programs", coverage="partial", timeout=LONG_SECONDS)
            assert (len(found.hits), found.index) == (2, result.index)
        whole = await ask(engine, QUESTION, coverage="partial")
        assert {answer.answer for answer in whole.answers} == {"Ada", "Bob", "Cyd"}
        assert (whole.index.partial, whole.index.missing) == (False, ())


@pytest.mark.parametrize("how", [killed, frozen])
async def test_a_running_question_continues_without_a_shard_that_goes_down(
    cluster: ScriptedCluster, engine: Engine, how: Callable[[Node], Any]
) -> None:
    lost, other, _ = cluster.nodes
    await write_on(engine, other, "Bob wrote programs.")
    arrived, release = asyncio.Event(), asyncio.Event()

    async def rank(node: Node, arguments: list[str]) -> Any:
        if node is lost:
            arrived.set()
            await release.wait()
        return await cluster.rank(node, arguments)

    cluster.triggers["rank"] = rank
    asked = asyncio.create_task(ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS))
    refused = asyncio.create_task(ask(engine, QUESTION, timeout=LONG_SECONDS))
    await arrived.wait()
    async with without(engine, lost, how):
        result = await asked
        assert ([answer.answer for answer in result.answers], result.index.partial) == (["Bob"], True)
        with pytest.raises(ShardDown, match=f"shard 127.0.0.1:{lost.port} is down"):
            await refused
    release.set()


async def test_requests_that_need_the_lost_shard_are_refused_at_once_with_its_name(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    node = cluster.nodes[1]
    name = name_on(engine, node)
    await engine.collections.create("books")
    await engine.documents.put(name_on(engine, cluster.nodes[0]), "Ada wrote programs.", wait=True, collection="books")
    async with without(engine, node):
        named = f"shard 127.0.0.1:{node.port} is down: .*cannot connect"
        for refused in (
            ask(engine, QUESTION, timeout=LONG_SECONDS),
            search(engine, QUESTION, timeout=LONG_SECONDS),
            engine.documents.put(name, "Eve wrote programs.", timeout=60),
            engine.documents.get(name),
            ask(engine, QUESTION, collection="books", timeout=LONG_SECONDS),
        ):
            with pytest.raises(ShardDown, match=named):
                await refused
        assert cluster.count("rank") == 0
        await engine.documents.put(name_on(engine, cluster.nodes[0]), "Ada wrote programs.", wait=True)
        result = await ask(engine, QUESTION, coverage="partial", collection="books", timeout=LONG_SECONDS)
        assert (result.answerable, result.index.partial) == (True, True)
        with pytest.raises(NotFound, match="no such collection"):
            await ask(engine, QUESTION, coverage="partial", collection="films", timeout=LONG_SECONDS)
        cluster.triggers["rank"] = refusal("CLUSTERDOWN The cluster is down")
        with pytest.raises(ClusterError, match=f"{node.port} is down.*cluster-require-full-coverage"):
            await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)


async def test_cached_answers_of_other_shards_stay_valid_while_one_is_down(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    here, lost, _ = cluster.nodes
    await write_on(engine, here, "Ada wrote programs.")
    await write_on(engine, lost, "Owls hunt mice.")
    asked = {question: await ask(engine, question) for question in (QUESTION, "What hunts mice?")}
    assert all(result.cache.ttl_s for result in asked.values())
    async with without(engine, lost):
        before = len(cluster.calls)
        result = await ask(engine, QUESTION, coverage="partial", cache="only")
        assert (result.cache.tier, result.answers, result.index.partial) == ("near", asked[QUESTION].answers, False)
        assert len(cluster.calls) == before
        # the engine cannot check an answer from the shard that is down
        with pytest.raises(CacheMiss):
            await ask(engine, "What hunts mice?", coverage="partial", cache="only", timeout=LONG_SECONDS)
        assert not (await ask(engine, "What hunts mice?", coverage="partial", timeout=LONG_SECONDS)).answers
        # with full coverage, the engine would need the changes of the shard that is down
        with pytest.raises(ShardDown):
            await ask(engine, QUESTION, timeout=LONG_SECONDS)
        # a write to another shard still invalidates the answers that it may change
        async with opened(cluster) as other:
            await write_on(other, here, "Bob wrote programs.")
        result = await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)
        assert ([answer.answer for answer in result.answers], result.index.partial) == (["Bob"], True)
    for coverage in ("partial", "full"):
        assert [answer.answer for answer in (await ask(engine, "What hunts mice?", coverage=coverage)).answers] == [
            "Owls"
        ]


async def test_a_shard_that_returns_with_other_documents_answers_again(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    here, lost, _ = cluster.nodes
    await write_on(engine, here, "Ada wrote programs.")
    await ask(engine, QUESTION)
    name = name_on(engine, lost)
    async with without(engine, lost):
        assert (await ask(engine, QUESTION, coverage="partial", cache="only")).cache.tier == "near"
        # another process can still write to the cut-off shard
        tag = engine.documents.tag_of(name)
        await lost.commands.execute("INCR", f"epoch:{{{tag}}}")
    await engine.documents.put(name, "Bob wrote programs.", wait=True)
    assert {answer.answer for answer in (await ask(engine, QUESTION, coverage="partial")).answers} == {"Ada", "Bob"}


async def test_a_question_with_full_coverage_joins_no_partial_answer(cluster: ScriptedCluster, engine: Engine) -> None:
    here, lost, _ = cluster.nodes
    await write_on(engine, here, "Ada wrote programs.")
    async with without(engine, lost):
        release, held = asyncio.Event(), asyncio.Event()

        async def rank(node: Node, arguments: list[str]) -> Any:
            held.set()
            await release.wait()
            return await cluster.rank(node, arguments)

        cluster.triggers["rank"] = rank
        partial = [asyncio.create_task(ask(engine, QUESTION, coverage="partial")) for _ in range(2)]
        await held.wait()
        await eventually_async(lambda: len(engine.asker.flights) == 1)
        with pytest.raises(ShardDown):
            await ask(engine, QUESTION, timeout=LONG_SECONDS)
        release.set()
        assert all(result.index.partial for result in await asyncio.gather(*partial))


async def test_a_process_that_starts_while_a_shard_is_down_answers_without_it(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        home = engine.shards.shard_of_key(PARTITIONS_KEY).address.port
        for node in cluster.nodes:
            if node.port != home:
                await write_on(engine, node, "Ada wrote programs.")
    # the lost node has the number of partitions; it is not the first node, which a new process must reach
    lost = (
        next(node for node in cluster.nodes[1:] if node.port == home)
        if cluster.nodes[0].port != home
        else cluster.nodes[1]
    )
    lost.cut()
    try:
        async with opened(cluster) as late:
            assert late.partitions.number == PARTITIONS
            result = await ask(late, QUESTION, coverage="partial", timeout=LONG_SECONDS)
            assert (result.answerable, result.index.partial) == (True, True)
    finally:
        await lost.listen()


async def test_without_any_shard_the_refusal_names_all(cluster: ScriptedCluster, engine: Engine) -> None:
    for node in cluster.nodes:
        node.cut()
    try:
        await eventually_async(lambda: len(engine.shards.down) == 3)
        with pytest.raises(ShardDown) as raised:
            await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)
        assert all(f"127.0.0.1:{node.port}" in str(raised.value) for node in cluster.nodes)
    finally:
        for node in cluster.nodes:
            await node.listen()
    await eventually_async(engine.freshness.drained)
    assert (await ask(engine, QUESTION)).index.shards_answered == 3


async def test_a_shard_that_returns_is_asked_once_its_worker_is_ready(cluster: ScriptedCluster, engine: Engine) -> None:
    lost = cluster.nodes[1]
    state = "starting"
    ready = lost.own_reply

    def not_ready(command: list[bytes]) -> Any:
        if command[:2] == [b"INFO", b"qa"] and state != "ready":

            async def reply() -> bytes:
                return b"# qa_worker\r\nqa_worker_state:starting\r\n"

            return reply
        return ready(command)

    lost.own_reply = not_ready  # type: ignore[method-assign]
    try:
        async with without(engine, lost):
            await lost.listen()
            await eventually_async(lambda: "its worker is starting" in engine.shards.why_down(engine.shards.down))
            assert (await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)).index.partial
            lost.cut()
            state = "ready"
        assert not (await ask(engine, QUESTION, coverage="partial")).index.partial
    finally:
        del lost.own_reply  # type: ignore[attr-defined]
