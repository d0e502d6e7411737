"""No answer comes from a changed or deleted document, although several processes cache and write concurrently."""

from __future__ import annotations

import asyncio

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.keys import document_key, index_key
from qa_cluster.ranking.terms import question_terms
from qa_cluster.topology import Shard
from tests.client.engines import ask, opened
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.harness.polling import eventually_async


async def test_writes_under_concurrent_questions_never_give_an_older_answer(cluster: ScriptedCluster) -> None:
    """While one process rewrites a document, no answer comes from a version that was replaced before the question."""
    async with opened(cluster) as writer, opened(cluster) as a, opened(cluster) as b:
        written = answered = 0
        await writer.documents.put("d", "V0 wrote it.")
        finished = False

        async def asking(engine: Engine) -> None:
            nonlocal answered
            while not finished:
                before = written
                result = await ask(engine, "Who wrote it?")
                if result.answers:
                    assert int(result.answers[0].answer[1:]) >= before
                    answered += 1
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(asking(engine)) for engine in (a, b) for _ in range(3)]
        # each further write waits for an answered question: a slow machine answers few questions between two writes
        while written < 60 or answered <= 100:
            seen = answered
            await writer.documents.put("d", f"V{written + 1} wrote it.", wait=written % 2 == 1)
            written += 1
            await asyncio.sleep(0.002)
            while written >= 60 and answered == seen and not any(task.done() for task in tasks):
                await asyncio.sleep(0.002)
            if any(task.done() for task in tasks):
                break  # a question failed; `gather` raises its error
        finished = True
        await asyncio.gather(*tasks)
        assert answered > 100


async def test_a_write_invalidates_only_the_answers_that_it_may_change(cluster: ScriptedCluster) -> None:
    async with opened(cluster, answer_drift=1.0) as asking, opened(cluster, answer_drift=1.0) as writing:
        for number in range(30):
            await writing.documents.put(f"filler {number}", f"Fillers say nothing {number}.", wait=True)
        await writing.documents.put("ada", "Ada wrote programs.", wait=True)
        await writing.documents.put("owls", "Owls hunt mice.", wait=True)
        for question in ("Who wrote programs?", "What hunts mice?"):
            await ask(asking, question)
        await writing.documents.put("noise", "Trains are late today.", wait=True)
        await writing.documents.delete("filler 3")
        tiers = [(await ask(asking, question)).cache.tier for question in ("Who wrote programs?", "What hunts mice?")]
        assert tiers == ["near", "near"]
        await writing.documents.put("cats", "Cats hunt mice.", wait=True)
        assert (await ask(asking, "Who wrote programs?")).cache.tier == "near"
        result = await ask(asking, "What hunts mice?")
        assert result.cache.status == "miss"
        assert {answer.answer for answer in result.answers} == {"Owls", "Cats"}


async def test_an_answer_is_not_cached_if_a_write_invalidates_it_during_the_question(
    cluster: ScriptedCluster, engine: Engine, second_engine: Engine
) -> None:
    await engine.documents.put("ada", "Ada wrote programs.", wait=True)
    release, held = asyncio.Event(), asyncio.Event()

    async def read(node: Node, arguments: list[str]) -> list[bytes]:
        held.set()
        await release.wait()
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = read
    asked = asyncio.create_task(ask(engine, "Who wrote programs?"))
    await held.wait()
    await eventually_async(lambda: watched(cluster))
    await second_engine.documents.put("bob", "Bob wrote programs.", wait=True)
    release.set()
    assert (await asked).cache.ttl_s == 0
    assert {answer.answer for answer in (await ask(engine, "Who wrote programs?")).answers} == {"Ada", "Bob"}


async def test_an_answer_that_is_invalidated_with_many_others_is_not_given_again(
    cluster: ScriptedCluster, engine: Engine, second_engine: Engine
) -> None:
    """The shard reports the removal without the names of its many questions. This process has an answer of one."""
    await engine.documents.put("ada", "Ada wrote programs.", wait=True)
    await ask(engine, "Who wrote programs?")
    assert (await ask(engine, "Who wrote programs?")).cache.tier == "near"
    key = index_key(engine.partitions.tag_of("ada"))
    ranked = await cluster.at(key, "QA.INDEX.RANK", key, "1", "1", "TERMS", "1", *question_terms("programs"), "1")
    _, (identity, following), (place,) = ranked[3:]
    state, used = f"{identity} {following} 1000000 1 0 9", f"TERMS 0 DOCUMENTS 1 ada {place}"
    for number in range(600):
        words = f"QA.INDEX.WATCH {key} q{number} 60000 {state} {used}"
        assert await cluster.at(key, *words.split())
    await second_engine.documents.delete("ada")
    result = await ask(engine, "Who wrote programs?")
    assert (result.cache.status, list(result.answers)) == ("miss", [])


async def watched(cluster: ScriptedCluster) -> bool:
    """Whether every shard watches at least one question."""
    infos = [str(await node.commands.execute("INFO", "qa_index")) for node in cluster.nodes]
    return all("qa_watched_questions:0" not in info for info in infos)


async def test_without_tracking_cached_answers_are_bypassed_until_it_is_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.documents.put("d", "Ada wrote it.")
    await ask(engine, "Who wrote it?")
    link = next(iter(engine.freshness._links.values()))
    generation = engine.freshness.generation
    subscribe = engine.freshness._subscribe
    asked = asyncio.Event()

    async def subscribe_later(shard: Shard) -> None:
        await asked.wait()
        await subscribe(shard)

    monkeypatch.setattr(engine.freshness, "_subscribe", subscribe_later)
    link.connection.close()
    assert not engine.freshness.ready
    bypassed = await ask(engine, "Who wrote it?")
    assert (bypassed.cache.status, bypassed.cache.ttl_s) == ("miss", 0)
    asked.set()
    await eventually_async(engine.freshness.drained)
    assert engine.freshness.generation > generation
    await ask(engine, "Who wrote it?")
    assert (await ask(engine, "Who wrote it?")).cache.tier == "near"


async def test_flushing_a_server_invalidates_its_answers(engine: Engine) -> None:
    await engine.documents.put("d", "Ada wrote it.")
    assert (await ask(engine, "Who wrote it?")).answers
    changes = engine.freshness.generation
    owner = engine.shards.shard_of_key(document_key("d", engine.documents.tag_of("d")))
    await engine.shards.execute_on(owner, "FLUSHALL")
    await eventually_async(lambda: engine.freshness.generation > changes)
    assert (await ask(engine, "Who wrote it?")).answers == ()
