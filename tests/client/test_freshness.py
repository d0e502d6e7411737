"""No answer comes from a changed or deleted document: caches of several processes against concurrent writers."""

from __future__ import annotations

import asyncio
import random

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.errors import NotFound
from qa_cluster.keys import document_key, epoch_key
from qa_cluster.topology import Shard
from tests.client.engines import ask, opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async

STEPS = 1500


async def test_random_interleavings_never_give_a_stale_answer(cluster: ScriptedCluster) -> None:
    """Three processes write and ask; each answer comes from what was written before the question."""
    chance = random.Random(7)
    async with opened(cluster) as a, opened(cluster) as b, opened(cluster) as c:
        engines = [a, b, c]
        stands: dict[str, str | None] = {f"book{n}": None for n in range(4)}
        hits = 0
        for step in range(STEPS):
            name = chance.choice(list(stands))
            engine = chance.choice(engines)
            action = chance.random()
            if action < 0.12:
                stands[name] = f"Author{step}"
                await engine.documents.put(name, f"Author{step} wrote {name} once.", wait=True)
            elif action < 0.16 and stands[name] is not None:
                stands[name] = None
                await engine.documents.delete(name)
            else:
                result = await ask(engine, f"Who wrote {name} once?", top_k=1, doc_id=(name,))
                found = result.answers[0].answer if result.answers else None
                assert found == stands[name], f"step {step}: {found} from {result.cache}, stored is {stands[name]}"
                hits += result.cache.status == "hit"
        assert hits > STEPS / 10


async def test_writes_under_concurrent_questions_never_give_an_older_answer(cluster: ScriptedCluster) -> None:
    """While one process rewrites a document, the others see its versions in order, never a replaced one."""
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
        # the machine decides how many questions get answers between two writes
        while written < 60 or (answered <= 100 and written < 600 and not any(task.done() for task in tasks)):
            await writer.documents.put("d", f"V{written + 1} wrote it.", wait=written % 2 == 1)
            written += 1
            await asyncio.sleep(0.002)
        finished = True
        await asyncio.gather(*tasks)
        assert answered > 100


async def test_a_plain_set_of_the_epoch_elsewhere_voids_the_near_cache(engine: Engine) -> None:
    await engine.documents.put("d", "Ada wrote it.")
    await ask(engine, "Who wrote it?")
    assert (await ask(engine, "Who wrote it?")).cache.tier == "near"
    epoch = epoch_key(engine.documents.tag_of("other"))
    await engine.shards.execute(epoch, "INCR", epoch)
    assert (await ask(engine, "Who wrote it?")).cache.status == "miss"


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


async def test_flushing_a_server_voids_what_was_answered_from_it(engine: Engine) -> None:
    await engine.documents.put("d", "Ada wrote it.")
    assert (await ask(engine, "Who wrote it?")).answers
    changes = engine.freshness.generation
    owner = engine.shards.shard_of_key(document_key("d", engine.documents.tag_of("d")))
    await engine.shards.execute_on(owner, "FLUSHALL")
    await eventually_async(lambda: engine.freshness.generation > changes)
    assert (await ask(engine, "Who wrote it?")).answers == ()


async def test_a_deleted_document_is_gone_for_everyone(engine: Engine, second_engine: Engine) -> None:
    await engine.documents.put("d", "Ada wrote it.")
    for each in (engine, second_engine):
        assert (await ask(each, "Who wrote it?")).answers
    await second_engine.documents.delete("d")
    for each in (engine, second_engine):
        assert (await ask(each, "Who wrote it?")).answers == ()
        with pytest.raises(NotFound):
            await each.documents.get("d")
