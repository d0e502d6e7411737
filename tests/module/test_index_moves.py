"""Indexes move with their slots: key by key, or all at once on servers with atomic slot migration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError

from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.module.indexes import TERMS, Parts, Twins, packed, some_sentences
from tests.module.test_index_watch import ONE

KEY, COLLECTION = "index:{t}", "index:news:{t}"
SLOT = key_slot(KEY.encode())


@pytest.fixture
def nodes(server_binary: Path) -> Iterator[tuple[Server, Server, Any, Any]]:
    """The server with the slot, another server, and their clients."""
    with Cluster(server_binary, size=2) as cluster:
        source, target = reversed(cluster.nodes) if SLOT >= 8192 else cluster.nodes
        options: dict[str, Any] = {"decode_responses": False, "protocol": 2}
        with source.client(**options) as old, target.client(**options) as new:
            yield source, target, old, new


def filled(client: redis.Redis) -> tuple[list[Twins], Parts]:
    """Two indexes, and a document in parts of the second index that is still open."""
    made = [Twins(client, KEY), Twins(client, COLLECTION)]
    made[0].fill(1, 250, 60)
    made[1].fill(2, 20)
    parts = Parts(made[1], "parts")
    parts.add(some_sentences(random.Random(6), 200))
    client.execute_command("QA.INDEX.LOAD", "part:{t}", 0, b"QAINDEX1")
    return made, parts


def check_moved(made: list[Twins], parts: Parts, digests: list[bytes], old: redis.Redis, new: redis.Redis) -> None:
    with pytest.raises(MovedError):
        old.execute_command("QA.INDEX.STATS", KEY, "TERMS", 1, TERMS[0])
    with pytest.raises(MovedError):
        parts.run("ADD", parts.name, parts.place, parts.sent, packed(ONE))
    for twins, digest in zip(made, digests, strict=True):
        twins.client = new
        assert twins.digest() == digest
        twins.check()
    parts.add(ONE)
    parts.commit()
    for twins in made:
        twins.check(["kakapo", *TERMS[:3]])
        twins.put(("after", {}, []))
        assert twins.listed() == twins.expected()
    new.execute_command("QA.INDEX.LOAD", "part:{t}", 8, b"n\0e")
    new.execute_command("QA.INDEX.LOAD", "part:{t}", 11, b"")


def test_key_by_key(nodes: tuple[Server, Server, Any, Any]) -> None:
    _, target, old, new = nodes
    made, parts = filled(old)
    digests = [twins.digest() for twins in made]
    names = [client.execute_command("CLUSTER MYID").decode() for client in (old, new)]
    new.execute_command("CLUSTER SETSLOT", SLOT, "IMPORTING", names[0])
    old.execute_command("CLUSTER SETSLOT", SLOT, "MIGRATING", names[1])
    with pytest.raises(AskError):
        old.execute_command("QA.INDEX.STATS", "index:none:{t}", "TERMS", 1, TERMS[0])
    old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 10000, "KEYS", KEY, COLLECTION, "part:{t}")
    with pytest.raises(AskError):
        parts.run("ADD", parts.name, parts.place, parts.sent, packed(ONE))
    for client in (new, old):
        client.execute_command("CLUSTER SETSLOT", SLOT, "NODE", names[1])
    check_moved(made, parts, digests, old, new)


@pytest.fixture
def replica(nodes: tuple[Server, Server, Any, Any]) -> Iterator[Any]:
    """A client of a replica of the target."""
    _, target, _, new = nodes
    name = new.execute_command("CLUSTER MYID")
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000}
    with Server(target.binary, settings) as server, server.client(decode_responses=False, protocol=2) as client:
        meet(server, target)
        eventually(lambda: client.execute_command("CLUSTER REPLICATE", name), ignore=redis.RedisError)
        eventually(lambda: client.info("replication").get("master_link_status") == "up")
        client.readonly()
        yield client


def test_all_at_once(nodes: tuple[Server, Server, Any, Any], replica: redis.Redis) -> None:
    """A replica of the target gets the parts as commands."""
    source, _, old, new = nodes
    if source.info().get("server_name") != "valkey":
        pytest.skip("CLUSTER MIGRATESLOTS is Valkey's")
    made, parts = filled(old)
    digests = [twins.digest() for twins in made]
    name = new.execute_command("CLUSTER MYID").decode()
    old.execute_command("CLUSTER MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", name)

    def moved() -> bool:
        assert b"failed" not in str(old.execute_command("CLUSTER GETSLOTMIGRATIONS")).encode()
        return bool(new.execute_command("CLUSTER COUNTKEYSINSLOT", SLOT) == 3)

    eventually(moved)
    eventually(lambda: serves(new), ignore=redis.RedisError)
    eventually(lambda: has_left(old))  # the target informs the source
    check_moved(made, parts, digests, old, new)
    for twins in made:
        eventually(lambda twins=twins: twins.digest(replica) == twins.digest())
        twins.check(client=replica)
    new.execute_command("DEBUG", "RELOAD")
    made[0].check()


def serves(client: redis.Redis) -> bool:
    return bool(client.execute_command("QA.INDEX.INFO", KEY))


def has_left(client: redis.Redis) -> bool:
    try:
        serves(client)
    except MovedError:
        return True
    return False
