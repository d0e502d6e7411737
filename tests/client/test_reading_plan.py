"""Plans of two stages: a second reader reads the best sentences of the first reader, and decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import AskLimits, check_question
from qa_cluster.errors import ModelError, ReplyError
from qa_cluster.options.questions import AskOptions
from qa_cluster.reading.manifest import Calibration
from qa_cluster.reading.plan import WAVES, StageOptions
from qa_cluster.types import AskResult
from tests.client.engines import ask, kept, noticed, opened, write
from tests.client.scripted_cluster import Node, ScriptedCluster, manifest
from tests.client.test_down import LONG_SECONDS, name_on, without

QUESTION = "Who wrote programs?"
SMALL = manifest("a")
LARGE = replace(manifest("c", "large"), calibration=Calibration(1.0, 1.0))
FIRST, SECOND = StageOptions(waves=WAVES), StageOptions(model="large", candidates=2)
PLAN = (FIRST, SECOND)
# The large scripted reader is sure only of "Bob".
TEXTS = ("Ada wrote programs.", "Bob and another wrote programs.", "Cyd and the others wrote programs.", "Dan wrote.")


@pytest.fixture
def readers(cluster: ScriptedCluster) -> list[tuple[str, list[str]]]:
    """Load two readers. Return the calls: the reader's name and the sentences."""
    asked: list[tuple[str, list[str]]] = []

    async def read(node: Node, arguments: list[str]) -> list[bytes]:
        _, reader, _, *names = arguments
        asked.append((reader, names))
        if reader not in {SMALL.name, *cluster.named}:
            raise ReplyError(f"MODEL model {reader!r} is not loaded on this shard")
        replies = await cluster.read(node, arguments)
        return [_scored(reply, "Bob", 5.0) for reply in replies] if reader == LARGE.name else replies

    cluster.triggers["qa.read"] = read
    return asked


def _scored(reply: bytes, name: str, score: float) -> bytes:
    """The reply with this score if the sentence has the name, otherwise with a low score."""
    if reply.startswith(b"-"):
        return reply
    reading = orjson.loads(reply)
    reading["spans"][0][2] = score if name in reading["sentence"] else -5.0
    return orjson.dumps(reading)


@pytest.fixture
async def cascade(cluster: ScriptedCluster, readers: object) -> AsyncIterator[Engine]:
    """An engine with a plan of two stages, both readers, and four documents."""
    await cluster.load(LARGE)
    async with opened(cluster, plan=PLAN) as engine:
        await write(engine, *TEXTS)
        yield engine


def told(result: AskResult) -> tuple[str, str]:
    """The reader that gave the answer, and the answer."""
    return result.model.id, result.best.answer if result.best else ""


async def test_the_second_reader_reads_the_best_of_the_first_and_decides(
    cascade: Engine, readers: list[tuple[str, list[str]]]
) -> None:
    result = await ask(cascade, QUESTION)
    assert told(result) == ("large", "Bob")
    assert result.model.revision == LARGE.revision
    assert (result.usage.candidates, result.usage.sentences_read, result.usage.waves) == (4, 6, 3)
    assert len(result.timings_ms.read) == 3
    seconds = [name.partition(":")[0] for reader, names in readers if reader == LARGE.name for name in names]
    assert sorted(seconds) == ["doc 0", "doc 1"]
    assert result.best is not None and result.best.logit == 5.0
    assert result.best.score > 0.99  # by the large reader's calibration; the small reader's would give 0.92
    assert (await ask(cascade, QUESTION)).cache.status == "hit"
    for model, answer in (("scripted", "Ada"), ("large", "Bob")):
        assert told(await ask(cascade, QUESTION, model=model)) == (model, answer)


async def test_the_second_stage_is_left_out_when_the_first_is_sure(cluster: ScriptedCluster, cascade: Engine) -> None:
    # the best score of the small reader is 5
    for threshold, found, read in ((5.0, ("scripted", "Ada"), (4, 2)), (5.1, ("large", "Bob"), (6, 3))):
        async with opened(cluster, plan=(replace(FIRST, final_threshold=threshold), SECOND)) as engine:
            result = await ask(engine, QUESTION)
            assert (told(result), (result.usage.sentences_read, result.usage.waves)) == (found, read)
            assert told(await ask(engine, QUESTION, waves=False)) == ("large", "Bob")  # every stage reads everything


async def test_a_stage_with_its_own_waves_stops_when_it_is_sure(cluster: ScriptedCluster, cascade: Engine) -> None:
    await cluster.load(replace(LARGE, wave_threshold=4.0))
    async with opened(cluster, plan=(FIRST, replace(SECOND, waves=(1, 2, 3), candidates=4))) as engine:
        result = await ask(engine, QUESTION)
    assert (told(result), result.usage.waves) == (("large", "Bob"), 2 + 2)


async def test_without_a_candidate_no_stage_reads(cascade: Engine, readers: list[tuple[str, list[str]]]) -> None:
    result = await ask(cascade, "Where do zebras graze?")
    assert (result.answerable, result.answers, result.no_answer_score) == (False, (), 1.0)
    assert (result.model.id, result.usage.waves, result.usage.candidates) == ("scripted", 0, 0)
    assert not readers


