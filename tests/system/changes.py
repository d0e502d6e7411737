"""Changes of a replicated cluster, one at a time: slot moves, failovers, and killed primaries."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from qa_cluster import keys
from qa_cluster.cluster.nodes.connect import ShardClient
from qa_cluster.cluster.nodes.node import Node, nodes_of, primaries
from qa_cluster.cluster.nodes.resharding import Move, move_slots
from qa_cluster.shard_functions import MODELS_TRIGGER
from tests.functions.running_shards import PARTITIONS
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .replicated import Replicated

PATIENCE_SECONDS = 120.0
AGAIN_SECONDS = 5.0  # a server cancels a manual failover after this time


class Changes:
    """Makes the changes. A change ends when all servers agree on it and every replica follows its primary.

    Attributes:
        tags: the partitions of the last change.
    """

    def __init__(self, shards: Replicated, chance: random.Random) -> None:
        self._shards = shards
        self._chance = chance
        self._bag: list[Callable[[], None]] = []
        self.tags: list[str] = []
        on_valkey = shards.on(shards.nodes[0], "INFO").get("server_name") == "valkey"
        ways = [self.slot_moved_at_once] * 2 if on_valkey else []
        self._kinds = [self.slot_moved_by_keys, self.slot_moved_by_keys, *ways, self.failover, self.failover, self.kill]

    def next(self) -> Callable[[], None]:
        """Make a random change; all kinds are equally likely."""
        if not self._bag:
            self._bag = list(self._kinds)
            self._chance.shuffle(self._bag)
        return self._bag.pop()

    def slot_moved_by_keys(self) -> None:
        """Move a partition as `qa-cluster scale` does: its slot is migrating while MIGRATE moves the keys."""
        move = self._some_move()
        with self._clients() as clients:
            move_slots([move], clients)
        self._settled(move)

    def slot_moved_at_once(self) -> None:
        """Move a partition with CLUSTER MIGRATESLOTS: the source serves until all keys are moved."""
        move = self._some_move()
        source = self._server(move.source)
        self._shards.on(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", move.slot, move.slot, "NODE", move.target)
        self._settled(move)

    def failover(self) -> None:
        """Let a replica take over from a live primary."""
        primary, replica = self._some_pair()
        begun = -AGAIN_SECONDS

        def promoted() -> bool:
            nonlocal begun
            if time.monotonic() - begun >= AGAIN_SECONDS and self._shards.role(replica) == "slave":
                begun = time.monotonic()
                self._shards.on(replica, "CLUSTER", "FAILOVER")
            return self._shards.role(replica) == "master"

        eventually(promoted, PATIENCE_SECONDS, ignore=(redis.ConnectionError, redis.ResponseError))
        eventually(lambda: self._shards.role(primary) == "slave", PATIENCE_SECONDS)
        self._settled()

    def kill(self) -> None:
        """Kill a primary, wait until its replica has taken over, and restart the killed server as a replica."""
        primary, replica = self._some_pair()
        primary.stop(signal.SIGKILL)
        eventually(lambda: self._shards.role(replica) == "master", PATIENCE_SECONDS)
        primary.start()
        eventually(lambda: self._shards.role(primary) == "slave", PATIENCE_SECONDS)
        self._settled()

    def _some_pair(self) -> tuple[Server, Server]:
        primary, replica = self._chance.choice(self._shards.pairs())
        node = next(node for node in self._view(primary) if "myself" in node.flags)
        self.tags = [tag for tag in keys.partition_tags(PARTITIONS) if keys.slot(tag) in owned(node)]
        return primary, replica

    def _some_move(self) -> Move:
        self.tags = [self._chance.choice(keys.partition_tags(PARTITIONS))]
        slot = keys.slot(self.tags[0])
        found = primaries(self._view(self._shards.servers[0]))
        source = next(node for node in found if slot in owned(node))
        target = self._chance.choice([node for node in found if node is not source])
        return Move(slot, source.id, target.id)

    def _view(self, server: Server) -> list[Node]:
        with server.client(decode_responses=False) as client:
            return nodes_of(client)

    def _server(self, node_id: str) -> Server:
        return next(server for server in self._shards.servers if self._shards.on(server, "CLUSTER", "MYID") == node_id)

    @contextmanager
    def _clients(self) -> Iterator[list[ShardClient]]:
        found = {node.port: node for node in primaries(self._view(self._shards.servers[0]))}
        servers = [server for server in self._shards.servers if server.port in found]
        clients = [(found[server.port], server.client(decode_responses=False)) for server in servers]
        try:
            yield clients
        finally:
            for _, client in clients:
                client.close()

    def _settled(self, move: Move | None = None) -> None:
        """Wait until all servers agree, a moved slot has its owner, replicas follow, and readers are stored.

        A shard with a new lowest slot copies its reader to keys of this slot. A worker that starts before the copy has
        no reader, so the tests wait between two changes.
        """
        eventually(lambda: self._agreed(move), PATIENCE_SECONDS, 0.1)
        for server in self._shards.servers:
            eventually(lambda s=server: self._ready(s), PATIENCE_SECONDS, 0.1, redis.RedisError)

    def _agreed(self, move: Move | None) -> bool:
        views = []
        for server in self._shards.servers:
            nodes = self._view(server)
            if any(node.failed for node in nodes):
                return False
            views.append({node.id: node.slots for node in primaries(nodes)})
        there = move is None or any(first <= move.slot <= last for first, last in views[0].get(move.target, ()))
        return there and all(view == views[0] for view in views)

    def _ready(self, server: Server) -> bool:
        replication = server.info("replication")
        if server.field("worker_state") != "ready":
            return False
        if replication["role"] != "master":
            return bool(replication["master_link_status"] == "up")
        (reply,) = self._shards.on(server, "RG.TRIGGER", MODELS_TRIGGER)
        return any(model["default"] and model["stored"] for model in json.loads(reply))


def owned(node: Node) -> set[int]:
    """The slots of a node."""
    return {slot for first, last in node.slots for slot in range(first, last + 1)}
