"""A listing continues from its position while partitions migrate between shards."""

from __future__ import annotations

from collections import Counter

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient

from .running_shards import Shards, tag
from .test_moved_partition import move, moved

NAMES = [f"listed/{number}" for number in range(40)]


def test_a_listing_survives_moves_of_slots(shards: Shards) -> None:
    for name in NAMES:
        shards.put(name, f"Sentence of {name}. Another one.")
    shards.wait_tokenized(*NAMES)
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as client:
        expected = sorted(NAMES)
        assert sorted(entry.id for entry in client.list_documents(prefix="listed/")) == expected
        seen: list[str] = []
        cursor: str | None = ""
        moves = 0
        while cursor is not None:
            page = client.document_page(cursor, limit=3, prefix="listed/")
            seen += [entry.id for entry in page.documents]
            cursor = page.next_cursor
            if page.documents and moves < 4:  # move the partition that the listing has reached
                moves += 1
                slot = keys.slot(tag(page.documents[-1].id))
                source = shards.node_of(keys.index_key(tag(page.documents[-1].id)))
                target = next(node for node in shards.nodes if node is not source)
                with moved(shards, slot, source, target):
                    inside = client.document_page(cursor or "", limit=3, prefix="listed/")
                    seen += [entry.id for entry in inside.documents] if cursor is not None else []
                    cursor = inside.next_cursor if cursor is not None else None
        assert moves == 4
        assert Counter(seen) == Counter(expected)


def test_a_migrating_slot_is_listed_from_both_shards(shards: Shards) -> None:
    name = "halfway/1"
    shards.put(name, "One. Two.")
    shards.wait_tokenized(name)
    slot = keys.slot(tag(name))
    source = shards.node_of(keys.index_key(tag(name)))
    target = next(node for node in shards.nodes if node is not source)
    source_id, target_id = (shards.on(node, "CLUSTER", "MYID") for node in (source, target))
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as client:
        shards.on(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        shards.on(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        try:
            key = keys.index_key(tag(name))
            shards.on(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "REPLACE", "KEYS", key)
            assert [entry.id for entry in client.list_documents(prefix="halfway/")] == [name]
        finally:
            move(shards, slot, source, target)
        try:
            assert [entry.id for entry in client.list_documents(prefix="halfway/")] == [name]
        finally:
            move(shards, slot, target, source)
