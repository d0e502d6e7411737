"""A document that ended workers stays failed when its slot migrates or its primary fails over."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from qa_cluster import keys
from tests.harness.clusters import Cluster, meet
from tests.harness.ending_worker import DIES
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Server

from .running_shards import SECONDS, Shards, tag
from .test_moved_partition import move

pytestmark = pytest.mark.hostile

WORKER = f'"{sys.executable}" "{ROOT / "tests/harness/ending_worker.py"}"'
TEXT = f"A text with {DIES} in it."


class Moving(Shards):
    """Two primaries, and a replica of the first one."""

    def __init__(self, cluster: Cluster, replica: Server) -> None:
        super().__init__(cluster)
        self.nodes = list(cluster.nodes)
        self.replica = replica

    def name_on(self, node: Server, word: str) -> str:
        """The id of a document whose partition a node has."""
        names = (f"{word} {number}" for number in range(1000))
        return next(name for name in names if self.node_of(keys.document_key(name, tag(name))) is node)


@pytest.fixture(scope="module")
def shards(shared_binary: Path) -> Iterator[Moving]:
    settings = {"appendonly": "yes", "cluster-require-full-coverage": "no"}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(shared_binary, settings, worker=WORKER, size=2))
        for node in cluster.nodes:
            node.wait_ready()
        replica = stack.enter_context(Server(shared_binary, settings | {"cluster-enabled": "yes"}, worker=WORKER))
        found = Moving(cluster, replica)
        found.set_up()
        meet(replica, cluster.nodes[0])
        words = ("CLUSTER", "REPLICATE", found.on(cluster.nodes[0], "CLUSTER", "MYID"))
        eventually(lambda: found.on(replica, *words), ignore=redis.ResponseError)
        eventually(lambda: replica.info("replication").get("master_link_status") == "up", SECONDS)
        replica.wait_ready(SECONDS)
        yield found


def failure(shards: Shards, name: str) -> str:
    record = shards.record(name)
    return "" if record is None else record.failure


def one_end(shards: Shards, node: Server, name: str) -> None:
    """Store a pending document that has ended one worker. The node's worker is stopped."""
    node.signal_worker(signal.SIGSTOP)
    shards.put(name, TEXT)
    shards.on(node, "HSET", keys.failures_key(tag(name)), name, "1 signal 9")


def test_a_failed_document_stays_failed_on_the_new_owner_of_its_slot(shards: Moving) -> None:
    source, target = shards.nodes
    name = shards.name_on(source, "moved")
    shards.put(name, TEXT)
    eventually(lambda: failure(shards, name) != "", SECONDS)
    why, before = failure(shards, name), target.field("worker_restarts")
    move(shards, keys.slot(tag(name)), source, target)
    eventually(lambda: target.field("failed_documents") == 1, SECONDS)
    eventually(lambda: source.field("failed_documents") == 0, SECONDS)
    assert (failure(shards, name), target.field("worker_restarts")) == (why, before)
    shards.put(name, "A harmless text.")
    shards.wait_tokenized(name)
    assert failure(shards, name) == ""
    eventually(lambda: target.field("failed_documents") == 0, SECONDS)
    assert target.field("worker_restarts") == before
    move(shards, keys.slot(tag(name)), target, source)


def test_the_count_of_ended_workers_moves_with_the_slot(shards: Moving) -> None:
    source, target = shards.nodes
    name = shards.name_on(source, "counted")
    before = target.field("worker_restarts")
    one_end(shards, source, name)
    move(shards, keys.slot(tag(name)), source, target)
    source.signal_worker(signal.SIGCONT)
    eventually(lambda: failure(shards, name) != "", SECONDS)
    assert target.field("worker_restarts") == before + 1  # the document had ended one worker on the source
    eventually(lambda: target.field("failed_documents") == 1, SECONDS)
    shards.delete(name)
    eventually(lambda: target.field("failed_documents") == 0, SECONDS)
    move(shards, keys.slot(tag(name)), target, source)


def test_a_promoted_replica_knows_the_failed_documents_and_the_counts(shards: Moving) -> None:
    primary, other = shards.nodes
    failed, counted = shards.name_on(primary, "failed"), shards.name_on(primary, "suspect")
    shards.put(failed, TEXT)
    eventually(lambda: failure(shards, failed) != "", SECONDS)
    why = failure(shards, failed)
    one_end(shards, primary, counted)
    before = shards.replica.field("worker_restarts")
    replica = shards.replica
    eventually(lambda: in_sync(shards, primary), SECONDS)
    shards.on(replica, "CLUSTER", "FAILOVER")
    eventually(lambda: replica.info("replication")["role"] == "master", SECONDS)
    primary.signal_worker(signal.SIGCONT)
    shards.nodes[0], shards.replica = replica, primary
    eventually(lambda: replica.port in primaries(shards, other), SECONDS)
    shards.client.nodes_manager.initialize()
    eventually(lambda: failure(shards, counted) != "", SECONDS)
    assert failure(shards, failed) == why
    assert replica.field("worker_restarts") == before + 1
    eventually(lambda: replica.field("failed_documents") == 2, SECONDS)
    eventually(lambda: primary.field("failed_documents") == 0, SECONDS)
    for name in (failed, counted):
        shards.put(name, "A harmless text.")
        shards.wait_tokenized(name)
    eventually(lambda: replica.field("failed_documents") == 0, SECONDS)
    assert replica.field("worker_restarts") == before + 1


def in_sync(shards: Moving, primary: Server) -> bool:
    return bool(shards.on(primary, "DEBUG", "DIGEST") == shards.on(shards.replica, "DEBUG", "DIGEST"))


def primaries(shards: Moving, node: Server) -> set[int]:
    """The ports of the primaries with slots, as a node knows them."""
    return {int(entry[2][1]) for entry in shards.on(node, "CLUSTER", "SLOTS")}
