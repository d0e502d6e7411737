"""The trace of a question in a real OTLP receiver, from a real service, cluster and reader."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.otlp import Receiver, children, facts, milliseconds, receiver
from tests.harness.polling import eventually
from tests.harness.processes import resume
from tests.harness.system import WORDS_ONLY, System

PARENT = "00f067aa0ba902b7"
TEXT = "Ada Lovelace wrote the first program in 1843. Charles Babbage built engines. The engines were made of brass."
QUESTION = "Who wrote the first program?"


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture(scope="module")
def system(shared_binary: Path, collector: Receiver) -> Iterator[System]:
    with System(shared_binary, shards=2, **WORDS_ONLY) as running:
        running.start_service(QA_OTLP_ENDPOINT=collector.url)
        for number in range(6):
            body = json.dumps({"text": f"{TEXT} This is text {number}."}).encode()
            status, _, reply = running.http(f"/documents/{number}?wait=true", body, "PUT")
            assert status in (200, 201), reply
        yield running


def ask(system: System, trace: str = "", **fields: str) -> tuple[dict[str, object], dict[str, str]]:
    """Ask over HTTP within a caller's trace; return the answer and the headers."""
    query = urllib.parse.urlencode({"question": QUESTION, **fields})
    request = urllib.request.Request(f"http://127.0.0.1:{system.port}/qa?{query}")
    if trace:
        request.add_header("traceparent", f"00-{trace}-{PARENT}-01")
        request.add_header("tracestate", "vendor=opaque")
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read()), dict(reply.headers)


def named(spans: dict[str, Span], top: Span, name: str) -> list[Span]:
    return [span for span in children(spans, top) if span.name == name]


def test_a_trace_reaches_from_http_to_the_model_of_each_shard(system: System, collector: Receiver) -> None:
    trace = secrets.token_hex(16)
    answered, _ = ask(system, trace, cache="refresh", waves="false")
    spans = collector.trace(trace, root="GET /qa")
    (top,) = [span for span in spans.values() if span.name == "GET /qa"]
    assert (top.parent_span_id.hex(), {span.trace_state for span in spans.values()}) == (PARENT, {"vendor=opaque"})
    assert facts(top)["qa.request_id"] == answered["id"]
    assert named(spans, top, "cache") and named(spans, top, "documents")
    (rank,) = named(spans, top, "rank")
    assert len(named(spans, rank, "indexes")) == 4
    (wave,) = named(spans, top, "wave")
    calls = named(spans, wave, "qa.read")
    assert {facts(call)["server.port"] for call in calls} == {port for _, port in system.addresses}
    assert sum(facts(call)["qa.sentences"] for call in calls) == answered["usage"]["sentences_read"]  # type: ignore[index]
    for call in calls:
        (queue,) = named(spans, call, "queue")
        assert queue.end_time_unix_nano <= min(each.start_time_unix_nano for each in named(spans, call, "batch"))
        models = named(spans, call, "model")
        assert models and len(models) == len(named(spans, call, "batch"))
        for model in models:
            about = facts(model)
            assert 1 <= about["qa.batch.own_items"] <= about["qa.batch.items"] <= about["qa.batch.rows"]
            assert 0 < about["qa.batch.tokens"] <= about["qa.batch.rows"] * about["qa.batch.length"]
            assert 0 < milliseconds(model) <= milliseconds(call) <= milliseconds(wave) <= milliseconds(top)
    assert QUESTION not in str(spans)


def test_cached_answers_show_why_they_are_fast(system: System, collector: Receiver) -> None:
    ask(system)
    trace = secrets.token_hex(16)
    ask(system, trace, top_k="2")  # the shards have cached answers of the sentences, but no whole answer for `top_k=2`
    spans = collector.trace(trace, root="GET /qa")
    (top,) = [span for span in spans.values() if span.name == "GET /qa"]
    read = [call for wave in named(spans, top, "wave") for call in named(spans, wave, "qa.read")]
    assert read and not any(named(spans, call, "model") for call in read)
    assert all(named(spans, call, "answers") for call in read)


def test_a_busy_shard_shows_in_the_trace_of_a_slow_question(system: System, collector: Receiver) -> None:
    """While the workers are stopped, the question waits in the queues of the shards, and its trace shows the wait."""
    workers = [system.worker_pid(node) for node in system.nodes]
    trace = secrets.token_hex(16)
    fields = {"cache": "off", "question": "Who built engines, and of what?", "waves": "false", "retriever": "words"}
    fields |= {"coverage": "full"}  # a question with partial coverage would leave out the stopped workers
    asked = threading.Thread(target=ask, args=(system, trace), kwargs=fields)
    # no other job may be in flight, because it would look like the job of the question
    eventually(lambda: not any(system.info(node)["qa_in_flight"] for node in system.nodes))
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        asked.start()
        eventually(lambda: any(system.info(node)["qa_in_flight"] for node in system.nodes))
        time.sleep(0.5)
    finally:
        for pid in workers:
            resume(pid)
    asked.join()
    spans = collector.trace(trace, root="GET /qa")
    (top,) = [span for span in spans.values() if span.name == "GET /qa"]
    (wave,) = named(spans, top, "wave")
    calls = named(spans, wave, "qa.read")
    waits = [milliseconds(queue) for call in calls for queue in named(spans, call, "queue")]
    assert len(waits) == len(calls) > 0 and max(waits) > 300
    assert all(named(spans, call, "model") for call in calls)
