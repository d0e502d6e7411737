"""Keys of cached answers contain questions or digests (`qa.answer-keys`). A change deletes keys of the other kind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.keys import SentenceRef
from tests.harness.polling import eventually

from .running_shards import SECONDS
from .tiny_shards import FIRST, TinyShards, tag, tiny_shards

QUESTION = "Who hid the treasure of Kalgoorlie?"
SECRET = "Kalgoorlie"
SETTING = "qa.answer-keys"


@pytest.fixture(scope="module")
def shards(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    folder = tmp_path_factory.mktemp("readers")
    with tiny_shards(shared_binary, folder, **{SETTING: "digest"}) as found:
        yield found


def seen(shards: TinyShards) -> str:
    """All key names and lists of answers on all shards, as one text."""
    words: list[Any] = []
    for node in shards.nodes:
        with node.client() as client:
            for key in client.scan_iter(count=1000):
                words.append(key)
                kind = client.type(key)
                if kind == "zset":
                    words += client.zrange(key, 0, -1)
                elif kind == "set":
                    words += client.smembers(key)
    return "\n".join(map(str, words))


def answers(shards: TinyShards, document: str) -> list[str]:
    """The keys of a document's cached answers."""
    return sorted(shards.client.smembers(keys.answers_key(document, tag(document))))


def read(shards: TinyShards, document: str, question: str = QUESTION) -> dict[str, Any]:
    name = str(SentenceRef(document, tag(document), 0))
    (reply,) = shards.on(shards.node_of("{" + tag(document) + "}"), "RG.TRIGGER", "qa.read", "", question, name)
    return dict(json.loads(reply))


def change(shards: TinyShards, to: str) -> None:
    """Change the setting and restart the worker on all shards. Wait until the new workers have finished their sweep."""
    for node in shards.nodes:
        shards.on(node, "CONFIG", "SET", SETTING, to)
        before = node.field("worker_pid")
        node.signal_worker(signal.SIGKILL)
        eventually(lambda node=node, before=before: node.field("worker_pid") not in (0, before), SECONDS)  # type: ignore[misc]
        node.wait_ready()
    shards.wait_warm(shards.first.name)


@pytest.mark.hostile
def test_names_of_keys_say_nothing_about_questions(shards: TinyShards) -> None:
    document = shards.written("digested")
    assert read(shards, document)["answer"] == FIRST
    assert read(shards, document)["cache"] == "shard", "the cached answer is found again"
    (key,) = answers(shards, document)
    _, name, _ = keys.parse_answer_key(key)
    assert keys.parse_digest_name(name) is not None
    assert SECRET not in seen(shards)


def test_a_stock_client_gets_the_same_answer_from_the_worker(shards: TinyShards) -> None:
    document = shards.written("stock")
    first = shards.get(document, QUESTION)
    assert (first["answer"], len(answers(shards, document))) == (FIRST, 1)
    assert shards.get(document, QUESTION) == first, "the cached answer, not a new reading"
    assert read(shards, document)["cache"] == "shard", "functions find the cached answer, too"
    assert SECRET not in seen(shards)


def test_all_shards_compute_the_same_digest_and_another_question_has_another_one(shards: TinyShards) -> None:
    made: dict[str, set[str]] = {}
    for number in range(8):
        document = shards.written(f"spread {number}")
        for question in (QUESTION, QUESTION.lower()):
            read(shards, document, question)
        for key in answers(shards, document):
            node = shards.node_of("{" + tag(document) + "}")
            made.setdefault(str(node.port), set()).add(keys.parse_answer_key(key)[1])
    assert len(made) == len(shards.nodes)
    (names,) = {frozenset(found) for found in made.values()}
    assert len(names) == 2


def test_a_changed_document_drops_its_answers(shards: TinyShards) -> None:
    document = shards.written("changed")
    read(shards, document)
    (key,) = answers(shards, document)
    shards.written(document, "Pierre wrote about it")
    assert not shards.client.exists(key)
    assert read(shards, document)["answer"] == "Pierre"


def test_a_get_by_an_unknown_digest_returns_nil(shards: TinyShards) -> None:
    document = shards.written("listed")
    read(shards, document)
    (key,) = answers(shards, document)
    value = shards.client.get(key)
    assert json.loads(value)["answer"] == FIRST
    shards.client.unlink(key)
    assert shards.client.get(key) is None, "a digest is not read as a question"


def test_a_change_of_the_setting_deletes_names_of_the_other_kind(shards: TinyShards) -> None:
    document = shards.written("both ways")
    read(shards, document)
    change(shards, "text")
    eventually(lambda: answers(shards, document) == [], SECONDS)
    eventually(lambda: "_#" not in seen(shards), SECONDS)
    try:
        assert read(shards, document)["cache"] == "miss"
        assert SECRET in answers(shards, document)[0]
        assert shards.client.get(answers(shards, document)[0]) is not None
    finally:
        change(shards, "digest")
    eventually(lambda: SECRET not in seen(shards), SECONDS)
    for node in shards.nodes:
        with node.client() as client:
            for kept in client.scan_iter(match="kept:{*"):
                bytes_key = kept.replace("kept:", "kept-bytes:")
                scores = [score % (1 << 20) for _, score in client.zrange(kept, 0, -1, withscores=True)]
                assert int(client.get(bytes_key)) == sum(scores), "the sums of bytes match the remaining answers"
    assert read(shards, document)["answer"] == FIRST


def test_a_wrong_value_is_refused(shards: TinyShards) -> None:
    with pytest.raises(redis.ResponseError, match=r"qa\.answer-keys must be text or digest, got sha1"):
        shards.on(shards.nodes[0], "CONFIG", "SET", SETTING, "sha1")
    assert shards.on(shards.nodes[0], "CONFIG", "GET", SETTING) in ({SETTING: "digest"}, [SETTING, "digest"])
