"""Cached answers: their cache, their question, and the changes that invalidate them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qa_cluster import keys
from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.engine import Engine
from tests.client.engines import ask, kept, noticed, opened, write
from tests.client.scripted_cluster import Node, ScriptedCluster, manifest
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async

QUESTION = "Who wrote programs?"


@pytest.fixture(autouse=True)
async def ada(engine: Engine) -> None:
    """Store the document "Ada wrote programs."."""
    await write(engine, "Ada wrote programs.")


async def test_the_modes_of_the_cache(engine: Engine) -> None:
    with pytest.raises(CacheMiss):
        await ask(engine, QUESTION, cache="only")
    assert not engine.rankings
    assert (await ask(engine, QUESTION, cache="off")).cache.status == "off"
    assert await kept(engine, QUESTION) is None
    assert (await ask(engine, QUESTION)).cache.tier == "none"
    near = await ask(engine, "WHO wrote programs")
    assert (near.cache.status, near.cache.tier, near.question) == ("hit", "near", "WHO wrote programs")
    assert (await ask(engine, QUESTION, cache="only")).cache.tier == "near"
    assert engine.rankings == 2
    assert (await ask(engine, QUESTION, cache="refresh")).cache.status == "refresh"
    assert engine.rankings == 3
    assert await kept(engine, QUESTION)


async def test_another_process_gets_the_answer_from_the_shard_and_then_from_its_near_cache(
    engine: Engine, second_engine: Engine
) -> None:
    await ask(engine, QUESTION)

    async def stored() -> bool:
        found = await kept(second_engine, QUESTION)
        return found is not None and found.cache.tier == "shard"

    await eventually_async(stored)  # the engine stores answers in the background
    assert (await ask(second_engine, QUESTION)).cache.tier == "near"
    assert (engine.rankings, second_engine.rankings) == (1, 0)


@pytest.mark.hostile
async def test_a_stream_of_new_questions_uses_limited_memory(cluster: ScriptedCluster) -> None:
    """The engine evicts the oldest whole answers, and each list has the answers of its partition."""
    limit = 8_000
    async with limited(cluster, limit), opened(cluster, near_cache_entries=0) as engine:
        for number in range(150):
            await ask(engine, f"Who wrote programs in the year {number}?")
        last = "Who wrote programs in the end?"
        await ask(engine, last)
        await eventually_async(lambda: kept(engine, last))
        for tag in keys.partition_tags(PARTITIONS):
            whole = keys.whole_answer_list_key(tag)
            listed = await engine.shards.execute(whole, "ZRANGE", whole, "0", "-1", "WITHSCORES")
            sizes = {name.decode(): int(score) % 2**20 for name, score in listed}
            sums = keys.whole_answer_bytes_key(tag)
            assert limit * 0.7 < sum(sizes.values()) == int(await engine.shards.execute(sums, "GET", sums)) <= limit
            assert sizes.keys() == {name for name in await answers_in(cluster) if f"{{{tag}}}" in name}
            for name, size in sizes.items():
                assert await engine.shards.execute(name, "STRLEN", name) < size


@asynccontextmanager
async def limited(cluster: ScriptedCluster, limit: int) -> AsyncIterator[None]:
    """Limit the bytes of whole answers on every node during the block."""
    setting = "qa.whole-answers-bytes"
    usual = (await cluster.nodes[0].commands.execute("CONFIG", "GET", setting))[setting.encode()]
    for node in cluster.nodes:
        await node.commands.execute("CONFIG", "SET", setting, limit)
    try:
        yield
    finally:
        for node in cluster.nodes:
            await node.commands.execute("CONFIG", "SET", setting, usual)


async def answers_in(cluster: ScriptedCluster) -> list[str]:
    return [key.decode() for node in cluster.nodes for key in await node.commands.execute("KEYS", "answer:*")]


async def test_identical_concurrent_questions_share_one_run(engine: Engine) -> None:
    results = await asyncio.gather(*(ask(engine, QUESTION) for _ in range(100)))
    assert all(result.answers == results[0].answers != () for result in results)
    assert engine.rankings == 1


async def test_a_question_after_a_write_does_not_join_an_earlier_run(cluster: ScriptedCluster, engine: Engine) -> None:
    release = asyncio.Event()
    held = 0

    async def rank(node: Node, arguments: list[str]) -> Any:
        nonlocal held
        found = await cluster.rank(node, arguments)
        held += 1
        if held <= 3:
            await release.wait()
        return found

    cluster.triggers["rank"] = rank
    before = asyncio.create_task(ask(engine, QUESTION))
    await eventually_async(lambda: held == 3)
    await write(engine, "Bob wrote programs.")
    assert [answer.answer for answer in (await ask(engine, QUESTION)).answers] == ["Bob"]
    release.set()
    await before
    assert [answer.answer for answer in (await ask(engine, QUESTION)).answers] == ["Bob"]


async def test_a_changed_model_or_reading_context_misses_the_cache(cluster: ScriptedCluster, engine: Engine) -> None:
    await ask(engine, QUESTION)
    for revision, context_tokens in (("a", 96), ("c", 96)):
        async with noticed(engine):
            await cluster.set_manifest(revision, context_tokens)
        result = await ask(engine, QUESTION)
        assert (result.cache.status, result.model.revision) == ("miss", revision * 12)
        assert (await ask(engine, QUESTION)).cache.status == "hit"


async def test_answers_of_mixed_models_are_not_cached(cluster: ScriptedCluster, engine: Engine) -> None:
    cluster.default = manifest("d")  # the worker's model differs from the model of the stored manifest
    assert (await ask(engine, QUESTION)).cache.ttl_s == 0
    assert await kept(engine, QUESTION) is None
