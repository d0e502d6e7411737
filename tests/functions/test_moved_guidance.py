"""Pins, synonyms and feedback move with their slot, and a backup contains them."""

from __future__ import annotations

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.types import Feedback, Pin, Synonyms

from .running_shards import PARTITIONS, Shards
from .test_moved_partition import moved

PIN = Pin("Who knows it", "Nobody.")
SYNONYMS = Synonyms(("car, automobile",))


def test_pins_synonyms_and_feedback_move_with_their_slot(shards: Shards) -> None:
    mine = {"collection": "moving"}
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as client:
        client.create_collection("moving")
        client.put_pin(PIN, **mine)
        client.set_synonyms(SYNONYMS, **mine)
        client.send_feedback(Feedback("Who?", "right"), **mine)
        tag = keys.partition_of("moving", PARTITIONS)
        source = shards.node_of(keys.pins_key(tag, "moving"))
        target = next(node for node in shards.nodes if node is not source)
        with moved(shards, keys.slot(tag), source, target):
            assert (client.pins("moving"), client.synonyms("moving")) == ((PIN,), SYNONYMS)
            client.put_pin(Pin("Who else", "Ada."), **mine)
            client.send_feedback(Feedback("Who else?", "wrong"), **mine)
        assert [pin.answer for pin in client.pins("moving")] == ["Ada.", "Nobody."]
        assert [entry.feedback.question for entry in client.feedback("moving")] == ["Who?", "Who else?"]
        assert client.synonyms("moving") == SYNONYMS
        client.delete_collection("moving")
