"""Stock clients: `GET bertqa{tag}_<sentence key>_<question>` runs the model once, and `SET` replaces a text."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import redis

from qa_cluster import keys
from qa_cluster.client import Client
from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.polling import eventually
from tests.harness.system import System

TEXT = "Ada Lovelace wrote the first program in 1843. She was born in London. 東京は日本の首都です。"
IDS = ["under_score:and:colon", 'quote "x" and space', "brace {a} 100% {}", "日本_語"]
QUESTIONS = ["Where was she born?", 'Where_was: "she" born_?', "彼女はどこで生まれましたか_?", "Where was {she} born?"]


def answer_key(document_id: str, sentence: int, question: str) -> str:
    tag = keys.partition_of(document_id, 12)
    return f"bertqa{{{tag}}}_{keys.encode_id(document_id)}:{{{tag}}}:{sentence}_{question}"


@pytest.fixture(scope="module")
def stored(system: System) -> System:
    with ClusterClient(system.url) as client:
        for document_id in ("plain", *IDS):
            client.put_document(document_id, TEXT)
    return system


@pytest.mark.parametrize(("document_id", "question"), list(zip(IDS, QUESTIONS, strict=True)))
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


def test_a_text_written_with_set_soon_replaces_the_old_text_in_answers(service: System) -> None:
    question = "Who wrote the famous book fresh long ago?"
    with (
        Client(f"http://127.0.0.1:{service.port}") as rest,
        redis.RedisCluster.from_url(service.url) as stock,
    ):
        rest.put_document("fresh", "Anna wrote the famous book fresh long ago.")
        assert rest.ask(question, doc_id="fresh", no_answer=False).answers[0].answer == "Anna"
        key = keys.paragraphs_key("fresh", keys.partition_of("fresh", 12))
        stock.set(key, "Berta wrote the famous book fresh long ago.")

        def seen() -> bool:
            answers = rest.ask(question, doc_id="fresh", no_answer=False).answers
            return bool(answers) and answers[0].answer == "Berta"

        eventually(seen)
        rest.delete_document("fresh")
