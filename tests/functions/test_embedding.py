"""Vectors on real shards: an encoder is loaded like a reader, and embeds questions and documents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from qa_cluster import keys
from qa_cluster.cluster.nodes.resharding import Move, all_primaries, move_slots
from qa_cluster.documents.stored import Embedding, embed_document
from qa_cluster.errors import InvalidInput
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from qa_cluster.vectors.packing import PassageVector, pack_passages, pack_vectors, packed_bytes
from tests.functions.running_shards import PARTITIONS, SECONDS, tag
from tests.functions.tiny_shards import TinyShards, tiny_shards
from tests.harness.packed_vectors import cosine
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.tiny_readers import tiny_encoder

QUESTION = "Who discovered radium?"


@pytest.fixture(scope="module")
def shards(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    with tiny_shards(shared_binary, tmp_path_factory.mktemp("models")) as found:
        tiny_encoder(found.folder / "words", "words")
        tiny_encoder(found.folder / "more", "more", dims=24, created="2026-02-02")
        found.load("words")
        yield found


@pytest.fixture(scope="module")
def encoder(shards: TinyShards) -> EncoderManifest:
    return EncoderManifest.load(shards.folder / "words" / "manifest.json")


def raw(node: Server, *words: object) -> Any:
    """The reply to a command as bytes."""
    with node.client(socket_timeout=120, decode_responses=False) as client:
        return client.execute_command(*words)


def embed(shards: TinyShards, question: str, node: int = 0) -> list[Any]:
    return list(raw(shards.nodes[node], "RG.TRIGGER", "qa.embed", question))


def facts(shards: TinyShards, document: str) -> dict[str, Any]:
    """``QA.INDEX.INFO`` of the partition of a document; `vectors` by digest."""
    key = keys.index_key(tag(document))
    reply = raw(shards.node_of(key), "QA.INDEX.INFO", key)
    found = {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
    vectors = [
        {name.decode(): value for name, value in zip(one[::2], one[1::2], strict=True)} for one in found["vectors"]
    ]
    found["vectors"] = {one["digest"]: one for one in vectors}
    return found


def wait_embedded(shards: TinyShards, digest: bytes, *documents: str) -> None:
    """Wait until all documents of the partitions of these documents have vectors."""

    def is_embedded(document: str) -> bool:
        found = facts(shards, document)
        return digest in found["vectors"] and found["vectors"][digest]["documents"] == found["documents"]

    eventually(lambda: all(is_embedded(document) for document in documents), SECONDS)


def test_every_shard_makes_the_same_vector_of_a_question(shards: TinyShards, encoder: EncoderManifest) -> None:
    replies = [embed(shards, QUESTION, node) for node in range(len(shards.nodes))]
    assert all(reply == replies[0] for reply in replies)
    digest, dims, packed, weight, missing = replies[0]
    assert digest == encoder.digest
    assert dims == 16
    assert len(packed) == packed_bytes(16)
    assert (float(weight), float(missing)) == (40.0, 0.35)
    assert embed(shards, QUESTION) == replies[0]  # the worker has cached this vector
    other = embed(shards, "What is a kilt?")[2]
    assert cosine(packed, other) < cosine(packed, embed(shards, "Who discovered it?")[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "takes a question"), (("a", "b"), "takes"), ((" ",), "non-empty"), (("x" * 5000,), "limit is 4096")],
)
def test_invalid_questions_are_refused(shards: TinyShards, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match=message):
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.embed", *arguments)


def test_the_encoder_is_listed_and_is_not_a_reader(shards: TinyShards, encoder: EncoderManifest) -> None:
    entry = shards.models(shards.nodes[0])[encoder.name]
    assert (entry["kind"], entry["default"], entry["warm"]) == ("encoder", False, True)
    assert entry["reading_revision"] == encoder.digest.hex()
    assert {each["kind"] for each in shards.models(shards.nodes[0]).values() if each["default"]} == {"reader"}
    shards.written("asked")
    for name in ("words", encoder.name):
        with pytest.raises(redis.exceptions.ResponseError, match="is an encoder"):
            shards.on(
                shards.node_of(keys.paragraphs_key("asked", tag("asked"))),
                "RG.TRIGGER",
                "qa.read",
                name,
                QUESTION,
                f"asked:{{{tag('asked')}}}:0",
            )
    with pytest.raises(InvalidInput, match="is an encoder"):
        shards.use("words")


def test_documents_are_embedded_after_they_are_indexed(shards: TinyShards, encoder: EncoderManifest) -> None:
    for number in range(20):
        shards.put(f"soon{number}", f"Sentence {number} is about radium. It has a second sentence.", "A title")
    names = [f"soon{number}" for number in range(20)]
    shards.wait_tokenized(*names)
    wait_embedded(shards, encoder.digest, *names)
    some = facts(shards, "soon1")["vectors"][encoder.digest]
    assert some["dimensions"] == 16
    assert some["passages"] >= some["documents"]


def test_a_new_version_gets_new_vectors(shards: TinyShards, encoder: EncoderManifest) -> None:
    shards.put("changing", "The first text is short.")
    shards.wait_tokenized("changing")
    wait_embedded(shards, encoder.digest, "changing")
    before = facts(shards, "changing")["vectors"][encoder.digest]["passages"]
    shards.put(
        "changing", " ".join(f"Sentence number {number} of a much longer text follows here." for number in range(40))
    )
    shards.wait_tokenized("changing")
    wait_embedded(shards, encoder.digest, "changing")
    assert facts(shards, "changing")["vectors"][encoder.digest]["passages"] > before
    shards.delete("changing")


def test_a_long_document_is_embedded_in_portions(shards: TinyShards, encoder: EncoderManifest) -> None:
    words = "one two three four five six seven eight nine ten eleven twelve"
    shards.put("long", " ".join(f"In chapter {number} there is {words}." for number in range(900)))
    shards.wait_tokenized("long")
    before = time.monotonic()
    wait_embedded(shards, encoder.digest, "long")
    assert facts(shards, "long")["vectors"][encoder.digest]["passages"] > 128
    assert time.monotonic() - before < SECONDS
    shards.delete("long")


def test_vectors_of_another_version_are_not_stored(shards: TinyShards, encoder: EncoderManifest) -> None:
    shards.put("stale", "A text about stale vectors.")
    shards.wait_tokenized("stale")
    record = shards.record("stale")
    assert record is not None
    wait_embedded(shards, encoder.digest, "stale")
    node = shards.node_of(keys.paragraphs_key("stale", tag("stale")))

    def store(version: str, done: int) -> str:
        (packed,) = pack_vectors(np.ones((1, encoder.dims), np.float32))
        made = Embedding(encoder.digest, encoder.dims, done, done + 1, pack_passages([PassageVector(0, 1, packed)]))
        (status,) = shards.on(node, *embed_document("stale", tag("stale"), version, record.splitter, made).command())
        return str(status)

    assert store("0" * 16, 0) == "stale"
    assert store(record.version, 3) == "stale"
    assert store(record.version, 0) == "stored"


def test_a_new_encoder_replaces_the_vectors(shards: TinyShards, encoder: EncoderManifest) -> None:
    shards.put("kept", "A document that stays while the encoder changes.")
    shards.wait_tokenized("kept")
    wait_embedded(shards, encoder.digest, "kept")
    more = EncoderManifest.load(shards.folder / "more" / "manifest.json")
    assert shards.load("more") == [encoder.name]
    assert embed(shards, QUESTION)[0] == more.digest
    wait_embedded(shards, more.digest, "kept")
    old = facts(shards, "kept")["vectors"].get(encoder.digest)
    assert old is None or old["documents"] == 0
    assert shards.load("words") == [more.name]
    wait_embedded(shards, encoder.digest, "kept")


def test_a_shard_that_lost_the_encoder_gets_it_from_the_others(shards: TinyShards, encoder: EncoderManifest) -> None:
    assert shards.remove(shards.nodes[0], encoder.name) == 3
    key = keys.model_key(shards.tag_of(shards.nodes[0]), encoder.name)
    eventually(lambda: shards.on(shards.nodes[0], "EXISTS", key), SECONDS)
    eventually(lambda: shards.models(shards.nodes[0]).get(encoder.name, {}).get("warm"), SECONDS)
    assert embed(shards, QUESTION)[0] == encoder.digest


def test_preparing_embeds_everything(shards: TinyShards, encoder: EncoderManifest) -> None:
    for number in range(8):
        shards.put(f"prepared{number}", f"Text {number} is prepared.")
    script = "from qa_cluster.gears.scripts.own_functions import prepare; prepare()"
    results, errors = shards.on(shards.nodes[0], "RG.PYEXECUTE", script)
    assert not errors
    progress = [json.loads(result) for result in results]
    assert all(each["state"] == "done" and each["failed"] == 0 for each in progress)
    assert all(each["done"] == each["total"] for each in progress)
    for number in range(8):
        found = facts(shards, f"prepared{number}")
        assert found["vectors"][encoder.digest]["documents"] == found["documents"]


def test_without_an_encoder_everything_else_works(shards: TinyShards, encoder: EncoderManifest) -> None:
    shards.unload("words")
    with pytest.raises(redis.exceptions.ResponseError, match="no encoder on this shard: load one"):
        embed(shards, QUESTION)
    shards.put("words-only", "Marie Curie discovered radium in Paris.")
    shards.wait_tokenized("words-only")
    assert "words-only" in shards.ranked_documents(QUESTION)
    shards.load("words")
    wait_embedded(shards, encoder.digest, "words-only")


def test_without_the_background_work_only_prepare_makes_vectors(shared_binary: Path, tmp_path: Path) -> None:
    with tiny_shards(shared_binary, tmp_path, **{"qa.background-embedding": 0}) as own:
        about = tiny_encoder(tmp_path / "words", "words")
        own.load("words")
        for number in range(5):
            own.written(f"quiet{number}")

        def waiting() -> int:
            return sum(int(node.field("unembedded_documents")) for node in own.nodes)

        eventually(lambda: waiting() == 5, SECONDS)
        assert all(about.digest not in facts(own, f"quiet{number}")["vectors"] for number in range(5))
        own.on(own.nodes[0], "RG.PYEXECUTE", "from qa_cluster.gears.scripts.own_functions import prepare; prepare()")
        wait_embedded(own, about.digest, *(f"quiet{number}" for number in range(5)))
        eventually(lambda: waiting() == 0, SECONDS)


def test_vectors_move_with_their_slot(shards: TinyShards, encoder: EncoderManifest) -> None:
    """The new owner of a partition has the vectors, and embeds documents that are written later."""
    shards.put("moves", "A document whose partition moves to another shard.")
    shards.wait_tokenized("moves")
    wait_embedded(shards, encoder.digest, "moves")
    key = keys.index_key(tag("moves"))
    source = shards.node_of(key)
    target = next(node for node in shards.nodes if node is not source)
    before = facts(shards, "moves")["vectors"]
    clients = {node: node.client(decode_responses=False) for node in (source, target)}
    try:
        for giver, taker in ((source, target), (target, source)):
            found = {node.port: node for node in all_primaries(clients[giver])}
            nodes = [(found[node.port], clients[node]) for node in (giver, taker)]
            move_slots([Move(keys.slot(key), nodes[0][0].id, nodes[1][0].id)], nodes)
            eventually(lambda taker=taker: raw(taker, "QA.INDEX.INFO", key) is not None, SECONDS, ignore=Exception)
            shards.client.nodes_manager.initialize()
            assert facts(shards, "moves")["vectors"] == before
            if taker is target:
                shards.put("moves", "Another text that the new owner of the slot embeds.")
                shards.wait_tokenized("moves")
                wait_embedded(shards, encoder.digest, "moves")
                before = facts(shards, "moves")["vectors"]
    finally:
        for client in clients.values():
            client.close()


def test_a_damaged_index_stops_only_its_own_partition(shards: TinyShards, encoder: EncoderManifest) -> None:
    tags = keys.partition_tags(PARTITIONS)
    damaged = next(each for each in tags if each != tag("healthy"))
    key = keys.index_key(damaged, "broken")
    shards.on(shards.node_of(key), "SET", key, "no index")
    shards.on(shards.node_of(key), "HSET", keys.collections_key(damaged), "broken", "ready")
    try:
        shards.put("healthy", "A document next to a damaged index.")
        shards.wait_tokenized("healthy")
        wait_embedded(shards, encoder.digest, "healthy")
    finally:
        shards.on(shards.node_of(key), "DEL", key)
        shards.on(shards.node_of(key), "HDEL", keys.collections_key(damaged), "broken")
