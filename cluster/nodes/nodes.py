"""The nodes of a cluster: reading them from any node, creating a cluster from empty servers, waiting until all agree.

Everything goes through the server's own CLUSTER commands. Slots are moved by `resharding`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from qa_cluster.errors import ClusterError
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import SLOTS

_POLL_SECONDS = 0.05
_MEET_AGAIN_SECONDS = 3.0  # a handshake that fails is forgotten by the server
# How `incomplete` begins when all slots are served but a node is down.
UNREACHABLE = "not reachable: "


@dataclass(frozen=True)
class Node:
    """One node as another one sees it. `slots` are inclusive ranges; `primary_id` is empty for a primary."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    primary_id: str
    connected: bool
    slots: tuple[tuple[int, int], ...]
    # Slots on their way to another node, with its id; only the node itself tells.
    leaving: tuple[tuple[int, str], ...] = ()

    @property
    def is_primary(self) -> bool:
        """Whether it is a primary that owns slots."""
        return not self.primary_id and bool(self.slots)

    @property
    def failed(self) -> bool:
        """Whether it is known or suspected to be down."""
        return not self.connected or bool(self.flags & {"fail", "fail?", "noaddr"})

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    @property
    def tag(self) -> str:
        """The shard's hash tag, RedisGears' ``hashtag()``: of the lowest slot it owns."""
        return shard_tag(list(self.slots))

    @property
    def slot_count(self) -> int:
        """How many slots it owns."""
        return sum(last - first + 1 for first, last in self.slots)


def parse_nodes(text: str, asked_host: str = "127.0.0.1") -> list[Node]:
    """The nodes in a reply to CLUSTER NODES. A node that does not know its own address yet gets `asked_host`."""
    nodes = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8:
            raise ClusterError(f"not a line of CLUSTER NODES: {line!r}")
        host, _, port = fields[1].split(",")[0].partition("@")[0].rpartition(":")
        # [slot->-node] and [slot-<-node] tell of a migration; the slot itself is listed too.
        ranges = [word.partition("-") for word in fields[8:] if not word.startswith("[")]
        opened = [word.strip("[]").partition("->-") for word in fields[8:] if word.startswith("[")]
        nodes.append(
            Node(
                id=fields[0],
                host=host or asked_host,
                port=int(port),
                flags=frozenset(fields[2].split(",")),
                primary_id="" if fields[3] == "-" else fields[3],
                connected=fields[7] == "connected" or "myself" in fields[2],
                slots=tuple((int(first), int(last or first)) for first, _, last in ranges),
                leaving=tuple((int(slot), target) for slot, arrow, target in opened if arrow),
            )
        )
    return nodes


def command(client: redis.Redis, *words: str | bytes | memoryview | int) -> Any:
    """Send any command to one server and return its reply."""
    execute: Callable[..., Any] = client.execute_command
    return execute(*words)


def nodes_of(client: redis.Redis) -> list[Node]:
    """All nodes as the server behind `client` sees them."""
    reply = command(client, "CLUSTER", "NODES")
    host = str(client.connection_pool.connection_kwargs.get("host", "127.0.0.1"))
    return parse_nodes(reply.decode() if isinstance(reply, bytes) else str(reply), host)


def primaries(nodes: Sequence[Node]) -> list[Node]:
    """The primaries that own slots, the one with the lowest slot first."""
    return sorted((node for node in nodes if node.is_primary), key=lambda node: node.slots[0])


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
    """Tell the first server the addresses of the others and wait until each server knows all of them, there."""
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
    """Wait until every server says that the cluster is ok, has `nodes` live nodes and all slots."""
    while problem := next((found for client in clients if (found := incomplete(client, nodes))), ""):
        _pause(deadline, problem)


def incomplete(client: redis.Redis, nodes: int = 0) -> str:
    """What one server thinks is missing from the cluster; empty when nothing is."""
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
    time.sleep(_POLL_SECONDS)


def _text(reply: object) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
