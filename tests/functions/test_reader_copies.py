"""Each shard restores its copy of the reader automatically, and deletes answers of an earlier reader."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
import redis

from qa_cluster import keys
from qa_cluster.hashtags import hashtag_for_slot
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import MODEL, SECONDS, Shards

pytestmark = pytest.mark.one_server("functions make the copies; test_answers and test_ingest run on both servers")

QUESTION = "What do wombats dig?"


@pytest.fixture
def wombat(shards: Shards) -> Iterator[Shards]:
    shards.put("wombat", "Wombats dig burrows.")
    shards.wait_tokenized("wombat")
    yield shards
    shards.delete("wombat")


def reader_keys(shards: Shards, node: Server) -> list[str]:
    tag = hashtag_for_slot(shards.nodes.index(node) * (16384 // len(shards.nodes)))
    return [keys.model_key(tag), keys.tokenizer_key(tag), keys.manifest_key(tag)]


def answered(shards: Shards, question: str) -> str | None:
    try:
        answer = shards.ask("wombat", 0, question)
    except redis.ResponseError:
        return None
    return None if answer is None else str(answer["model"]["revision"])


def test_a_shard_that_lost_its_copy_still_answers_and_gets_another_copy(wombat: Shards) -> None:
    node = wombat.node_of(keys.document_key("wombat", keys.partition_of("wombat", 12)))
    names = reader_keys(wombat, node)
    assert answered(wombat, QUESTION) is not None  # compiles the model, which stays loaded without its key
    before = wombat.on(node, "AI.MODELGET", names[0], "META")
    assert wombat.on(node, "DEL", *names) == 3
    assert answered(wombat, "Who digs burrows?") is not None
    eventually(lambda: wombat.on(node, "EXISTS", *names) == 3, SECONDS)
    assert wombat.on(node, "AI.MODELGET", names[0], "META") == before
    assert wombat.on(node, "GET", names[2]) == (MODEL / "manifest.json").read_text()
    # a new worker loads the reader from the restored keys
    node.signal_worker(signal.SIGKILL)
    node.wait_ready(SECONDS)
    eventually(lambda: answered(wombat, "What is it that wombats dig?") is not None, SECONDS)


def test_a_reader_that_no_shard_has_is_dropped(wombat: Shards) -> None:
    node = wombat.node_of(keys.document_key("wombat", keys.partition_of("wombat", 12)))

    def is_given_up() -> bool:
        # deleted repeatedly, because a shard may have copied the reader from another shard meanwhile
        for each in wombat.nodes:
            with each.client() as client:
                client.delete(*reader_keys(wombat, each))
        return bool(wombat.on(node, "RG.TRIGGER", "qa.reader") == [""])

    try:
        eventually(is_given_up, SECONDS)
    finally:
        wombat.load_reader()
    eventually(lambda: answered(wombat, "Which burrows do wombats dig?") is not None, SECONDS)


def test_answers_of_a_reader_that_was_replaced_while_no_worker_ran_are_dropped(wombat: Shards) -> None:
    first = answered(wombat, QUESTION)
    assert first is not None
    node = wombat.node_of(keys.document_key("wombat", keys.partition_of("wombat", 12)))
    text = (MODEL / "manifest.json").read_text()
    try:
        pid = node.signal_worker(signal.SIGSTOP)
        wombat.write_manifest(json.dumps({**json.loads(text), "revision": "1" * 12, "model_sha256": "1" * 64}))
        node.signal_worker(signal.SIGKILL)
        eventually(lambda: node.field("worker_pid") not in (0, pid), SECONDS)
        # a stock client would read old cached answers, so the shard must delete these
        eventually(lambda: answered(wombat, QUESTION) not in (None, first), SECONDS)
    finally:
        wombat.write_manifest(text)
    eventually(lambda: answered(wombat, QUESTION) == first, SECONDS)
