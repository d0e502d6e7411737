"""Shards of a real cluster converge to the same registrations and pauses after lost messages and lost shards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster, linked, meet, ready_cluster
from tests.harness.polling import eventually
from tests.harness.servers import Later, Server, execute
from tests.harness.workers import WORKER
from tests.module.registrations import dump

SCRIPT = """
GB('CommandReader').map(lambda r: 'here').register(trigger='t', mode='async_local')
GB('StreamReader').foreach(lambda r: r).register(prefix='in:*')
GB('StreamReader').foreach(lambda r: r).register(prefix='out:*')
"""


def ids(server: Server) -> list[str]:
    """The ids of the trigger and of the two streams."""
    return [entry[1] for entry in execute(server, "RG.DUMPREGISTRATIONS")]


def state(server: Server) -> dict[str, Any]:
    """The status of each registration."""
    return {name: entry["RegistrationData"].get("status") for name, entry in dump(server).items()}


def same(servers: list[Server], expected: dict[str, Any]) -> bool:
    return all(state(server) == expected for server in servers)


def with_lost_messages(server: Server, *commands: tuple[object, ...]) -> None:
    """Run commands while the links to the other shards are cut, so that their messages are lost."""
    known = {str(row[2]) for _, _, *rows in execute(server, "CLUSTER", "SLOTS") for row in rows}
    others = known - {execute(server, "CLUSTER", "MYID")}
    with server.client() as client:
        # Redis 7.0 crashes when DEBUG CLUSTERLINK names a missing link
        eventually(lambda: others <= linked(server))
        pipeline = client.pipeline(transaction=True)
        for other in others:
            pipeline.execute_command("DEBUG", "CLUSTERLINK", "KILL", "TO", other)
        for command in commands:
            pipeline.execute_command(*command)
        pipeline.execute()


@pytest.fixture(scope="module")
def shared_cluster(shared_binary: Path) -> Iterator[Cluster]:
    """A cluster whose second shard persists its data in an RDB file, and whose third shard in the AOF."""
    with ready_cluster(shared_binary, own=[{}, {"save": "3600 1"}, {"appendonly": "yes"}]) as running:
        yield running


durable = pytest.mark.parametrize("down", [1, 2], ids=["rdb", "aof"])


def test_shards_recover_from_lost_messages(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
    trigger, in_, out = ids(first)
    with_lost_messages(first, ("RG.UNREGISTER", trigger), ("RG.PAUSEREGISTRATIONS", in_, out))
    eventually(lambda: same(cluster.nodes, {in_: "PAUSED", out: "PAUSED"}))
    with_lost_messages(third, ("RG.UNPAUSEREGISTRATIONS", out))
    with_lost_messages(second, ("RG.UNREGISTER", in_))
    eventually(lambda: same(cluster.nodes, {out: "OK"}))
    # the workers have applied the changes too: they read new streams, and their sessions lack the removed registrations
    with cluster.client() as client:
        for number in range(20):
            client.xadd(f"out:{number}", {"n": 1})
        eventually(lambda: not any(client.xlen(f"out:{number}") for number in range(20)))
    for node in cluster.nodes:
        (session,) = execute(node, "RG.PYDUMPSESSIONS")
        assert session[session.index("registrations") + 1] == [out]


def test_a_replaced_session_does_not_come_back(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
    before = ids(second)
    assert execute(second, "RG.PYEXECUTE", SCRIPT, "ID", "s", "UPGRADE") == "OK"
    after = ids(second)
    assert not set(before) & set(after)
    for node in cluster.nodes:
        eventually(lambda node=node: ids(node) == after)  # type: ignore[misc]


@durable
def test_a_shard_that_was_down_is_corrected(cluster: Cluster, down: int) -> None:
    first, lost, other = cluster.nodes[0], cluster.nodes[down], cluster.nodes[3 - down]
    assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
    trigger, in_, out = ids(first)
    assert execute(first, "RG.PAUSEREGISTRATIONS", in_) == "OK"
    eventually(lambda: same(cluster.nodes, {trigger: None, in_: "PAUSED", out: "OK"}))
    lost.stop()
    assert execute(first, "RG.UNREGISTER", trigger) == "OK"
    assert execute(other, "RG.UNPAUSEREGISTRATIONS", in_) == "OK"
    assert execute(other, "RG.PAUSEREGISTRATIONS", out) == "OK"
    lost.start()
    # the restarted shard's older order does not prevail, and the removed registration does not reappear
    eventually(lambda: same(cluster.nodes, {in_: "OK", out: "PAUSED"}))
    lost.wait_ready()
    assert same(cluster.nodes, {in_: "OK", out: "PAUSED"})


@durable
def test_a_shard_that_has_lost_its_data_gets_the_sessions_and_their_pauses(cluster: Cluster, down: int) -> None:
    first, lost = cluster.nodes[0], cluster.nodes[down]
    assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
    trigger, in_, out = ids(first)
    assert execute(first, "RG.UNREGISTER", trigger) == "OK"
    assert execute(first, "RG.PAUSEREGISTRATIONS", in_) == "OK"
    eventually(lambda: same(cluster.nodes, {in_: "PAUSED", out: "OK"}))
    lost.stop(signal.SIGKILL)
    for path in (*lost.directory.glob("appendonlydir/*"), *lost.directory.glob("*.rdb")):
        path.unlink()
    lost.start()
    eventually(lambda: same(cluster.nodes, {in_: "PAUSED", out: "OK"}))
    lost.wait_ready()


def test_a_shard_that_was_cut_off_is_corrected(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
    trigger, in_, out = ids(first)
    os.kill(third.pid, signal.SIGSTOP)
    try:
        with_lost_messages(first, ("RG.UNREGISTER", trigger), ("RG.PAUSEREGISTRATIONS", out))
        eventually(lambda: same([first, second], {in_: "OK", out: "PAUSED"}))
    finally:
        os.kill(third.pid, signal.SIGCONT)
    eventually(lambda: same(cluster.nodes, {in_: "OK", out: "PAUSED"}))


def replicate(replica: Server, primary: Server) -> None:
    """Make a server outside the cluster the replica of a server in it."""
    primary_id = execute(primary, "CLUSTER", "MYID")
    meet(replica, primary)
    eventually(lambda: execute(replica, "CLUSTER", "REPLICATE", primary_id) == "OK", ignore=redis.ResponseError)


def replica_of(primary: Server, asked: Server) -> str | None:
    """The id of a primary's replica, as another server knows it."""
    for _, _, *rows in execute(asked, "CLUSTER", "SLOTS"):
        if rows[0][1] == primary.port and len(rows) > 1:
            return str(rows[1][2])
    return None


