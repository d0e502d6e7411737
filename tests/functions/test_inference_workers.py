"""Inference workers do not change the answers to questions, even if an inference worker is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.harness.polling import eventually
from tests.harness.processes import inference_workers

from .running_shards import Shards, running, sentence_name, tag

TEXT = (
    "The cat sat on the mat. Marie Curie discovered radium in Paris in 1898. It was a great day. "
    "The bridge over the river was built in 1731 by Johann Schmidt. Rain fell on Berlin for nine days."
)
QUESTIONS = ["Who discovered radium?", "When was the bridge built?", "Where did rain fall?", "Who sat on the mat?"]
SETTINGS = {"qa.inference-workers": 2, "qa.worker-threads": 1, "qa.worker-backoff-ms": 1}


@pytest.fixture(scope="module")
def with_workers(shards: Shards) -> Iterator[Shards]:
    with running(shards.nodes[0].binary, size=1, settings=SETTINGS) as found:
        eventually(lambda: found.nodes[0].fields("inference_workers", "inference_ready") == (2, 2))
        yield found


def read(shards: Shards, question: str, document: str) -> list[dict[str, Any]]:
    names = [sentence_name(document, i) for i in range(5)]
    node = shards.node_of("{" + tag(document) + "}")
    return [json.loads(reply) for reply in shards.on(node, "RG.TRIGGER", "qa.read", "", question, *names)]


def facts(reply: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(reply[name] for name in ("answer", "start", "end"))


def test_answers_equal_those_without_inference_workers(shards: Shards, with_workers: Shards) -> None:
    for found in (shards, with_workers):
        found.put("same", TEXT)
        found.wait_tokenized("same")
    for question in QUESTIONS:
        ours, theirs = read(with_workers, question, "same"), read(shards, question, "same")
        assert [facts(reply) for reply in ours] == [facts(reply) for reply in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=0.05)


@pytest.mark.one_server("the worker restarts inference workers; the other test runs on both servers")
def test_a_killed_inference_worker_fails_no_question(with_workers: Shards) -> None:
    node = with_workers.nodes[0]
    with_workers.put("killed", TEXT)
    with_workers.wait_tokenized("killed")
    with ThreadPoolExecutor(4) as threads:
        for round_ in range(3):
            before = node.field("inference_restarts")
            asked = [threads.submit(read, with_workers, f"{q} {n} {round_}", "killed") for q in QUESTIONS for n in "ab"]
            os.kill(inference_workers(node.pid)[0], signal.SIGKILL)
            for future in asked:
                assert not [reply for reply in future.result(60) if "error" in reply]
            eventually(lambda least=before + 1: node.field("inference_restarts") >= least)  # type: ignore[misc]
            eventually(lambda: node.field("inference_ready") == 2)
