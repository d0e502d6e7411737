"""A changed or deleted document is never answered from: caches of several processes against concurrent writers."""

from __future__ import annotations

import asyncio
import random

import pytest

from qa_cluster.errors import NotFound
from qa_cluster.topology import Shard
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_fixtures import until
from tests.client.test_asking import ask, opened

pytestmark = pytest.mark.anyio

STEPS = 1500


async def test_random_interleavings_never_give_a_stale_answer(cluster: ScriptedCluster) -> None:
    """Three processes write and ask; what was written before a question was asked is what it is answered from."""

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
    """While one process rewrites a document, the others see its versions in order, never one that had been replaced."""

    async with opened(cluster) as writer, opened(cluster) as a, opened(cluster) as b:
        written = answered = 0
        await writer.documents.put("d", "V0 wrote it.")
        finished = False

        async def asking(engine: object) -> None:
            nonlocal answered
            while not finished:
                before = written
                result = await ask(engine, "Who wrote it?")  # type: ignore[arg-type]
                if result.answers:
                    assert int(result.answers[0].answer[1:]) >= before
                    answered += 1
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(asking(engine)) for engine in (a, b) for _ in range(3)]
        # how many are answered between two writes is for the machine to say
        while written < 60 or (answered <= 100 and written < 600 and not any(task.done() for task in tasks)):
            await writer.documents.put("d", f"V{written + 1} wrote it.", wait=written % 2 == 1)
            written += 1
            await asyncio.sleep(0.002)
        finished = True
        await asyncio.gather(*tasks)
        assert answered > 100


async def test_a_plain_set_of_the_epoch_elsewhere_voids_the_near_cache(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await engine.documents.put("d", "Ada wrote it.")
        await ask(engine, "Who wrote it?")
        assert (await ask(engine, "Who wrote it?")).cache.tier == "near"
        tag = engine.documents.tag_of("other")
        await engine.shards.execute(f"epoch:{{{tag}}}", "INCR", f"epoch:{{{tag}}}")
        assert (await ask(engine, "Who wrote it?")).cache.status == "miss"


async def test_without_tracking_cached_answers_are_bypassed_until_it_is_back(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(cluster) as engine:
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
        await until(engine.freshness.drained)
        assert engine.freshness.generation > generation
        await ask(engine, "Who wrote it?")
        assert (await ask(engine, "Who wrote it?")).cache.tier == "near"


async def test_flushing_the_servers_voids_everything(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await engine.documents.put("d", "Ada wrote it.")
        await ask(engine, "Who wrote it?")
        changes = engine.freshness.generation
        tag = engine.documents.tag_of("d")
        key = f"document:d:{{{tag}}}"
        owner = engine.shards.shard_of_key(key)
        kept = {
            name: await engine.shards.execute(name, "GET", name)
            for name in ["qa:partitions"]
            if engine.shards.shard_of_key(name) == owner
        }
        await engine.shards.execute_on(owner, "FLUSHALL")
        await until(lambda: engine.freshness.generation > changes)
        assert (await ask(engine, "Who wrote it?")).answers == ()
        for name, value in kept.items():
            await engine.shards.execute(name, "SET", name, value)
        await cluster.set_manifest("a")


async def test_a_deleted_document_is_gone_for_everyone(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as a, opened(cluster) as b:
        await a.documents.put("d", "Ada wrote it.")
        for engine in (a, b):
            assert (await ask(engine, "Who wrote it?")).answers
        await b.documents.delete("d")
        for engine in (a, b):
            assert (await ask(engine, "Who wrote it?")).answers == ()
            try:
                await engine.documents.get("d")
            except NotFound:
                continue
            raise AssertionError("still there")
