"""A cluster of three primaries and three replicas with functions and reader, for tests of failovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from qa_cluster import keys
from tests.functions.running_shards import PARTITIONS, Shards
from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER

SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 3000,  # on a busy machine a server may be silent for a second
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "repl-backlog-size": "16kb",
    "qa.max-batch-tokens": FEW_TOKENS,
}


class Replicated(Shards):
    """At the start, `nodes` are the primaries, and `replicas` are their replicas in the same order."""

    def __init__(self, cluster: Cluster, replicas: list[Server]) -> None:
        super().__init__(cluster)
        self.replicas = replicas

    @property
    def servers(self) -> list[Server]:
        return [*self.nodes, *self.replicas]

    @property
    def url(self) -> str:
        return "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def role(self, server: Server) -> str:
        try:
            return str(server.info("replication")["role"])
        except redis.ConnectionError:
            return "down"

    def pairs(self) -> list[tuple[Server, Server]]:
        """The current primary and replica of each shard."""
        return [(b, a) if self.role(b) == "master" else (a, b) for a, b in zip(self.nodes, self.replicas, strict=True)]

    def pair_of(self, document_id: str) -> tuple[Server, Server]:
        """The primary and the replica of a document's shard."""
        return self.pair_of_slot(keys.slot(keys.partition_of(document_id, PARTITIONS)))

    def pair_of_slot(self, slot: int) -> tuple[Server, Server]:
        """The primary and the replica of a slot's shard."""
        return self.pairs()[min(slot // (16384 // 3), 2)]

    def in_sync(self, seconds: float = 120) -> None:
        """Wait until every replica has all data of its primary."""
        for primary, replica in self.pairs():
            eventually(lambda p=primary, r=replica: self._same(p, r), seconds, 0.1, redis.RedisError)

    def _same(self, primary: Server, replica: Server) -> bool:
        if replica.info("replication").get("master_link_status") != "up":
            return False
        return bool(self.on(primary, "DEBUG", "DIGEST") == self.on(replica, "DEBUG", "DIGEST"))

    def whole(self) -> None:
        """Wait until the cluster and all workers are in order, and every replica is in sync."""
        for server in self.servers:
            eventually(lambda s=server: "cluster_state:ok" in self.on(s, "CLUSTER", "INFO"))
            eventually(lambda s=server: s.field("worker_state") == "ready")
        self.in_sync()
        self.client.nodes_manager.initialize()

    def warm(self, server: Server) -> bool:
        """Whether the worker of a server has loaded the reader."""
        return "is loaded" in server.log.read_text(errors="replace") and server.field("worker_state") == "ready"


@contextmanager
def replicated(binary: Path, own: Mapping[str, object] | None = None) -> Iterator[Replicated]:
    """Start the cluster with the settings `own`, and wait until every replica is in sync and has loaded the reader."""
    settings = SETTINGS | dict(own or {})
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(binary, settings, worker=WORKER))
        shards = Replicated(cluster, [])
        for node in cluster.nodes:
            node.wait_ready()
        shards.set_up()
        shards.load_reader()
        shards.replicas = [stack.enter_context(Server(binary, settings, worker=WORKER)) for _ in cluster.nodes]
        for replica, primary in zip(shards.replicas, shards.nodes, strict=True):
            meet(replica, primary)
        for server in shards.servers:
            eventually(lambda s=server: "cluster_known_nodes:6" in shards.on(s, "CLUSTER", "INFO"))
        for replica, primary in zip(shards.replicas, shards.nodes, strict=True):
            words = ("CLUSTER", "REPLICATE", shards.on(primary, "CLUSTER", "MYID"))
            # retried, because a node has a temporary id until its handshake ends
            eventually(lambda r=replica, w=words: shards.on(r, *w), ignore=redis.ResponseError)
        shards.in_sync()
        for server in shards.servers:
            eventually(lambda s=server: shards.warm(s))
        yield shards
