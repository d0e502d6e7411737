"""Questions by words and meaning: vectors of questions, missing vectors and encoders, and caching."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.errors import ModelError
from qa_cluster.keys import document_name, index_key, partition_of
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import MANIFEST_FILE
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from tests.client.engines import ask, kept, opened, search, write
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async
from tests.index.vectors import Passage, Vector, pack_passages, single

ENCODER = EncoderManifest.load(bundled_encoder() / MANIFEST_FILE)
SCALE = single(1 / 127)
# These tests use vectors with two dimensions.
NEAR, FAR = Vector(SCALE, (127, 0)), Vector(SCALE, (0, 127))
TEXTS = ("Ada wrote programs.", "The countess composed software.")


async def embed(node: Node, arguments: list[str]) -> list[Any]:
    """`qa.embed`: every question has the same vector."""
    return [ENCODER.digest, 2, NEAR.packed(), b"40.0", b"0.35"]


async def give_vector(cluster: ScriptedCluster, name: str, vector: Vector) -> None:
    """Store the vector of a document with one sentence."""
    key = index_key(partition_of(name, PARTITIONS))
    blob = pack_passages([Passage(0, 1, vector)])
    command = ("QA.INDEX.EMBED", key, str(document_name(name)), ENCODER.digest, 2, 0, 1, blob)
    assert await cluster.at(key, *command) == 1


@pytest.fixture
def encoded(cluster: ScriptedCluster) -> ScriptedCluster:
    """The cluster with an encoder."""
    cluster.encoders = [ENCODER]
    cluster.triggers["qa.embed"] = embed
    return cluster


async def test_meaning_finds_a_sentence_without_words_of_the_question(encoded: ScriptedCluster) -> None:
    async with opened(encoded) as engine:
        await write(engine, *TEXTS)
        await give_vector(encoded, "doc 0", FAR)
        await give_vector(encoded, "doc 1", NEAR)
        found = {
            retriever: [hit.document_id for hit in (await search(engine, "wrote programs", retriever=retriever)).hits]
            for retriever in ("words", "meaning", "both")
        }
    assert found == {"words": ["doc 0"], "meaning": ["doc 1", "doc 0"], "both": ["doc 1", "doc 0"]}


async def test_a_document_without_vector_is_found_by_words_with_the_cosine_for_missing_vectors(
    encoded: ScriptedCluster,
) -> None:
    async with opened(encoded) as engine:
        await write(engine, *TEXTS)
        await give_vector(encoded, "doc 1", FAR)
        words = (await search(engine, "wrote programs", retriever="words")).hits
        first, second = (await search(engine, "wrote programs", retriever="both")).hits
        assert [hit.document_id for hit in (await search(engine, "wrote", retriever="meaning")).hits] == ["doc 1"]
    assert (first.document_id, round(first.score - words[0].score, 2)) == ("doc 0", 14.0)
    assert (second.document_id, round(second.score, 2)) == ("doc 1", 0.0)


async def test_without_an_encoder_retriever_both_ranks_by_words(engine: Engine) -> None:
    await write(engine, *TEXTS)
    assert [hit.document_id for hit in (await search(engine, "wrote programs", retriever="both")).hits] == ["doc 0"]
    assert (await ask(engine, "Who wrote programs?")).answers[0].document_id == "doc 0"
    with pytest.raises(ModelError, match="retriever=meaning needs an encoder, and no shard has one: load one"):
        await search(engine, "wrote programs", retriever="meaning")


async def test_an_encoder_that_is_loaded_later_is_used(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("qa_cluster.asking.remote_encoder.ASK_AGAIN_SECONDS", 0.05)
    await write(engine, *TEXTS)
    await give_vector(cluster, "doc 1", NEAR)
    await search(engine, "wrote programs", retriever="both")
    request.getfixturevalue("encoded")

    async def is_used() -> bool:
        return len((await search(engine, "wrote programs", retriever="both")).hits) == 2

    await eventually_async(is_used)


async def test_another_shard_computes_the_vector_if_one_fails(encoded: ScriptedCluster) -> None:
    broken = encoded.nodes[0].port

    async def sometimes(node: Node, arguments: list[str]) -> list[Any]:
        return await (refusal("MODEL no encoder") if node.port == broken else embed)(node, arguments)

    encoded.triggers["qa.embed"] = sometimes
    async with opened(encoded) as engine:
        await write(engine, *TEXTS)
        await give_vector(encoded, "doc 1", NEAR)
        for _ in range(6):
            assert len((await search(engine, "wrote programs", retriever="both")).hits) == 2
    assert {port for port, arguments in encoded.calls if arguments[0] == "qa.embed"} >= {broken}


async def test_without_vectors_words_answer_and_the_answer_is_not_cached(
    encoded: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    question = "Who wrote programs?"
    async with opened(encoded) as engine:
        await write(engine, *TEXTS)
        encoded.triggers["qa.embed"] = refusal("MODEL no encoder")
        assert (await ask(engine, question)).answers[0].document_id == "doc 0"
        assert await kept(engine, question) is None
        await search(engine, question, retriever="both")
        assert caplog.text.count("by their words only, because no shard computes their vectors: MODEL no encoder") == 1
        encoded.triggers["qa.embed"] = embed
        await ask(engine, question)
        assert await kept(engine, question) is not None


async def test_cached_answers_belong_to_their_retriever_and_their_vectors(encoded: ScriptedCluster) -> None:
    question = "Who wrote programs?"
    async with opened(encoded) as engine:
        await write(engine, *TEXTS)
        await ask(engine, question, retriever="words")
        assert await kept(engine, question, retriever="words") is not None
        assert await kept(engine, question, retriever="meaning") is None
        assert await kept(engine, question) is None
        await ask(engine, question)
        assert await kept(engine, question) is not None
        await give_vector(encoded, "doc 1", NEAR)

        async def is_dropped() -> bool:
            return await kept(engine, question) is None

        await eventually_async(is_dropped)


async def test_an_engine_opens_while_no_worker_reports_its_models(
    encoded: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa_cluster.asking.remote_encoder.SHARD_TIMEOUT_SECONDS", 0.2)
    encoded.triggers["qa.models"] = never
    async with asyncio.timeout(30), opened(encoded) as engine:
        await write(engine, *TEXTS)
        assert [hit.document_id for hit in (await search(engine, "wrote programs", retriever="both")).hits] == ["doc 0"]
