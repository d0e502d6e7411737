"""Forms one cluster from empty servers, and waits until all servers agree about the cluster.

This module forms the cluster with the CLUSTER commands of the servers. It never moves slots; `resharding` moves slots.
Each `deadline` is a value of `time.monotonic`.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Mapping, Sequence

import redis

from qa_cluster.errors import ClusterError
from qa_cluster.keys import SLOTS
from qa_cluster.topology import Address

from .node import command, nodes_of, text_of
from .polling import POLL_SECONDS

Servers = Mapping[Address, redis.Redis]
MEET_AGAIN_SECONDS = 3.0  # a server needs this long to forget a handshake that failed
# `incomplete` returns a text with this start if all slots are served but a node is down.
UNREACHABLE = "not reachable: "


def slot_ranges(shards: int) -> list[tuple[int, int]]:
    """Return the slot range of each of `shards` primaries: its first and its last slot, both inclusive. The slots are
    divided evenly.

    >>> slot_ranges(3)
    [(0, 5460), (5461, 10922), (10923, 16383)]
    """
    edges = [round(SLOTS * index / shards) for index in range(shards + 1)]
    return [(first, after - 1) for first, after in itertools.pairwise(edges)]


def create(servers: Servers, shards: int, deadline: float) -> None:
    """Form one cluster from empty servers. The first `shards` servers become primaries. The other servers become
    replicas, spread evenly over the primaries. Raises ClusterError if a server has data or is in a cluster, or after
    the deadline.
    """
    clients = list(servers.values())
    for address, client in servers.items():
        if len(nodes_of(client)) > 1 or client.dbsize():
            raise ClusterError(
                f"the server at {address} holds data or is in a cluster: a new cluster needs empty servers"
            )
    for client, (first, last) in zip(clients, slot_ranges(shards), strict=False):
        command(client, "CLUSTER", "ADDSLOTSRANGE", first, last)
    for epoch, client in enumerate(clients, start=1):
        command(client, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
    introduce(servers, deadline)
    ids = [text_of(command(client, "CLUSTER", "MYID")) for client in clients]
    for index, client in enumerate(clients[shards:]):
        command(client, "CLUSTER", "REPLICATE", ids[index % shards])
    wait_whole(clients, len(clients), deadline)


def introduce(servers: Servers, deadline: float) -> None:
    """Introduce the servers to each other, and wait until every server reaches all other servers.

    Send each server the addresses of the servers that it does not know or cannot reach. Repeat this while a server
    cannot reach another one. Raises ClusterError after the deadline.
    """
    ids = {address: text_of(command(client, "CLUSTER", "MYID")) for address, client in servers.items()}
    met_at = -MEET_AGAIN_SECONDS
    while True:
        unknown = [
            (client, address)
            for asked, client in servers.items()
            for address in _not_reached(client, {a: i for a, i in ids.items() if a != asked})
        ]
        if not unknown:
            return
        if time.monotonic() - met_at >= MEET_AGAIN_SECONDS:
            met_at = time.monotonic()
            for client, address in unknown:
                command(client, "CLUSTER", "MEET", _resolved(address), address.port)
        pause(
            deadline, f"a server cannot reach {unknown[0][1]}" if len(unknown) == 1 else "the servers have not all met"
        )


def _not_reached(client: redis.Redis, ids: Mapping[Address, str]) -> list[Address]:
    reached = {node.id for node in nodes_of(client) if node.met and not node.failed}
    return [address for address, node_id in ids.items() if node_id not in reached]


def _resolved(address: Address) -> str:
    """Return the IP address of a server, because CLUSTER MEET accepts no host names."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ClusterError(f"the host name in {address} cannot be resolved: {error}") from error
    return str(found[0][4][0])


def wait_whole(clients: Sequence[redis.Redis], nodes: int, deadline: float) -> None:
    """Wait until every server reports that the cluster is complete: it is ok, serves all slots, and has at least
    `nodes` nodes, none of which is down. Raises ClusterError after the deadline.
    """
    while problem := next((found for client in clients if (found := incomplete(client, nodes))), ""):
        pause(deadline, problem)


def incomplete(client: redis.Redis, nodes: int = 0) -> str:
    """Return what the cluster lacks in the view of one server; empty if the cluster is complete. With `nodes`, the
    cluster is complete only if the server knows at least this number of nodes and, if it is a replica, is connected to
    its primary.
    """
    info = text_of(command(client, "CLUSTER", "INFO"))
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    if facts.get("cluster_state") != "ok":
        return f"cluster state is {facts.get('cluster_state', 'unknown')}"
    if facts.get("cluster_slots_ok") != str(SLOTS):
        return f"{facts.get('cluster_slots_ok')} of {SLOTS} slots are served"
    known = nodes_of(client)
    down = [node.address for node in known if node.failed]
    if down:
        return UNREACHABLE + ", ".join(down)
    met = sum(node.met for node in known)
    if met < nodes:
        return f"{met} of {nodes} nodes are known"
    return _replicas_behind(client) if nodes else ""


def _replicas_behind(client: redis.Redis) -> str:
    replication = client.info("replication")
    behind = replication.get("role") == "slave" and replication.get("master_link_status") != "up"
    return "a replica has not connected to its primary" if behind else ""


def pause(deadline: float, problem: str) -> None:
    """Wait for `POLL_SECONDS`. If the deadline has already passed, instead raise ClusterError with `problem`."""
    if time.monotonic() > deadline:
        raise ClusterError(f"the cluster was not complete within start_timeout_ms: {problem}")
    time.sleep(POLL_SECONDS)
