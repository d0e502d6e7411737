"""The question pipeline on real servers with scripted functions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from qa_cluster.asking.asker import CacheMiss, Outcome
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import AskOptions
from qa_cluster.errors import ClusterError, DeadlineExceeded, InferenceFailed, ModelError, QueueFull, ReplyError
from qa_cluster.keys import PARTITIONS_KEY
from qa_cluster.types import AskResult
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.client.scripted_fixtures import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[Engine]:
    engine = await cluster.target(**options).open()
    try:
        yield engine
    finally:
        await engine.aclose()


async def ask(engine: Engine, question: str, **options: Any) -> AskResult:
    outcome: Outcome = await engine.ask(question, AskOptions(**options))
    return outcome.result("id")


async def write(engine: Engine, *texts: str) -> None:
    for number, text in enumerate(texts):
        await engine.documents.put(f"doc {number}", text, title=f"T{number}")


async def test_the_answer_is_where_the_result_says(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Nothing here. \U0001f600 Zoë wrote programs in Köln.", "Bob sang.")
        result = await ask(engine, "Who  wrote programs in Köln?")
        assert result.answerable and result.best is not None
        document = await engine.documents.get(result.best.document_id)
        assert document.text[result.best.start : result.best.end] == result.best.answer == "Zoë"
        assert document.text[result.best.context_start : result.best.context_end] == result.best.context
        assert result.question == "Who wrote programs in Köln?"
        assert result.best.document_version == document.version
        assert result.model.revision == "a" * 12
        assert result.best.title == "T0"
        assert result.best.shard in {shard.name for shard in engine.shards.all}


async def test_reading_stops_at_the_wave_that_is_sure(cluster: ScriptedCluster) -> None:
    texts = [f"Person{number} wrote good programs." for number in range(12)]

    async with opened(cluster, near_cache_entries=0) as engine:
        await write(engine, *texts)
        sure = await ask(engine, "Who wrote good programs?", cache="off")
        assert (sure.usage.waves, sure.usage.sentences_read) == (1, 1)
        unsure = await ask(engine, "Who wrote programs?", cache="off")
        assert (unsure.usage.waves, unsure.usage.sentences_read) == (3, 8)
        whole = await ask(engine, "Who wrote good programs?", cache="off", waves=False)
        assert (whole.usage.waves, whole.usage.sentences_read) == (1, 8)
        few = await ask(engine, "Who wrote programs?", cache="off", retriever_k=2)
        assert (few.usage.waves, few.usage.sentences_read) == (2, 2)
        assert len(unsure.timings_ms.read) == 3


async def test_a_wave_is_one_command_per_shard(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, *[f"Person{number} wrote programs." for number in range(12)])
        cluster.calls.clear()
        await ask(engine, "Who wrote programs?", waves=False)
        assert cluster.count("qa.rank") == 3
        assert cluster.count("qa.read") <= 3


async def test_no_stored_word_is_no_answer(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        result = await ask(engine, "Who wrote programs?")
        assert (result.answerable, result.answers, result.usage.candidates) == (False, (), 0)
        assert result.no_answer_score == 1.0
        await write(engine, "Programs run.")
        weak = await ask(engine, "Who owns programs and houses and ships?", no_answer=True)
        assert weak.answerable == (weak.answers != ())


async def test_only_the_documents_asked_for(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.", "Bob wrote programs.")
        result = await ask(engine, "Who wrote programs?", doc_id=("doc 1",))
        assert [answer.document_id for answer in result.answers] == ["doc 1"]
        assert (await ask(engine, "Who wrote programs?", doc_id=("none",))).answers == ()


async def test_tiers_of_a_repeated_question(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as first, opened(cluster) as second:
        await write(first, "Ada wrote programs.")
        assert (await ask(first, "Who wrote programs?")).cache.tier == "none"
        asked = cluster.count("qa.rank")
        near = await ask(first, "WHO wrote programs")
        assert (near.cache.status, near.cache.tier, near.question) == ("hit", "near", "WHO wrote programs")

        async def stored() -> bool:
            return (await ask(second, "Who wrote programs?", cache="only")).cache.tier == "shard"

        await until(lambda: _without_miss(stored()))
        assert (await ask(second, "Who wrote programs?")).cache.tier == "near"
        assert cluster.count("qa.rank") == asked


async def _without_miss(work: Any) -> bool:
    try:
        return bool(await work)
    except CacheMiss:
        return False


async def test_cache_modes(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        with pytest.raises(CacheMiss):
            await ask(engine, "Who wrote programs?", cache="only")
        assert (await ask(engine, "Who wrote programs?", cache="off")).cache.status == "off"
        with pytest.raises(CacheMiss):
            await ask(engine, "Who wrote programs?", cache="only")
        assert (await ask(engine, "Who wrote programs?", cache="refresh")).cache.status == "refresh"
        assert (await ask(engine, "Who wrote programs?", cache="only")).cache.tier == "near"


async def test_identical_questions_at_once_are_one_piece_of_work(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        results = await asyncio.gather(*(ask(engine, "Who wrote programs?") for _ in range(100)))
        assert all(result.answers == results[0].answers != () for result in results)
        assert cluster.count("qa.rank") == 3


async def test_work_is_cancelled_when_the_last_asker_leaves(cluster: ScriptedCluster) -> None:
    async def forever(node: Node, arguments: list[str]) -> list[bytes]:
        await asyncio.sleep(60)
        return []

    async with opened(cluster) as engine:
        cluster.triggers["qa.rank"] = forever
        askers = [asyncio.create_task(ask(engine, "Who wrote programs?")) for _ in range(2)]
        await until(lambda: cluster.count("qa.rank") == 3)
        askers[0].cancel()
        await asyncio.sleep(0.05)
        assert (engine.asker.flights, cluster.cancelled) == (1, 0)
        askers[1].cancel()
        await until(lambda: cluster.cancelled == 3)
        assert engine.asker.flights == 0
        assert all(engine.shards.pool(shard.address).in_use == 0 for shard in engine.shards.all)


async def test_the_deadline_holds(cluster: ScriptedCluster) -> None:
    async def slow(node: Node, arguments: list[str]) -> list[bytes]:
        await asyncio.sleep(60)
        return []

    async with opened(cluster) as engine:
        cluster.triggers["qa.rank"] = slow
        begun = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match="100 ms"):
            await ask(engine, "Who?", timeout_ms=100)
        assert asyncio.get_running_loop().time() - begun < 5
        await until(lambda: cluster.cancelled == cluster.count("qa.rank"))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("OVERLOADED queue is full: 1024 jobs", QueueFull),
        ("DEADLINE job", DeadlineExceeded),
        ("INFERENCE boom", InferenceFailed),
    ],
)
async def test_errors_of_a_shard_are_those_of_the_question(
    cluster: ScriptedCluster, reply: str, error: type[Exception]
) -> None:
    async def refuse(node: Node, arguments: list[str]) -> list[bytes]:
        raise ReplyError(reply)

    async def refuse_inside(node: Node, arguments: list[str]) -> list[bytes]:
        return [b"-" + reply.encode() for _ in arguments[3:]]

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        for trigger, behaviour in (("qa.rank", refuse), ("qa.read", refuse), ("qa.read", refuse_inside)):
            cluster.reset()
            cluster.triggers[trigger] = behaviour
            with pytest.raises(error):
                await ask(engine, "Who wrote programs?")


@pytest.mark.parametrize("lie", [[b"not json"], [b"{}"], [], [b"[]"]])
async def test_nonsense_of_a_shard_is_an_error(cluster: ScriptedCluster, lie: list[bytes]) -> None:
    async def wrong(node: Node, arguments: list[str]) -> list[bytes]:
        return lie

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        for trigger in ("qa.rank", "qa.read"):
            cluster.reset()
            cluster.triggers[trigger] = wrong
            with pytest.raises(ClusterError, match="shard"):
                await ask(engine, "Who wrote programs?")


async def test_too_many_questions_at_a_shard_are_refused_at_once(cluster: ScriptedCluster) -> None:
    release = asyncio.Event()

    async def wait(node: Node, arguments: list[str]) -> list[bytes]:
        await release.wait()
        return await cluster.rank(node, arguments)

    async with opened(cluster, connections_per_shard=2, max_waiting_per_shard=2) as engine:
        cluster.triggers["qa.rank"] = wait
        asked = [asyncio.create_task(ask(engine, f"Who wrote number {n}?")) for n in range(4)]
        pools = [engine.shards.pool(shard.address) for shard in engine.shards.all]
        await until(lambda: cluster.count("qa.rank") == 6 and all(pool._waiting == 2 for pool in pools))
        begun = asyncio.get_running_loop().time()
        with pytest.raises(QueueFull):
            await ask(engine, "Who is one too many?")
        assert asyncio.get_running_loop().time() - begun < 3
        release.set()
        assert all(not result.answerable for result in await asyncio.gather(*asked))


async def test_lost_connections_cost_another_try(cluster: ScriptedCluster) -> None:
    cut = False

    async def cutting(node: Node, arguments: list[str]) -> list[bytes]:
        nonlocal cut
        if not cut:
            cut = True
            for writer in list(node.clients):
                writer.transport.abort()
        return await cluster.rank(node, arguments)

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        cluster.triggers["qa.rank"] = cutting
        assert (await ask(engine, "Who wrote programs?")).answerable


async def test_partitions_that_no_shard_ranks_are_asked_for_again(cluster: ScriptedCluster) -> None:
    left_out = 3

    async def forgetful(node: Node, arguments: list[str]) -> list[bytes]:
        nonlocal left_out
        reply = orjson.loads((await cluster.rank(node, arguments))[0])
        if left_out:
            left_out -= 1
            reply |= {"epochs": {}, "candidates": []}
        return [orjson.dumps(reply)]

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        cluster.triggers["qa.rank"] = forgetful
        assert (await ask(engine, "Who wrote programs?")).answerable
        left_out_for_good = ask(engine, "Who wrote all the programs?", timeout_ms=300)
        left_out = 10**9
        with pytest.raises(DeadlineExceeded):
            await left_out_for_good


async def test_a_frozen_server_does_not_hold_a_question_beyond_its_deadline(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        engine.freshness.manifest_changes += 1
        server = cluster.nodes[0].process
        server.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(10):
                for number in range(2):
                    with pytest.raises(DeadlineExceeded):
                        await ask(engine, f"Who wrote {number} programs?", timeout_ms=200)
                found = await engine.shards.refresh()
                assert found.whole
        finally:
            server.send_signal(signal.SIGCONT)
        assert (await ask(engine, "Who wrote programs?")).answerable


async def test_a_document_that_changes_between_rank_and_read_is_ranked_again(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        changed = False

        async def read(node: Node, arguments: list[str]) -> list[bytes]:
            nonlocal changed
            found = await cluster.read(node, arguments)
            if not changed:
                changed = True
                await engine.documents.put("doc 0", "Bob wrote programs.")
            return found

        cluster.triggers["qa.read"] = read
        result = await ask(engine, "Who wrote programs?")
        assert [answer.answer for answer in result.answers] == ["Bob"]


async def test_another_model_asks_anew(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        assert (await ask(engine, "Who wrote programs?")).model.revision == "a" * 12
        changes = engine.freshness.manifest_changes
        await cluster.set_manifest("c")
        await until(lambda: engine.freshness.manifest_changes > changes)
        result = await ask(engine, "Who wrote programs?")
        assert (result.cache.status, result.model.revision) == ("miss", "c" * 12)


async def test_another_reading_context_asks_anew(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        assert (await ask(engine, "Who wrote programs?")).cache.status == "miss"
        assert (await ask(engine, "Who wrote programs?")).cache.status == "hit"
        for context_tokens in (96, 128):
            changes = engine.freshness.manifest_changes
            await cluster.set_manifest("a", context_tokens)
            await until(lambda changes=changes: engine.freshness.manifest_changes > changes)  # type: ignore[misc]
            result = await ask(engine, "Who wrote programs?")
            assert (result.cache.status, result.model.revision) == ("miss", "a" * 12)
            assert (await ask(engine, "Who wrote programs?")).cache.status == "hit"


def changed(cluster: ScriptedCluster, change: Callable[[dict[str, Any]], object]) -> None:
    """Have every reading changed before it is sent."""

    async def read(node: Node, arguments: list[str]) -> list[bytes]:
        readings = [orjson.loads(reading) for reading in await cluster.read(node, arguments)]
        for reading in readings:
            change(reading)
        return [orjson.dumps(reading) for reading in readings]

    cluster.triggers["qa.read"] = read


async def test_one_sentence_may_give_several_answers(cluster: ScriptedCluster) -> None:
    def add_spans(reading: dict[str, Any]) -> None:
        (start, end, score, sentence) = reading["spans"][0]
        at = reading["sentence_start"] + reading["sentence"].index("programs")
        reading["spans"] += [[at, at + 8, score - 2, sentence], [start, end + 1, score - 3, sentence]]

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote good programs.", "Bob wrote programs.")
        changed(cluster, add_spans)
        result = await ask(engine, "Who wrote good programs?", top_k=5, waves=False)
        found = [(answer.document_id, answer.answer, answer.logit) for answer in result.answers]
        # the third span of each overlaps its first
        assert found == [
            ("doc 0", "Ada", 9),
            ("doc 0", "programs", 7),
            ("doc 1", "Bob", 5),
            ("doc 1", "programs", 3),
        ]
        assert [answer.rank for answer in result.answers] == [1, 2, 3, 4]
        assert len((await ask(engine, "Who wrote good programs?", top_k=2, waves=False)).answers) == 2


async def test_an_answer_from_a_neighbour_names_its_sentence_and_what_was_read(cluster: ScriptedCluster) -> None:
    text = "Ada sang.\nShe wrote programs."

    def widen(reading: dict[str, Any]) -> None:
        reading |= {"context": text.replace("\n", " "), "context_start": 0, "spans": [[0, 3, 7.0, 0]], "windows": 2}

    async with opened(cluster) as engine:
        await write(engine, text)
        changed(cluster, widen)
        result = await ask(engine, "Who wrote programs?")
        assert [answer.answer for answer in result.answers] == ["Ada"]
        best = result.answers[0]
        assert (best.start, best.end, best.passage_id) == (0, 3, "doc 0:0")
        assert (best.context, best.context_start, best.context_end) == (text.replace("\n", " "), 0, len(text))
        assert (result.usage.windows, result.usage.truncated) == (2, False)


async def test_a_cut_off_question_is_reported(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.", "Bob wrote programs.")
        whole = (await ask(engine, "Who wrote programs?", cache="off")).usage
        assert (whole.truncated, whole.windows) == (False, whole.sentences_read)
        changed(cluster, lambda reading: reading.update(truncated=True))
        assert (await ask(engine, "Who wrote programs?", cache="off")).usage.truncated


async def test_answers_of_mixed_models_are_not_kept(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        cluster.revision = "d" * 12
        assert (await ask(engine, "Who wrote programs?")).cache.ttl_s == 0
        with pytest.raises(CacheMiss):
            await ask(engine, "Who wrote programs?", cache="only")


async def test_results_survive_json(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        result = await ask(engine, "Who wrote programs?")
        assert AskResult.from_json(result.to_json()) == result
        assert replace(result, id="other") != result


async def test_a_question_after_a_write_does_not_join_work_from_before_it(cluster: ScriptedCluster) -> None:
    release = asyncio.Event()
    held = 0

    async def rank(node: Node, arguments: list[str]) -> list[bytes]:
        nonlocal held
        found = await cluster.rank(node, arguments)
        held += 1
        if held <= 3:
            await release.wait()
        return found

    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        cluster.triggers["qa.rank"] = rank
        before = asyncio.create_task(ask(engine, "Who wrote programs?"))
        await until(lambda: held == 3)
        await write(engine, "Bob wrote programs.")
        assert [answer.answer for answer in (await ask(engine, "Who wrote programs?")).answers] == ["Bob"]
        release.set()
        await before
        assert [answer.answer for answer in (await ask(engine, "Who wrote programs?")).answers] == ["Bob"]


async def test_without_a_model_documents_can_be_written_and_questions_say_why_not(cluster: ScriptedCluster) -> None:
    for node in cluster.nodes:
        for key in await node.commands.execute("KEYS", "bert-qa*"):
            await node.commands.execute("DEL", key)
    try:
        async with opened(cluster) as engine:
            await write(engine, "Ada wrote programs.")
            with pytest.raises(ModelError, match="no shard has a model"):
                await ask(engine, "Who wrote programs?")
            changes = engine.freshness.manifest_changes
            await cluster.set_manifest("a")
            await until(lambda: engine.freshness.manifest_changes > changes)
            assert (await ask(engine, "Who wrote programs?")).answerable
    finally:
        await cluster.set_manifest("a")


async def test_another_number_of_partitions_is_noticed(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await write(engine, "Ada wrote programs.")
        changes = engine.freshness.manifest_changes
        await engine.shards.execute(PARTITIONS_KEY, "SET", PARTITIONS_KEY, 24)
        try:
            await until(lambda: engine.freshness.manifest_changes > changes)
            with pytest.raises(DeadlineExceeded):  # the scripted shards go on ranking the old ones
                await ask(engine, "Who wrote programs?", timeout_ms=1000)
            assert engine.partitions == engine.documents.partitions == 24
            assert len(await engine.freshness.epochs() or ()) == 24
        finally:
            changes = engine.freshness.manifest_changes
            await engine.shards.execute(PARTITIONS_KEY, "SET", PARTITIONS_KEY, 12)
        await until(lambda: engine.freshness.manifest_changes > changes)
        assert (await ask(engine, "Who wrote programs?")).answerable
        assert engine.partitions == 12
