"""Several models on the shards: the choice of the model, the validity of cached answers, and removals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from qa_cluster import keys
from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import AskLimits, check_question
from qa_cluster.errors import InvalidInput, ModelError, NotFound, ReplyError
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import partition_of, whole_answer_key
from qa_cluster.options.questions import AskOptions
from qa_cluster.ranking.bm25 import RankedPartition, Ranking
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import MANIFEST_FILE
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address
from qa_cluster.types import AskResult
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from tests.client.engines import ask, kept, noticed, write
from tests.client.scripted_cluster import Node, ScriptedCluster, manifest, refusal
from tests.harness.polling import eventually_async
from tests.harness.servers import Server

QUESTION = "Who wrote programs?"
OTHER = manifest("c", "other")


def named_by(result: AskResult) -> tuple[str, str]:
    return result.model.id, result.model.revision


async def test_the_named_model_reads(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.")
    await cluster.load(OTHER)
    assert named_by(await ask(engine, QUESTION)) == ("scripted", "a" * 12)
    for model in ("other", OTHER.name):
        assert named_by(await ask(engine, QUESTION, model=model)) == ("other", "c" * 12)
    assert named_by(await ask(engine, QUESTION, model="scripted")) == ("scripted", "a" * 12)
    assert [(model.name, model.default, model.warm) for model in await engine.models()] == [
        (manifest().name, True, 3),
        (OTHER.name, False, 3),
    ]


async def test_answers_of_one_model_are_not_given_for_another(
    cluster: ScriptedCluster, engine: Engine, second_engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.")
    await cluster.load(OTHER)
    for model, status in [("", "miss"), ("", "hit"), ("other", "miss"), (OTHER.name, "hit"), ("", "hit")]:
        result = await ask(engine, QUESTION, model=model)
        assert (result.cache.status, result.model.id) == (status, "other" if model else "scripted")

    # repeat the check with the answer cache, which all processes share
    async def shared() -> bool:
        found = await kept(second_engine, QUESTION, model="other")
        return found is not None and named_by(found) == ("other", "c" * 12)

    await eventually_async(shared)  # the engine stores answers in the background


async def test_the_error_for_an_unloaded_model_names_the_loaded_models(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.")
    with pytest.raises(NotFound, match=f"'nope' is not loaded, loaded are: {manifest().name}"):
        await ask(engine, QUESTION, model="nope")
    with pytest.raises(NotFound, match="not loaded"):
        await ask(engine, QUESTION, model="other")
    async with noticed(engine):
        await cluster.load(OTHER)
    assert named_by(await ask(engine, QUESTION, model="other")) == ("other", "c" * 12)


async def test_an_encoder_is_listed_but_answers_no_question(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.")
    encoder = EncoderManifest.load(bundled_encoder() / MANIFEST_FILE)
    cluster.encoders = [encoder]
    for name in (encoder.model_id, encoder.name):
        with pytest.raises(InvalidInput, match=f"model '{name}' is an encoder, .* name a reader"):
            await ask(engine, QUESTION, model=name)
    assert {(model.name, model.kind, model.default) for model in await engine.models()} == {
        (manifest().name, "reader", True),
        (encoder.name, "encoder", False),
    }
    assert named_by(await ask(engine, QUESTION)) == ("scripted", "a" * 12)


async def test_a_name_without_revision_means_the_default_revision_or_the_latest(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.")
    await cluster.load(manifest("c", "scripted"))
    for revision, created in (("d", "2026-01-02"), ("e", "2026-01-03"), ("f", "2026-01-01")):
        await cluster.load(replace(manifest(revision, "other"), created=created))
    assert named_by(await ask(engine, QUESTION, model="scripted")) == ("scripted", "a" * 12)
    assert named_by(await ask(engine, QUESTION, model="other")) == ("other", "e" * 12)


async def test_an_answer_of_the_former_default_is_not_given_after_the_change(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a number that was fitted differs, and the weights are the same.

    The shards have reported the change, but the blocked event loop of this process has not read the report."""
    monkeypatch.setattr("qa_cluster.asking.freshness.LEASE_SECONDS", 60.0)
    with redis.Redis(port=server.port) as other:
        other.set(keys.PARTITIONS_KEY, 4)
        stored = keys.manifest_key(shard_tag([(0, 16383)]))
        other.set(stored, manifest("a").to_json())
        engine = await Engine.open([Address("127.0.0.1", server.port)], Login())
        try:
            body = b'{"model":{"id":"scripted"},"answerable":true}'
            question = check_question(QUESTION, AskOptions(), AskLimits())
            digest = question.digest(await engine.asker.plan(question))
            nothing = {tag: RankedPartition(0, (), 0, 0) for tag in keys.partition_tags(4)}
            ranking = Ranking([], dict.fromkeys(nothing, 0), 0, parts=nothing)
            tokens = await engine._answers.watches.watch(digest, ranking, 8)
            assert tokens is not None
            engine._answers.put(digest, body, tokens)
            await eventually_async(lambda: bool(other.exists(whole_answer_key(partition_of(digest, 4), digest))))
            outcome = await engine.ask(QUESTION, AskOptions(cache="only"))
            assert (outcome.body, outcome.cache.tier) == (body, "shard")

            async def near() -> bool:
                outcome = await engine.ask(QUESTION, AskOptions(cache="only"))
                assert outcome.body == body
                return outcome.cache.tier == "near"

            await eventually_async(near)  # the engine caches once its subscriptions report no more changes
            other.set(stored, replace(manifest("a"), wave_threshold=9.5).to_json())
            other.ping()
            with pytest.raises(CacheMiss):
                await engine.ask(QUESTION, AskOptions(cache="only"))
        finally:
            await engine.aclose()


async def test_a_question_is_retried_if_its_model_is_replaced_meanwhile(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.")
    refused = 0

    async def gone(node: Node, arguments: list[str]) -> list[bytes]:
        nonlocal refused
        if arguments[1] == manifest("a").name:
            refused += 1
            await cluster.set_manifest("c")
            raise ReplyError(f"MODEL model {arguments[1]!r} is not loaded on this shard")
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = gone
    assert (await ask(engine, QUESTION)).model.revision == "c" * 12
    assert refused == 1


async def test_retries_for_a_missing_model_end_with_an_error(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.")
    cluster.triggers["qa.read"] = refusal("MODEL model is not loaded on this shard")
    with pytest.raises(ModelError, match="not loaded"):
        await ask(engine, QUESTION)
    assert cluster.count("qa.read") <= 5
