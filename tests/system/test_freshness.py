"""After a stock client has replaced a text, the service answers from the new text."""

from __future__ import annotations

import pytest

from qa_cluster import keys
from qa_cluster.client import Client
from tests.harness.polling import eventually
from tests.harness.system import System

pytestmark = pytest.mark.one_server("what processes remember of documents is the same on both")

QUESTION = "Who wrote the famous book plain long ago?"


def test_a_text_written_with_set_soon_replaces_the_old_text_in_answers(service: System) -> None:
    with Client(f"http://127.0.0.1:{service.port}") as rest:
        rest.put_document("plain", "Anna wrote the famous book plain long ago.")
        assert rest.ask(QUESTION, doc_id="plain", no_answer=False).answers[0].answer == "Anna"
        tag = keys.partition_of("plain", 12)
        key = keys.paragraphs_key("plain", tag)
        node = next(n for n in service.nodes if _holds(n, key))
        node.set(key, "Berta wrote the famous book plain long ago.")

        def seen() -> bool:
            answers = rest.ask(QUESTION, doc_id="plain", no_answer=False).answers
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
