"""A fourth shard joins and receives its share of the slots while clients ask and write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from qa_cluster.cluster.nodes.node import Node
from qa_cluster.cluster.nodes.resharding import Move, all_primaries, move_slots, plan, rebalance
from qa_cluster.keys import SLOTS
from tests.functions.running_shards import Shards, running
from tests.harness.clusters import meet
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER

from .load import Load


@pytest.fixture
def shards(server_binary: Path) -> Iterator[Shards]:
    """A separate cluster, because the test moves its slots."""
    with running(server_binary, 3) as found:
        yield found


def url(shards: Shards) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in shards.nodes)


def joined(shards: Shards, fourth: Server) -> None:
    """Let the fourth server join, and wait until it can answer."""
    meet(fourth, shards.nodes[0])
    for node in (*shards.nodes, fourth):
        eventually(lambda node=node: "cluster_known_nodes:4" in shards.on(node, "CLUSTER", "INFO"))
    shards.nodes.append(fourth)
    eventually(lambda: _trigger(shards, fourth))


def _trigger(shards: Shards, node: Server) -> bool:
    try:
        return bool(shards.on(node, "RG.TRIGGER", "qa.reader")[0])
    except redis.ResponseError:
        return False


def from_the_lower_end(shards: Shards) -> int:
    """Move like ``redis-cli --cluster rebalance``: the lowest slots first, with the readers' keys."""
    with_clients = [(node, shards.nodes[i].client(decode_responses=False)) for i, node in enumerate(ordered(shards))]
    try:
        counts = {node.id: node.slot_count for node, _ in with_clients}
        moves = plan([node for node, _ in with_clients])
        taken = {name: sum(move.source == name for move in moves) for name in counts}
        target = moves[0].target
        lowest = [
            Move(slot, node.id, target)
            for node, _ in with_clients
            for slot in [s for first, last in node.slots for s in range(first, last + 1)][: taken[node.id]]
        ]
        move_slots(lowest, with_clients)
        return len(lowest)
    finally:
        for _, client in with_clients:
            client.close()


def ordered(shards: Shards) -> list[Node]:
    """Every server as a node, in the order of `shards.nodes`."""
    with shards.nodes[0].client(decode_responses=False) as client:
        found = {node.port: node for node in all_primaries(client)}
    return [found[node.port] for node in shards.nodes]


def from_the_upper_end(shards: Shards) -> int:
    """Move like `qa-cluster scale`: the highest slots, so that the readers' keys stay."""
    with_clients = [(node, shards.nodes[i].client(decode_responses=False)) for i, node in enumerate(ordered(shards))]
    try:
        return rebalance(with_clients)
    finally:
        for _, client in with_clients:
            client.close()


def at_once(shards: Shards) -> int:
    """Move with Valkey's CLUSTER MIGRATESLOTS: all slots of a shard at once, while the source serves."""
    nodes = ordered(shards)
    moves = plan(nodes)
    for index, node in enumerate(nodes):
        owned = [slot for first, last in node.slots for slot in range(first, last + 1)]
        # the lowest slots first, which have the keys of the reader
        slots = owned[: sum(move.source == node.id for move in moves)]
        if slots:
            arguments = ("SLOTSRANGE", slots[0], slots[-1], "NODE", moves[0].target)
            shards.on(shards.nodes[index], "CLUSTER", "MIGRATESLOTS", *arguments)
            eventually(lambda s=slots, t=shards.nodes[-1]: _serves(shards, t, s[-1]))
    return len(moves)


def _serves(shards: Shards, node: Server, slot: int) -> bool:
    migrations = str(shards.on(node, "CLUSTER", "GETSLOTMIGRATIONS"))
    assert "failed" not in migrations, migrations
    return any(first <= slot <= last for first, last in ordered(shards)[shards.nodes.index(node)].slots)


HEAVY = [pytest.param(way, marks=pytest.mark.cluster) for way in (from_the_lower_end, at_once)]


@pytest.mark.parametrize("way", [from_the_upper_end, *HEAVY])
def test_a_fourth_shard_gets_its_share_under_load(
    shards: Shards, server_binary: Path, way: Callable[[Shards], int]
) -> None:
    if way is at_once and shards.on(shards.nodes[0], "INFO").get("server_name") != "valkey":
        pytest.skip("CLUSTER MIGRATESLOTS is Valkey's")
    load = Load(url(shards))
    load.store_facts()
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000, "qa.max-batch-tokens": FEW_TOKENS}
    with Server(server_binary, settings, worker=WORKER) as fourth:
        joined(shards, fourth)
        work = [partial(load.ask, "use"), partial(load.ask, "off"), partial(load.ask, "off"), load.get, load.write]
        with load.running(*work):
            eventually(lambda: len(load.seen.right) > 50)
            begun = time.monotonic()
            moved = way(shards)
            took = time.monotonic() - begun
            answered = len(load.seen.right)
            eventually(lambda: len(load.seen.right) > answered + 100)
        print(
            f"\n{moved} slots moved in {took:.1f} s; {len(load.seen.right)} right answers, slowest"
            f" {load.seen.slowest():.2f} s; {len(load.seen.stored)} documents stored;"
            f" retries: {dict(load.seen.redirects)}"
        )
        assert moved == SLOTS // 4
        assert not load.seen.wrong
        assert not load.seen.errors
        assert load.lost_writes() == []
        assert len({node.slot_count for node in ordered(shards)}) == 1
        eventually(lambda: all(stored_readers(shards, node) == 1 for node in shards.nodes))
        shards.nodes.remove(fourth)


def stored_readers(shards: Shards, node: Server) -> int:
    """The number of copies of the reader in a shard's keys."""
    return len(shards.on(node, "AI._MODELSCAN"))
