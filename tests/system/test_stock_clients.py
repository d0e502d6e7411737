"""`GET bertqa{tag}_<sentence key>_<question>` from stock clients runs the model once, then reads the cache."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.system import System

TEXT = "Ada Lovelace wrote the first program in 1843. She was born in London. 東京は日本の首都です。"
IDS = ["plain", "under_score:and:colon", 'quote "x" and space', "brace {a} 100% {}", "日本_語"]
QUESTIONS = ["Where was she born?", 'Where_was: "she" born_?', "彼女はどこで生まれましたか_?", "Where was {she} born?"]


def answer_key(document_id: str, sentence: int, question: str) -> str:
    tag = keys.partition_of(document_id, 12)
    return f"bertqa{{{tag}}}_{keys.encode_id(document_id)}:{{{tag}}}:{sentence}_{question}"


@pytest.fixture(scope="module")
def stored(system: System) -> System:
    with ClusterClient(system.url) as client:
        for document_id in IDS:
            client.put_document(document_id, TEXT)
    return system


@pytest.mark.parametrize("document_id", IDS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_first_get_reads_second_is_cached(stored: System, document_id: str, question: str) -> None:
    key = answer_key(document_id, 1, question)
    host, port = stored.addresses[0]
    with redis.RedisCluster(host=host, port=port, decode_responses=True, socket_timeout=120) as client:
        before = stored.total("qa_hook_inferences"), stored.total("qa_hook_hits")
        value = json.loads(client.get(key))
        assert (stored.total("qa_hook_inferences"), stored.total("qa_hook_hits")) == (before[0] + 1, before[1])
        assert TEXT[value["start"] : value["end"]] == value["answer"]
        assert value["document_id"] == document_id
        assert json.loads(client.get(key)) == value
        assert (stored.total("qa_hook_inferences"), stored.total("qa_hook_hits")) == (before[0] + 1, before[1] + 1)
        assert 0 < client.ttl(key) <= 86400


def test_redis_cli_follows_moved(stored: System) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed")
    key = answer_key("plain", 1, "Where was she born, says redis-cli?")
    for _, port in stored.addresses:
        done = subprocess.run(
            ["redis-cli", "-c", "-p", str(port), "GET", key], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["answer"] == "London"


def test_wrong_shard_answers_moved(stored: System) -> None:
    key = answer_key("plain", 1, "moved?")
    outcomes = []
    for host, port in stored.addresses:
        with redis.Redis(host=host, port=port, socket_timeout=120) as node:
            try:
                node.get(key)
                outcomes.append("answer")
            except redis.exceptions.MovedError:
                outcomes.append("moved")
    assert sorted(outcomes) == ["answer", "moved", "moved"]


@pytest.mark.parametrize("key", ["bertqa{t}_nonsense", "bertqa{t}_no:{t}:0_what?", "bertqa", "bertqa{}_:{}:x_"])
def test_keys_other_than_answer_keys_stay_nil(stored: System, key: str) -> None:
    host, port = stored.addresses[0]
    with redis.RedisCluster(host=host, port=port, socket_timeout=120) as client:
        assert client.get(key) is None
        assert client.exists(key) == 0


def test_inside_multi_and_lua_the_read_is_plain(stored: System) -> None:
    # each case has its own question: the GET returns nil, but the function runs later and caches the answer
    key, other = answer_key("plain", 1, "in a script?"), answer_key("plain", 1, "in a transaction?")
    host, port = stored.addresses[0]
    with redis.RedisCluster(host=host, port=port, socket_timeout=120) as cluster:
        node = cluster.get_redis_connection(cluster.get_node_from_key(key))
        assert node.eval("return redis.call('GET', KEYS[1])", 1, key) is None
        with node.pipeline(transaction=True) as pipe:
            assert pipe.get(other).execute() == [None]
