"""Results of questions: the offsets of answers, the work of the shards, and the other fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from qa_cluster.asking.engine import Engine
from qa_cluster.types import AskResult
from tests.client.engines import ask, write
from tests.client.scripted_cluster import Node, ScriptedCluster

QUESTION = "Who wrote programs?"


async def test_the_offsets_of_an_answer_are_correct(engine: Engine) -> None:
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
    assert AskResult.from_json(result.to_json()) == result


SURE, UNSURE = "Who wrote good programs?", "Who wrote programs?"
READ: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    (SURE, {}, 1, 3),
    (UNSURE, {}, 2, 8),
    (SURE, {"waves": False}, 1, 8),
    (UNSURE, {"retriever_k": 4}, 2, 4),
    (UNSURE, {"plan": "fast"}, 2, 6),
    (UNSURE, {"plan": "accurate"}, 2, 12),  # its second reader is not loaded
)


async def test_reading_stops_after_the_wave_with_a_sure_answer(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, *[f"Person{number} wrote good programs." for number in range(20)])
    for question, options, waves, sentences in READ:
        result = await ask(engine, question, **options)
        assert (result.usage.waves, result.usage.sentences_read) == (waves, sentences), (question, options)
        assert len(result.timings_ms.read) == waves
    before = cluster.count("qa.read")
    await ask(engine, UNSURE, waves=False)
    assert 1 <= cluster.count("qa.read") - before <= 3, "a wave is one command per shard"


async def test_a_sentence_that_was_read_with_its_neighbour_is_not_read_again(engine: Engine) -> None:
    pair = ["Ada wrote programs, wrote programs together.", "Bo and others of that small old town wrote programs."]
    await write(engine, " ".join(pair), *[f"Person{number} wrote programs." for number in range(4)])
    result = await ask(engine, QUESTION)
    assert (result.usage.candidates, result.usage.sentences_read, result.usage.waves) == (6, 5, 2)
    apart = await ask(engine, QUESTION, doc_id=tuple(f"doc {number}" for number in range(1, 5)))
    assert (apart.usage.candidates, apart.usage.sentences_read) == (4, 4)


def changed(cluster: ScriptedCluster, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to every reading before the shard sends it."""

    async def read(node: Node, arguments: list[str]) -> list[bytes]:
        readings = [orjson.loads(reading) for reading in await cluster.read(node, arguments)]
        for reading in readings:
            change(reading)
        return [orjson.dumps(reading) for reading in readings]

    cluster.triggers["qa.read"] = read


async def test_one_sentence_may_give_several_answers(cluster: ScriptedCluster, engine: Engine) -> None:
    def add_spans(reading: dict[str, Any]) -> None:
        (start, end, score, sentence) = reading["spans"][0]
        at = reading["sentence_start"] + reading["sentence"].index("programs")
        reading["spans"] += [[at, at + 8, score - 2, sentence], [start, end + 1, score - 3, sentence]]

    await write(engine, "Ada wrote good programs.", "Bob wrote programs.")
    changed(cluster, add_spans)
    result = await ask(engine, "Who wrote good programs?", top_k=5, waves=False)
    found = [(answer.document_id, answer.answer, answer.logit) for answer in result.answers]
    # the third span of each reading is missing, because it overlaps the first one
    assert found == [("doc 0", "Ada", 9), ("doc 0", "programs", 7), ("doc 1", "Bob", 5)]
    assert [[mention.document_id for mention in answer.also_in] for answer in result.answers] == [[], ["doc 1"], []]
    assert [answer.rank for answer in result.answers] == [1, 2, 3]
    assert len((await ask(engine, "Who wrote good programs?", top_k=2, waves=False)).answers) == 2


async def test_an_answer_in_a_neighbour_has_the_passage_of_the_neighbour(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    text = "Ada sang.\nShe wrote programs."
    context = text.replace("\n", " ")
    await write(engine, text)
    changed(
        cluster,
        lambda reading: reading.update(context=context, context_start=0, spans=[[0, 3, 7.0, 0]], windows=2),
    )
    result = await ask(engine, QUESTION)
    assert [answer.answer for answer in result.answers] == ["Ada"]
    best = result.answers[0]
    assert (best.start, best.end, best.passage_id) == (0, 3, "doc 0:0")
    assert (best.context, best.context_start, best.context_end) == (context, 0, len(text))
    assert (result.usage.windows, result.usage.truncated) == (2, False)


async def test_a_cut_off_question_is_reported(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.", "Bob wrote programs.")
    whole = (await ask(engine, QUESTION, cache="off")).usage
    assert (whole.truncated, whole.windows) == (False, whole.sentences_read)
    changed(cluster, lambda reading: reading.update(truncated=True))
    assert (await ask(engine, QUESTION, cache="off")).usage.truncated