async def test_a_stage_without_its_reader_is_skipped_and_caches_never_mix_plans(
    cluster: ScriptedCluster, readers: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(cluster, plan=PLAN) as engine:
        await write(engine, *TEXTS)
        for status in ("miss", "hit"):
            short = await ask(engine, QUESTION)
            assert (told(short), short.cache.status) == (("scripted", "Ada"), status)
        left_out = [record.message for record in caplog.records if "left out until its reader" in record.message]
        assert len(left_out) == 1 and "'large' is not loaded" in left_out[0]
        async with noticed(engine):
            await cluster.load(LARGE)
        assert await kept(engine, QUESTION) is None
        for status in ("miss", "hit"):
            whole = await ask(engine, QUESTION)
            assert (told(whole), whole.cache.status) == (("large", "Bob"), status)
        async with opened(cluster) as other:  # this engine has a plan of one stage
            assert told(await ask(other, QUESTION)) == ("scripted", "Ada")


async def test_retries_for_a_reader_that_a_shard_lacks_end_with_an_error(
    cluster: ScriptedCluster, cascade: Engine
) -> None:
    assert told(await ask(cascade, QUESTION)) == ("large", "Bob")
    read = cluster.triggers["qa.read"]

    async def lacks(node: Node, arguments: list[str]) -> Any:
        if arguments[1] == LARGE.name:
            raise ReplyError(f"MODEL model {LARGE.name!r} is not loaded on this shard")
        return await read(node, arguments)

    cluster.triggers["qa.read"] = lacks
    with pytest.raises(ModelError, match=f"{LARGE.name}.* is not loaded on this shard"):
        await ask(cascade, "Who wrote other programs?")


async def test_a_plan_without_its_first_reader_is_an_error_that_names_it(cluster: ScriptedCluster) -> None:
    async with opened(cluster, plan=(StageOptions(model="nope"), FIRST)) as engine:
        with pytest.raises(ModelError, match="first stage of the reading plan has no reader: model 'nope'"):
            await ask(engine, QUESTION)


async def test_the_scores_of_the_first_reader_count_in_the_second_stage(
    cluster: ScriptedCluster, cascade: Engine
) -> None:
    read = cluster.triggers["qa.read"]

    async def sure_of_ada(node: Node, arguments: list[str]) -> Any:
        replies = await read(node, arguments)
        return [_scored(reply, "Ada", 9.0) for reply in replies] if arguments[1] == SMALL.name else replies

    cluster.triggers["qa.read"] = sure_of_ada
    for weight, answer in ((0.0, "Bob"), (100.0, "Ada")):
        async with opened(cluster, plan=(FIRST, replace(SECOND, earlier_weight=weight))) as engine:
            assert told(await ask(engine, QUESTION, cache="off")) == ("large", answer)


async def test_an_answer_of_an_unplanned_second_reader_is_not_cached(cluster: ScriptedCluster, cascade: Engine) -> None:
    # the stored manifest differs from the reader that is loaded
    cluster.named[LARGE.name] = replace(LARGE, context_tokens=96)
    result = await ask(cascade, QUESTION)
    assert (told(result), result.cache.ttl_s) == (("large", "Bob"), 0)
    assert await kept(cascade, QUESTION) is None


async def test_a_question_is_ranked_again_if_sentences_vanish_before_the_second_stage(
    cluster: ScriptedCluster, cascade: Engine
) -> None:
    read = cluster.triggers["qa.read"]

    async def change(node: Node, arguments: list[str]) -> Any:
        if arguments[1] == LARGE.name:
            cluster.triggers["qa.read"] = read
            for number in (0, 1):
                await cascade.documents.delete(f"doc {number}")
        return await read(node, arguments)

    cluster.triggers["qa.read"] = change
    result = await ask(cascade, QUESTION, no_answer=False)
    assert told(result) == ("large", "Cyd")
    assert result.usage.candidates == 2


async def test_a_shard_that_is_down_is_left_out_by_both_stages(cluster: ScriptedCluster, cascade: Engine) -> None:
    for number in range(4):
        await cascade.documents.delete(f"doc {number}")
    for node, text in zip(cluster.nodes, TEXTS, strict=False):
        await cascade.documents.put(name_on(cascade, node), text, wait=True)
    async with without(cascade, cluster.nodes[0]):
        result = await ask(cascade, QUESTION, coverage="partial", timeout=LONG_SECONDS)
        assert (told(result), result.index.partial, result.cache.ttl_s) == (("large", "Bob"), True, 0)
    assert told(await ask(cascade, QUESTION)) == ("large", "Bob")


async def test_the_plan_of_a_question_has_the_readers_that_are_loaded(cascade: Engine) -> None:
    question = check_question(QUESTION, AskOptions(retriever_k=9), AskLimits())
    first, second = (await cascade.asker.plan(question)).stages
    assert (first.reader, first.candidates, first.waves) == (SMALL, 9, WAVES)
    assert (second.reader, second.candidates, second.waves) == (LARGE, 2, ())
