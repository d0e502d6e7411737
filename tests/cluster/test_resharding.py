"""Resharding spreads slots evenly and keeps their keys, even if a run is interrupted. The servers have no module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest
import redis

from qa_cluster.cluster.nodes import formation
from qa_cluster.cluster.nodes.connect import cluster_client, server_client
from qa_cluster.cluster.nodes.node import Node, command, nodes_of
from qa_cluster.cluster.nodes.resharding import Move, move_slots, plan, rebalance
from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.keys import SLOTS, slot
from qa_cluster.topology import Address
from tests.harness.polling import eventually

from .conftest import MakeCluster

WORDS = [f"key-{number}" for number in range(300)]
PASSWORD = 'a "quoted" secret'


def node(name: str, *slots: tuple[int, int]) -> Node:
    return Node(name, "h", 1, frozenset(), "", True, slots)


@pytest.mark.parametrize("before", [[16384, 0], [6000, 6000, 4384, 0], [1, 16383, 0, 0, 0], [4096] * 4])
def test_a_plan_evens_out_the_shares_with_the_fewest_moves(before: list[int]) -> None:
    edges = [sum(before[:index]) for index in range(len(before) + 1)]
    nodes = [
        node(str(index), *([(first, after - 1)] if after > first else []))
        for index, (first, after) in enumerate(pairwise(edges))
    ]
    moves = plan(nodes)
    counts = list(before)
    for move in moves:
        counts[int(move.source)] -= 1
        counts[int(move.target)] += 1
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == SLOTS
    assert len(moves) == sum(max(0, a - b) for a, b in zip(before, counts, strict=True))
    assert len({move.slot for move in moves}) == len(moves)


@contextmanager
def shards_of(cluster: LocalCluster) -> Iterator[list[tuple[Node, redis.Redis]]]:
    """For each server, its node in its own view, and a client."""
    url = cluster.url()
    addresses = [Address.parse(part) for part in url.removeprefix("redis://").split(",")]
    with ExitStack() as stack:
        clients = [stack.enter_context(server_client(cluster.settings, url, address)) for address in addresses]
        yield [(next(n for n in nodes_of(c) if "myself" in n.flags), c) for c in clients]


def test_slots_that_move_in_both_directions_at_once_keep_an_owner(make_cluster: MakeCluster, server: str) -> None:
    """If a target did not know the newer epoch of the source, the slot would return to the source after the move."""
    cluster = make_cluster(server=server)
    cluster.up()
    with shards_of(cluster) as shards:
        (first, _), (second, _), _ = shards
        moved = first.slots[0][0]
        for _ in range(20):
            for source, target in ((first, second), (second, first)):
                move_slots([Move(moved, source.id, target.id)], shards)
        for _, client in shards:
            eventually(lambda client=client: owner(client, moved) == first.id)


def owner(client: redis.Redis, number: int) -> str:
    """The id of the slot's owner in the view of this server."""
    return next((n.id for n in nodes_of(client) if any(a <= number <= b for a, b in n.slots)), "")


def test_an_interrupted_move_is_completed_without_loss_of_keys(make_cluster: MakeCluster, server: str) -> None:
    cluster = make_cluster(server=server, cluster_password=PASSWORD)
    cluster.up()
    with cluster_client(cluster.settings, cluster.url()) as client:
        for word in WORDS:
            client.set(word, word)
        with shards_of(cluster) as shards:
            (first, source), (_, _), (last, target) = shards
            everything = [Move(s, last.id, first.id) for a, b in last.slots for s in range(a, b + 1)]
            move_slots(everything[1:], shards, password=PASSWORD)  # a primary without slots becomes a replica
        with shards_of(cluster) as shards:
            (first, source), (_, _), (last, target) = shards
            assert last.slot_count == 1
            opened = next(s for s in map(slot, WORDS) if any(a <= s <= b for a, b in first.slots))
            command(target, "CLUSTER", "SETSLOT", opened, "IMPORTING", first.id)
            command(source, "CLUSTER", "SETSLOT", opened, "MIGRATING", last.id)
        with shards_of(cluster) as shards:
            assert rebalance(shards, password=PASSWORD) >= SLOTS // 3 - 1
        with shards_of(cluster) as shards:
            assert sorted(n.slot_count for n, _ in shards) == [5461, 5461, 5462]
            assert not any(n.leaving for n, _ in shards)
            assert shards[2][1].dbsize() > 0
            assert rebalance(shards, password=PASSWORD) == 0
        client.nodes_manager.initialize()
        assert [client.get(word) for word in WORDS] == [word.encode() for word in WORDS]


def test_a_move_waits_for_a_target_with_a_failed_cluster_state(make_cluster: MakeCluster, server: str) -> None:
    cluster = make_cluster(server=server)
    cluster.up()
    with cluster_client(cluster.settings, cluster.url()) as client, shards_of(cluster) as shards:
        client.set("key", "value")
        (receiver, target), (other, _), (owner, _) = shards
        assert any(first <= slot("key") <= last for first, last in owner.slots)
        command(target, "CONFIG", "SET", "cluster-require-full-coverage", "yes")

        def lost() -> bool:
            # The next ping of the slot's owner restores this slot, perhaps before the next line runs.
            command(target, "CLUSTER", "DELSLOTS", other.slots[0][0])
            return formation.incomplete(target) == "cluster state is fail"

        eventually(lost, ignore=redis.ResponseError)  # until no ping restores the slot in between
        move_slots([Move(slot("key"), owner.id, receiver.id)], shards)
        assert command(target, "CLUSTER", "COUNTKEYSINSLOT", slot("key")) == 1
        client.nodes_manager.initialize()
        assert client.get("key") == b"value"
