"""No answer comes from a changed or deleted document, even if another process has changed the document."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from qa_cluster import keys
from qa_cluster.client import Client, ClusterClient
from tests.harness.polling import eventually
from tests.harness.system import PATIENT, System

pytestmark = pytest.mark.one_server("what processes remember of documents is the same on both")

STEPS = 400
BOOKS = 3


def question(name: str) -> str:
    return f"Who wrote the famous book {name} long ago?"


def test_random_interleavings_of_two_processes_give_no_stale_answer(service: System) -> None:
    chance = random.Random(11)
    stands: dict[str, str | None] = {f"book{n}": None for n in range(BOOKS)}
    hits = 0
    patient = replace(PATIENT, cluster_url=service.url)
    with (
        Client(f"http://127.0.0.1:{service.port}") as rest,
        ClusterClient(patient) as direct,
    ):
        for step in range(STEPS):
            client = chance.choice((rest, direct))
            name = chance.choice(list(stands))
            action = chance.random()
            if action < 0.1:
                stands[name] = f"Author{step}"
                client.put_document(
                    name, f"Author{step} wrote the famous book {name} long ago.", wait=chance.random() < 0.7
                )
            elif action < 0.14 and stands[name] is not None:
                stands[name] = None
                client.delete_document(name)
            else:
                result = client.ask(question(name), doc_id=name, top_k=1, no_answer=False, timeout_ms=60_000)
                hits += result.cache.status == "hit"
                found = result.answers[0].answer if result.answers else None
                # Questions may miss a document that is not tokenized yet; they must never find an older one.
                assert found in (stands[name], None), f"step {step}: {found}, stored is {stands[name]}: {result.cache}"
                if result.answers:
                    text = rest.get_document(name).text
                    assert text[result.answers[0].start : result.answers[0].end] == found
        for name, text_stands in stands.items():
            if text_stands is not None:
                direct.delete_document(name)
    assert hits > 0


def test_a_text_written_with_set_is_answered_from_soon_and_the_old_one_no_more(service: System) -> None:
    with Client(f"http://127.0.0.1:{service.port}") as rest:
        rest.put_document("plain", "Anna wrote the famous book plain long ago.")
        assert rest.ask(question("plain"), doc_id="plain", no_answer=False).answers[0].answer == "Anna"
        tag = keys.partition_of("plain", 12)
        key = keys.paragraphs_key("plain", tag)
        node = next(n for n in service.nodes if _holds(n, key))
        node.set(key, "Berta wrote the famous book plain long ago.")

        def seen() -> bool:
            answers = rest.ask(question("plain"), doc_id="plain", no_answer=False).answers
            return bool(answers) and answers[0].answer == "Berta"

        eventually(seen)
        rest.delete_document("plain")


def _holds(node: object, key: str) -> bool:
    try:
        return bool(node.exists(key))  # type: ignore[attr-defined]
    except Exception as error:
        if "MOVED" in str(error):
            return False
        raise
