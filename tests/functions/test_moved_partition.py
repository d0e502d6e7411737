"""All data of a partition's documents moves with the partition to another shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qa_cluster import keys
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import PARTITIONS, SECONDS, Shards, tag


@contextmanager
def moved(shards: Shards, slot: int, source: Server, target: Server) -> Iterator[None]:
    move(shards, slot, source, target)
    try:
        yield
    finally:
        move(shards, slot, target, source)


def move(shards: Shards, slot: int, source: Server, target: Server) -> None:
    begun_move(shards, slot, source, target)
    end_move(shards, slot, source, target)


def begun_move(shards: Shards, slot: int, source: Server, target: Server) -> None:
    """Move all keys of the slot to the target; the slot stays migrating until `end_move`."""
    source_id, target_id = (shards.on(node, "CLUSTER", "MYID") for node in (source, target))
    shards.on(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    shards.on(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while names := shards.on(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        shards.on(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "REPLACE", "KEYS", *names)


def end_move(shards: Shards, slot: int, source: Server, target: Server) -> None:
    target_id = shards.on(target, "CLUSTER", "MYID")
    for node in (target, source, *shards.nodes):
        shards.on(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)
    shards.client.nodes_manager.initialize()


def test_a_moved_partition_is_ranked_and_read_on_its_new_shard(shards: Shards) -> None:
    shards.put("nomad", "Axolotls regrow their legs.")
    shards.wait_tokenized("nomad")
    slot = keys.slot(tag("nomad"))
    source = shards.node_of(keys.document_key("nomad", tag("nomad")))
    target = next(node for node in shards.nodes if node is not source)
    cached = shards.ask("nomad", 0, "What do axolotls regrow?")
    with moved(shards, slot, source, target):

        def complete() -> bool:
            ranking = shards.rank("axolotls")
            return [c.sentence for c in ranking.candidates] == [f"nomad:{{{tag('nomad')}}}:0"]

        eventually(complete, SECONDS)
        assert len(shards.rank("axolotls").epochs) == PARTITIONS
        assert shards.ask("nomad", 0, "What do axolotls regrow?") == cached
        answer = shards.ask("nomad", 0, "Who regrows legs?")
        assert answer is not None
        assert answer["sentence"] == "Axolotls regrow their legs."
        shards.put("nomad", "Olms live in caves.")
        shards.wait_tokenized("nomad")
        assert shards.ranked_documents("olms") == ["nomad"]
        assert shards.ranked_documents("axolotls") == []
    eventually(lambda: shards.ranked_documents("olms") == ["nomad"], SECONDS)
