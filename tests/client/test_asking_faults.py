"""Questions to shards that are slow, refuse, reply wrongly, go down, or change during the question."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.asking.remote_pipeline import RemotePipeline
from qa_cluster.errors import ClusterError, DeadlineExceeded, InferenceFailed, ModelError, QueueFull, ReplyError
from qa_cluster.huggingface.request import PipelineLimits, parse_request
from qa_cluster.keys import PARTITIONS_KEY, partition_of, partition_tags
from qa_cluster.routing import shards
from tests.client.engines import ask, noticed, opened, ranked, write
from tests.client.scripted_cluster import Node, ScriptedCluster, Trigger, never, refusal
from tests.harness.polling import eventually_async

QUESTION = "Who wrote programs?"


@pytest.fixture(autouse=True)
async def ada(engine: Engine) -> None:
    """Store the document "Ada wrote programs."."""
    await write(engine, "Ada wrote programs.")


async def test_shared_work_is_cancelled_after_the_last_of_its_questions(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    cluster.triggers["rank"] = never
    askers = [asyncio.create_task(ask(engine, QUESTION)) for _ in range(2)]
    await eventually_async(lambda: cluster.count("rank") == 3)
    askers[0].cancel()
    await asyncio.sleep(0.05)
    assert (len(engine.asker.flights), cluster.cancelled) == (1, 0)
    askers[1].cancel()
    await eventually_async(lambda: cluster.cancelled == 3)
    await eventually_async(lambda: not engine.asker.flights)
    await eventually_async(lambda: all(engine.shards.pool(shard.address).in_use == 0 for shard in engine.shards.all))


async def test_the_deadline_ends_the_question_and_its_work(cluster: ScriptedCluster, engine: Engine) -> None:
    cluster.triggers["rank"] = never
    with pytest.raises(DeadlineExceeded, match="100 ms"):
        await ask(engine, "Who?", timeout=0.1)
    await eventually_async(lambda: cluster.cancelled == cluster.count("rank"))


def inside(text: str) -> Trigger:
    """A function that replies with an error for each sentence instead of one error for the call."""

    async def refuse(node: Node, arguments: list[str]) -> list[bytes]:
        return [b"-" + text.encode() for _ in arguments[3:]]

    return refuse


async def nonsense(node: Node, arguments: list[str]) -> list[bytes]:
    return [b"{}"]


async def test_an_error_or_an_invalid_reply_of_a_shard_is_an_error_of_the_question(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    for replies, error in (
        (refusal("DEADLINE job"), DeadlineExceeded),
        (inside("OVERLOADED queue is full: 1024 jobs"), QueueFull),
        (inside("INFERENCE boom"), InferenceFailed),
        (nonsense, ClusterError),
    ):
        cluster.triggers["qa.read"] = replies
        with pytest.raises(error):
            await ask(engine, QUESTION)


async def test_a_question_is_retried_after_lost_connections(cluster: ScriptedCluster, engine: Engine) -> None:
    cut: list[Node] = []

    async def cutting(node: Node, arguments: list[str]) -> Any:
        if not cut:
            cut.append(node)
            node.drop_clients()
        return await cluster.rank(node, arguments)

    cluster.triggers["rank"] = cutting
    assert (await ask(engine, QUESTION)).answerable
    assert cut


async def test_a_question_is_retried_while_a_shard_lacks_the_function(cluster: ScriptedCluster, engine: Engine) -> None:
    asked = 0

    async def registered_later(node: Node, arguments: list[str]) -> list[bytes]:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise ReplyError("ERR subcommand not found")
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = registered_later
    assert (await ask(engine, QUESTION)).answerable
    assert asked > 3


async def test_an_unregistered_function_is_an_error_that_says_what_to_do(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "REGISTERED_WITHIN_SECONDS", 0.3)
    cluster.triggers["qa.read"] = refusal("ERR subcommand not found")
    with pytest.raises(
        ClusterError, match=r"^the function qa\.read is not registered on shard .*: run `qa-cluster up`$"
    ):
        await ask(engine, QUESTION)
    request = parse_request({"inputs": {"question": "Who?", "context": "Ada."}}, PipelineLimits())
    with pytest.raises(ClusterError, match=r"^the function qa\.pipeline is not registered on shard .*`qa-cluster up`$"):
        await RemotePipeline(engine.shards).read("", request, timeout_seconds=30)


async def test_a_frozen_server_does_not_delay_a_question_beyond_its_deadline(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    engine.freshness.manifest_changes += 1
    server = cluster.nodes[0].server.pid
    os.kill(server, signal.SIGSTOP)
    try:
        for number in range(2):
            with pytest.raises(DeadlineExceeded):
                await ask(engine, f"Who wrote {number} programs?", timeout=0.2)
        assert (await engine.shards.refresh()).whole
    finally:
        os.kill(server, signal.SIGCONT)
    await eventually_async(lambda: not engine.shards.down)
    assert (await ask(engine, QUESTION)).answerable


async def test_a_document_that_changes_between_rank_and_read_is_ranked_again(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    async def read(node: Node, arguments: list[str]) -> list[bytes]:
        cluster.triggers["qa.read"] = cluster.read
        found = await cluster.read(node, arguments)
        await write(engine, "Bob wrote programs.")
        return found

    cluster.triggers["qa.read"] = read
    result = await ask(engine, QUESTION)
    assert [answer.answer for answer in result.answers] == ["Bob"]


async def test_without_a_model_documents_can_be_written_and_questions_are_errors(cluster: ScriptedCluster) -> None:
    for node in cluster.nodes:
        for key in await node.commands.execute("KEYS", "bert-qa*"):
            await node.commands.execute("DEL", key)
    async with opened(cluster) as engine:
        await write(engine, "Bob wrote programs.")
        with pytest.raises(ModelError, match="no shard has a model"):
            await ask(engine, QUESTION)
        async with noticed(engine):
            await cluster.set_manifest("a")
        assert [answer.answer for answer in (await ask(engine, QUESTION)).answers] == ["Bob"]


async def test_another_number_of_partitions_is_noticed(cluster: ScriptedCluster, engine: Engine) -> None:
    for partitions in (24, 12):
        async with noticed(engine):
            await cluster.set(PARTITIONS_KEY, partitions)
        await ask(engine, QUESTION)
        assert engine.partitions.number == engine.collections.partitions.number == partitions
        assert engine.documents.tag_of("ada") == partition_of("ada", partitions)
        assert engine._answers.watches._partitions.number == partitions
        ranking = await ranked(engine, "programs", 8)
        assert ranking.epochs.keys() == ranking.parts.keys() == set(partition_tags(partitions))
    assert (await ask(engine, QUESTION)).answerable
