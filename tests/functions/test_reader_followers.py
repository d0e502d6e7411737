"""Servers that copy the readers of other servers: a replica, and a shard without slots."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from qa_cluster import keys
from qa_cluster.hashtags import hashtag_for_slot
from tests.functions.running_shards import SECONDS, sentence_name
from tests.functions.tiny_shards import FIRST, LAST, READER_KEYS, tiny_shards
from tests.harness.clusters import meet
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import WORKER


def test_a_replica_has_all_readers_compiled_before_it_is_promoted(server_binary: Path, tmp_path: Path) -> None:
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000, "repl-diskless-sync-delay": 0}
    with (
        tiny_shards(server_binary, tmp_path, 1) as shards,
        Server(server_binary, settings, worker=WORKER) as replica,
    ):
        (primary,) = shards.nodes
        shards.written("replica")
        meet(replica, primary)
        primary_id = shards.on(primary, "CLUSTER", "MYID")
        eventually(lambda: shards.on(replica, "CLUSTER", "REPLICATE", primary_id) == "OK", SECONDS, ignore=Exception)
        shards.load("last", make_default=False)
        eventually(lambda: shards.compilations(replica) >= 2, SECONDS)
        eventually(lambda: replica.info("replication")["master_link_status"] == "up", SECONDS)
        assert shards.flip(primary, shards.last.name, shards.first.name) == "done"
        # a takeover loses writes that have not reached the replica
        offset = primary.info("replication")["master_repl_offset"]
        eventually(lambda: replica.info("replication")["slave_repl_offset"] >= offset, SECONDS)
        eventually(lambda: shards.on(replica, "CLUSTER", "FAILOVER", "TAKEOVER") == "OK", SECONDS, ignore=Exception)
        eventually(lambda: replica.info("replication")["role"] == "master", SECONDS)
        eventually(lambda: shards.models(replica)[shards.last.name]["default"], SECONDS, ignore=Exception)
        before = shards.compilations(replica)
        for model, answer in (("", LAST), ("last", LAST), ("first", FIRST)):
            (reply,) = shards.on(replica, "RG.TRIGGER", "qa.read", model, "Who?", sentence_name("replica", 0))
            assert json.loads(reply)["answer"] == answer
        assert shards.compilations(replica) == before


@pytest.mark.one_server("functions make the copies; test_answers and test_ingest run on both servers")
def test_a_shard_without_slots_copies_each_reader_once(server_binary: Path, tmp_path: Path) -> None:
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000}
    with tiny_shards(server_binary, tmp_path, 1) as shards, Server(server_binary, settings, worker=WORKER) as young:
        (old,) = shards.nodes
        young.wait_ready()
        meet(young, old)
        identity = shards.on(young, "CLUSTER", "MYID")
        eventually(lambda: "cluster_slots_assigned:16384" in shards.on(young, "CLUSTER", "INFO"), SECONDS)
        for node in (old, young):
            shards.on(node, "RG.REFRESHCLUSTER")
        assert shards.register("UPGRADE") == "OK"

        def answers_by(name: str) -> bool:
            found = shards.models(young)
            return found.keys() <= {shards.first.name, shards.last.name} and bool(found[name]["default"])

        def taken() -> int:
            return young.log.read_text(errors="replace").count(" into memory")

        eventually(lambda: answers_by(shards.first.name), SECONDS, ignore=Exception)
        shards.load("last", keep_old=True)
        eventually(lambda: answers_by(shards.last.name), SECONDS, ignore=Exception)
        shards.unload("last")
        eventually(lambda: [e["default"] for e in shards.models(young).values()] == [False], SECONDS, ignore=Exception)
        time.sleep(1.5)  # while no shard has a default reader, this shard must not fetch readers repeatedly
        assert taken() == 2
        shards.load("last", keep_old=True)
        eventually(lambda: answers_by(shards.last.name), SECONDS, ignore=Exception)
        # IMPORTING gives `young` a new epoch, otherwise the next message of `old` may claim the slot again
        shards.on(young, "CLUSTER", "SETSLOT", 5000, "IMPORTING", shards.on(old, "CLUSTER", "MYID"))
        for node in (young, old):
            shards.on(node, "CLUSTER", "SETSLOT", 5000, "NODE", identity)
        tag = hashtag_for_slot(5000)
        eventually(
            lambda: (
                shards.on(
                    young,
                    "EXISTS",
                    *(key(tag, shards.first.name) for key in READER_KEYS),
                )
                == 3
            ),
            SECONDS,
        )
        assert shards.on(young, "GET", keys.manifest_key(tag)) == shards.last.to_json()
        assert answers_by(shards.last.name)
        assert taken() == 3
