"""After SIGKILL under load, the module retries jobs, later jobs succeed, and no job or connection remains."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.polling import eventually
from tests.harness.system import System

pytestmark = pytest.mark.one_server("processes die in the same way beside either")

TEXTS = {
    f"city-{number}": f"The city of Town{number} was founded in {1500 + number} by the explorer Number{number} Smith."
    for number in range(60)
}


@pytest.fixture(scope="module")
def stored(system: System) -> System:
    with ClusterClient(system.url) as client:
        for document_id, text in TEXTS.items():
            client.put_document(document_id, text)
    return system


@dataclass
class Outcome:
    """One `GET`: its start and end in monotonic seconds, and its error, if any."""

    sent: float
    answered: float
    error: str = ""


@dataclass
class Load:
    """Threads that ask new questions about stored sentences until they are stopped."""

    system: System
    outcomes: list[Outcome] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, thread: int) -> None:
        host, port = self.system.addresses[0]
        with redis.RedisCluster(host=host, port=port, decode_responses=True, socket_timeout=300) as client:
            number = 0
            while not self.stop.is_set():
                document_id = f"city-{number % len(TEXTS)}"
                tag = keys.partition_of(document_id, 12)
                question = f"When was Town{number % len(TEXTS)} founded ({thread}.{number}.{id(self)})?"
                sent = time.monotonic()
                try:
                    value = client.get(f"bertqa{{{tag}}}_{document_id}:{{{tag}}}:0_{question}")
                    error = "" if value else "nil"
                except redis.RedisError as failure:
                    error = f"{type(failure).__name__}: {failure}"
                self.outcomes.append(Outcome(sent, time.monotonic(), error))
                number += 1


@pytest.fixture
def load(stored: System) -> Iterator[Load]:
    made = Load(stored)
    with ThreadPoolExecutor(8) as pool:
        for thread in range(8):
            pool.submit(made.run, thread)
        eventually(lambda: len(made.outcomes) > 50)
        yield made
        made.stop.set()


@pytest.fixture
def patient(stored: System) -> Iterator[System]:
    """A system whose shards detect the death of a worker, but not its silence.

    Reads wait for the next worker, even if its start is slow.
    """
    for node in stored.nodes:
        node.config_set("qa.worker-silence-ms", 600_000)
        node.config_set("qa.hook-timeout-ms", 300_000)
    yield stored
    for node in stored.nodes:
        node.config_set("qa.worker-silence-ms", 10_000)
        node.config_set("qa.hook-timeout-ms", 30_000)


def test_worker_killed_under_load(patient: System, load: Load) -> None:
    node = patient.nodes[0]
    keys_before = [n.dbsize() for n in patient.nodes]
    victim = patient.worker_pid(node)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)

    def recovered() -> bool:
        fields = patient.info(node)
        return fields["qa_worker_pid"] != victim and fields["qa_worker_state"] == "ready"

    eventually(recovered)
    ready = time.monotonic()
    eventually(lambda: len([o for o in load.outcomes if o.sent > ready]) > 100)
    load.stop.set()
    flying = [o for o in load.outcomes if o.sent < killed < o.answered]
    slowest = max(o.answered - o.sent for o in load.outcomes if o.sent >= killed)
    print(
        f"worker ready again after {ready - killed:.2f} s;"
        f" in flight at the kill: {len(flying)}; slowest later {slowest:.2f} s"
    )
    assert flying
    assert not [o.error for o in load.outcomes if o.error]
    assert all(after >= before for before, after in zip(keys_before, [n.dbsize() for n in patient.nodes], strict=True))


def test_service_killed_leaves_nothing_behind(service: System) -> None:
    # wait for all workers, because the module may still replace one after the previous test
    eventually(lambda: all(service.info(node)["qa_worker_state"] == "ready" for node in service.nodes))
    clients = [len(node.client_list()) for node in service.nodes]
    with ThreadPoolExecutor(16) as pool:
        for number in range(64):
            pool.submit(lambda n=number: _ask_ignoring_loss(service, n))
        time.sleep(0.05)
        service.stop_service(signal.SIGKILL)
    eventually(lambda: service.total("qa_in_flight") == 0)
    eventually(lambda: service.total("qa_queued_clients") == 0)
    eventually(lambda: all(len(n.client_list()) <= c for n, c in zip(service.nodes, clients, strict=True)))
    service.start_service()
    status, _, body = service.http("/qa?question=When+was+Town7+founded%3F")
    assert status == 200
    assert b"1507" in body


def _ask_ignoring_loss(system: System, number: int) -> None:
    try:
        system.http(f"/qa?question=Who+founded+Town{number}%3F+{number}")
    except OSError:
        return  # the service died while it answered, which is the case to test