def test_a_session_that_a_dying_worker_published_partly_reaches_all_shards(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    silence = "qa.worker-silence-ms"
    patience = execute(third, "CONFIG", "GET", silence)[silence]
    execute(third, "CONFIG", "SET", silence, 600_000)
    # the third worker is stopped: it gets the message, and dies before it reads the message
    pids = (first.field("worker_pid"), third.signal_worker(signal.SIGSTOP))
    publishing = Later(first, "RG.PYEXECUTE", SCRIPT, "ID", "s")
    eventually(lambda: len(ids(first)) == 3 and ids(second) == ids(first))
    for pid in pids:  # quickly, because the first worker soon gives up
        os.kill(pid, signal.SIGKILL)
    expected = ids(first)
    publishing.result()  # an error: the client does not know the outcome
    eventually(lambda: all(ids(node) == expected for node in cluster.nodes))
    eventually(lambda: execute(third, "RG.TRIGGER", "t") == ["here"], ignore=redis.ResponseError)
    execute(third, "CONFIG", "SET", silence, patience)


def test_a_promoted_replica_knows_what_its_primary_has_unregistered(own_cluster: Cluster, server_binary: Path) -> None:
    first, second, third = own_cluster.nodes
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000}
    with Server(server_binary, settings, worker=WORKER) as replica:
        replica.wait_ready()
        replicate(replica, first)
        # only the primary can announce its replica to the other shards
        own_id = execute(replica, "CLUSTER", "MYID")
        eventually(lambda: all(replica_of(first, node) == own_id for node in own_cluster.nodes))
        assert execute(first, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
        trigger, in_, out = ids(first)
        eventually(lambda: ids(replica) == [trigger, in_, out])
        execute(first, "CONFIG", "SET", "qa.worker-silence-ms", 600_000)
        first.signal_worker(signal.SIGSTOP)  # so that it cannot inform the other shards
        with_lost_messages(first, ("RG.UNREGISTER", trigger), ("RG.PAUSEREGISTRATIONS", in_))
        eventually(lambda: same([replica], {in_: "PAUSED", out: "OK"}))
        first.stop(signal.SIGKILL)
        assert trigger in ids(second)
        execute(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: same([replica, second, third], {in_: "PAUSED", out: "OK"}))
