"""Adds shards to the local cluster while it stays in use: new servers join, warm up, and receive their share of the
slots.

A run continues where an interrupted run stopped.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.routing.cluster_address import address_of

from ..nodes import resharding
from ..nodes.all_shards import OnStep
from ..nodes.connect import ShardClient, server_client
from ..nodes.node import command, nodes_of
from ..nodes.polling import POLL_SECONDS
from ..nodes.worker_start import wait_workers
from ..servers import ports
from ..servers.local import LocalCluster
from ..servers.state import locked, read_state, write_state
from .inspection import reader_in_use
from .provisioning import complete


def scale(settings: Settings, cluster: LocalCluster, shards: int, on_step: OnStep) -> int:
    """Extend the local cluster to `shards` primaries. Each new primary gets as many replicas as the other primaries
    have. Return the number of slots that this call has moved.
    """
    _extend(cluster, shards)
    url = cluster.up().url
    with ExitStack() as stack:
        found = _connected(settings, url, stack)
        _make_replicas(found, shards)
        primaries = [(node, client) for node, client in _connected(settings, url, stack) if not node.primary_id]
        on_step("waiting until the new workers are warm")
        patience_seconds = settings.start_timeout_ms / 1000
        wait_workers(primaries, patience_seconds)
        _wait_warm(primaries, time.monotonic() + patience_seconds)
        shown = -1

        def progress(done: int, total: int) -> None:
            nonlocal shown
            if (percent := done * 100 // total) // 10 > shown // 10:
                shown = percent
                on_step(f"moving slots: {done} of {total}")

        moved = resharding.rebalance(primaries, password=settings.cluster_password, on_move=progress)
    complete(settings, url, on_step)
    return moved


def _extend(cluster: LocalCluster, shards: int) -> None:
    """Add the new nodes to the stored state of the cluster, with free ports. If the state already has `shards` shards,
    do nothing. Raises ConfigError if there is no cluster, or if it has more shards.
    """
    with locked(cluster.data_dir):
        state = read_state(cluster.data_dir)
        if state is None or not state.created:
            raise ConfigError(f"no cluster in {str(cluster.data_dir)!r} to scale: create it with `qa-cluster up`")
        if shards < state.shards:
            raise ConfigError(
                f"`scale` cannot reduce the cluster from {state.shards} to {shards} shards: move the slots with"
                " `redis-cli --cluster reshard`, then stop the servers"
            )
        count = (shards - state.shards) * (1 + state.replicas)
        if count:
            new = ports.node_ports_near(state.ports, count)
            write_state(cluster.data_dir, replace(state, shards=shards, ports=(*state.ports, *new)))


def _connected(settings: Settings, url: str, stack: ExitStack) -> list[ShardClient]:
    """Return all running nodes, in the order of their folders, each with a client."""
    addresses = address_of(replace(settings, cluster_url=url)).seeds
    clients = [stack.enter_context(server_client(settings, url, address)) for address in addresses]
    # Only a node itself reports which of its slots are migrating.
    return [(next(node for node in nodes_of(client) if "myself" in node.flags), client) for client in clients]


def _make_replicas(found: list[ShardClient], shards: int) -> None:
    """Choose the new primaries among the new nodes, which have no slots and no primary.

    The cluster needs `shards` primaries. The first new nodes stay primaries, until this number is reached. Make the
    other new nodes replicas, spread evenly over the new primaries. If the cluster needs no new primary, give one
    replica to each of the first primaries that own slots.
    """
    owners = [node for node, _ in found if node.is_primary]
    new = [(node, client) for node, client in found if not node.primary_id and not node.slots]
    wanted = shards - len(owners)
    for index, (_, client) in enumerate(new[wanted:]):
        command(client, "CLUSTER", "REPLICATE", new[index % wanted][0].id if wanted else owners[index % len(owners)].id)


def _wait_warm(primaries: list[ShardClient], deadline: float) -> None:
    """Wait until each primary without slots has received functions and a reader from the other shards. Raises
    ClusterError after the deadline.
    """
    for node, client in primaries:
        while not node.slots and not reader_in_use(client):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the new shard {node.address} did not receive functions and a reader within start_timeout_ms:"
                    " repeat the command"
                )
            time.sleep(POLL_SECONDS)
