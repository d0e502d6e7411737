"""Makes one cluster of empty servers, and waits until all of its servers agree about it.

It uses only the server's own CLUSTER commands. `resharding` moves slots.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import redis

from qa_cluster.errors import ClusterError
from qa_cluster.keys import SLOTS

from .node import command, nodes_of
from .polling import POLL_SECONDS

_MEET_AGAIN_SECONDS = 3.0  # the server forgets a handshake that failed
# How `incomplete` begins when all slots are served but a node is down.
UNREACHABLE = "not reachable: "


def slot_ranges(shards: int) -> list[tuple[int, int]]:
    """The slots of each of `shards` primaries, spread evenly.

    >>> slot_ranges(3)
    [(0, 5460), (5461, 10922), (10923, 16383)]
    """
    edges = [round(SLOTS * index / shards) for index in range(shards + 1)]
    return [(first, after - 1) for first, after in itertools.pairwise(edges)]


def create(clients: Sequence[redis.Redis], ports: Sequence[int], shards: int, host: str, deadline: float) -> None:
    """Make one cluster of empty servers: the first `shards` become primaries, the others their replicas in turn."""
    for client in clients:
        if len(nodes_of(client)) > 1 or client.dbsize():
            raise ClusterError("a new cluster needs empty servers that are in no cluster yet")
    for client, (first, last) in zip(clients, slot_ranges(shards), strict=False):
        command(client, "CLUSTER", "ADDSLOTSRANGE", first, last)
    for epoch, client in enumerate(clients, start=1):
        command(client, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
    introduce(clients, ports, host, deadline)
    ids = [_text(command(client, "CLUSTER", "MYID")) for client in clients]
    for index, client in enumerate(clients[shards:]):
        command(client, "CLUSTER", "REPLICATE", ids[index % shards])
    wait_whole(clients, len(clients), deadline)


def introduce(clients: Sequence[redis.Redis], ports: Sequence[int], host: str, deadline: float) -> None:
    """Give the first server the addresses of the others and wait until every server knows all of them there."""
    expected, told_at = set(ports), -_MEET_AGAIN_SECONDS
    while True:
        known = [{node.port for node in nodes_of(client) if not node.failed} for client in clients]
        if all(ports_known >= expected for ports_known in known):
            return
        if time.monotonic() - told_at >= _MEET_AGAIN_SECONDS:
            told_at = time.monotonic()
            for port in sorted(expected - known[0]):
                command(clients[0], "CLUSTER", "MEET", host, port)
        _pause(deadline, "the nodes have not all met")


def wait_whole(clients: Sequence[redis.Redis], nodes: int, deadline: float) -> None:
    """Wait until every server reports that the cluster is ok, with `nodes` live nodes and all slots."""
    while problem := next((found for client in clients if (found := incomplete(client, nodes))), ""):
        _pause(deadline, problem)


def incomplete(client: redis.Redis, nodes: int = 0) -> str:
    """What is missing from the cluster in the view of one server; empty if nothing is."""
    info = _text(command(client, "CLUSTER", "INFO"))
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    if facts.get("cluster_state") != "ok":
        return f"cluster state is {facts.get('cluster_state', 'unknown')}"
    if facts.get("cluster_slots_ok") != str(SLOTS):
        return f"{facts.get('cluster_slots_ok')} of {SLOTS} slots are served"
    known = nodes_of(client)
    down = [node.address for node in known if node.failed]
    if down:
        return UNREACHABLE + ", ".join(down)
    if len(known) < nodes:
        return f"{len(known)} of {nodes} nodes are known"
    return _replicas_behind(client) if nodes else ""


def _replicas_behind(client: redis.Redis) -> str:
    replication = client.info("replication")
    behind = replication.get("role") == "slave" and replication.get("master_link_status") != "up"
    return "a replica has not reached its primary" if behind else ""


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise ClusterError(f"the cluster did not get whole in time: {problem}")
    time.sleep(POLL_SECONDS)


def _text(reply: object) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
