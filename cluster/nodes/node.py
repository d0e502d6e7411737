"""The nodes of a cluster as one server reports them, and commands to one server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from qa_cluster.errors import ClusterError
from qa_cluster.hashtags import shard_tag


@dataclass(frozen=True)
class Node:
    """A node, in the view of one server. `connected` says whether this server has a connection to the node. `slots` are
    inclusive ranges. `primary_id` is empty for a primary.
    """

    id: str
    host: str
    port: int
    flags: frozenset[str]
    primary_id: str
    connected: bool
    slots: tuple[tuple[int, int], ...]
    # The slots that are migrating to another node, with the id of that node. Only the source node reports them.
    leaving: tuple[tuple[int, str], ...] = ()
    # The configuration epoch. The server raises it when the node receives slots.
    config_epoch: int = 0

    @property
    def is_primary(self) -> bool:
        """Whether the node is a primary that owns slots."""
        return not self.primary_id and bool(self.slots)

    @property
    def failed(self) -> bool:
        """Whether the node is known or suspected to be down."""
        return not self.connected or bool(self.flags & {"fail", "fail?", "noaddr"})

    @property
    def met(self) -> bool:
        """Whether the handshake with the node is complete. Before the handshake is complete, the id of the node is
        random, and commands with this id fail.
        """
        return "handshake" not in self.flags

    @property
    def address(self) -> str:
        """The host and the port of the node, as `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def tag(self) -> str:
        """The hash tag of the shard: the tag of its lowest slot, like RedisGears' ``hashtag()``."""
        return shard_tag(list(self.slots))

    @property
    def slot_count(self) -> int:
        """The number of slots that the node owns."""
        return sum(last - first + 1 for first, last in self.slots)


def parse_nodes(text: str, asked_host: str = "127.0.0.1") -> list[Node]:
    """Return the nodes in a reply to CLUSTER NODES. A node that does not know its own address yet gets the host
    `asked_host`, the host of the server that sent the reply.
    """
    nodes = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8:
            raise ClusterError(f"the server sent a line of CLUSTER NODES with fewer than 8 fields: {line!r}")
        host, _, port = fields[1].split(",")[0].partition("@")[0].rpartition(":")
        # [slot->-node] and [slot-<-node] mean that a slot is migrating. The slot is also listed on its own.
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
                config_epoch=int(fields[6]),
            )
        )
    return nodes


def command(client: redis.Redis, *words: str | bytes | memoryview | int) -> Any:
    """Send a command to one server and return its reply."""
    execute: Callable[..., Any] = client.execute_command
    return execute(*words)


def nodes_of(client: redis.Redis) -> list[Node]:
    """Return all nodes in the view of the server behind `client`."""
    reply = command(client, "CLUSTER", "NODES")
    host = str(client.connection_pool.connection_kwargs.get("host", "127.0.0.1"))
    return parse_nodes(text_of(reply), host)


def text_of(reply: object) -> str:
    """Return the reply of a server as text. Bytes are decoded as UTF-8."""
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def primaries(nodes: Sequence[Node]) -> list[Node]:
    """Return the primaries that own slots, in the order of their slots."""
    return sorted((node for node in nodes if node.is_primary), key=lambda node: node.slots[0])
