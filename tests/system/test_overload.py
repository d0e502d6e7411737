"""A full queue refuses jobs at once: 503 with Retry-After over HTTP."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.polling import eventually
from tests.harness.processes import resume
from tests.harness.servers import beats
from tests.harness.system import System

NEW_QUESTIONS = 400

pytestmark = pytest.mark.one_server("the queue is the module's; tests/module fills it on both")


@pytest.fixture
def stuck(service: System) -> Iterator[list[int]]:
    """Stop the workers and limit the queue to four jobs. The value is the list of the workers' process ids."""
    with ClusterClient(service.url) as client:
        client.put_document("overload", "Forty clients filled the queue.")
    for node in service.nodes:
        node.config_set("qa.worker-silence-ms", 600_000)  # the module does not replace a stopped worker
        node.config_set("qa.max-queue", 4)
    pids = [service.worker_pid(node) for node in service.nodes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield pids
    before = [beats(node) for node in service.nodes]
    for pid in pids:
        resume(pid)
    for node, number in zip(service.nodes, before, strict=True):
        # before the next heartbeat, the silence would exceed the usual limit
        eventually(lambda node=node, number=number: beats(node) > number)
        node.config_set("qa.max-queue", 1024)
        node.config_set("qa.worker-silence-ms", 10_000)
    eventually(lambda: service.total("qa_queued_clients") == 0)


def test_full_queue_is_refused_at_once(service: System, stuck: list[int]) -> None:
    """The module refuses jobs beyond the limit while the other jobs wait for the stopped workers."""

    def ask(number: int) -> tuple[int, dict[str, str], bytes]:
        # a question with partial coverage would leave out the shards with stopped workers
        path = f"/qa?question=Who+filled+the+queue+{number}%3F&timeout_ms=120000&retriever=words&coverage=full"
        return service.http(path, seconds=180)

    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(ask, 0)]
        # the first job is queued, or a worker received it just before its stop
        eventually(lambda: service.total("qa_queued_clients") + service.total("qa_in_flight") >= 1)
        asked += [pool.submit(ask, number) for number in range(1, 40)]
        try:
            eventually(lambda: sum(one.done() for one in asked) >= 25)
            refused = [one.result() for one in asked if one.done()]
        finally:
            for pid in stuck:
                resume(pid)
        outcomes = [one.result() for one in asked]
    for status, headers, body in refused:
        assert status == 503, body
        assert int(headers["retry-after"]) >= 1
        assert headers["content-type"].startswith("application/problem+json")
        assert json.loads(body)["code"] == "OVERLOADED"
    answered = [body for status, _, body in outcomes if status == 200]
    assert len(answered) >= 4
    assert not [one for one in outcomes if one[0] not in (200, 503)]
    assert {json.loads(body)["answers"][0]["document_id"] for body in answered} == {"overload"}


@pytest.mark.cluster  # depends on the machine's speed; `tests/unit/test_admission.py` tests the rules
def test_pending_questions_that_would_miss_their_deadline_are_refused(service: System) -> None:
    """Many more concurrent questions than the service can answer in time; a first group gives its rate."""
    with ClusterClient(service.url) as client:
        for number in range(12):
            client.put_document(f"town {number}", f"Town {number} was founded by the explorer Smith number {number}.")

    def ask(question: str, timeout_ms: int) -> tuple[float, int, str]:
        started = time.monotonic()
        status, _, body = service.http(f"/qa?question={quote(question)}&timeout_ms={timeout_ms}&cache=off")
        return time.monotonic() - started, status, json.loads(body).get("code", "")

    with ThreadPoolExecutor(NEW_QUESTIONS) as pool:
        begun = time.monotonic()
        first = list(pool.map(lambda n: ask(f"Which explorer founded town {n}?", 120_000), range(64)))
        needed = time.monotonic() - begun
        assert all(status == 200 for _, status, _ in first)
        allowed = int(needed * 2000)
        outcomes = list(pool.map(lambda n: ask(f"Who founded town {n} long ago?", allowed), range(NEW_QUESTIONS)))
    answered, refused, late = ([o for o in outcomes if o[1] == status] for status in (200, 503, 504))
    said = ", ".join(
        f"{len(some)} {name}" + (f" (after {some[0][0]:.1f} to {some[-1][0]:.1f} s)" if some else "")
        for name, some in (("answered", sorted(answered)), ("refused", sorted(refused)), ("late", sorted(late)))
    )
    print(f"\n64 questions took {needed:.1f} s; {NEW_QUESTIONS} with a timeout of {allowed / 1000:.1f} s each: {said}")
    assert len(answered) + len(refused) + len(late) == len(outcomes)
    assert answered
    assert {code for _, _, code in refused} == {"OVERLOADED"}
    assert len(refused) > len(late)
    if late:
        assert sorted(o[0] for o in refused)[len(refused) // 2] < min(o[0] for o in late)
