"""Tensors on disk, in other keys, on replicas and in damaged payloads."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.module.persistence import restore_corrupted, rewrite_and_load_aof

TENSORS = {
    "real": ["FLOAT", 2, 2, "VALUES", "0.1", "2", "3", "4"],
    "strings": ["STRING", 2, "VALUES", "a", "bcd"],
    "bools": ["BOOL", 3, "VALUES", 1, 0, 1],
    "scalar": ["INT64", "VALUES", -7],
    "large": ["UINT8", 1000, 1000],
}


def fill(client: redis.Redis) -> dict[str, object]:
    for key, tensor in TENSORS.items():
        client.execute_command("AI.TENSORSET", key, *tensor)
    return read(client)


def read(client: redis.Redis) -> dict[str, object]:
    return {key: client.execute_command("AI.TENSORGET", key) for key in TENSORS}


def test_rdb_and_aof(ai: redis.Redis) -> None:
    before = fill(ai)
    digests = ai.execute_command("DEBUG", "DIGEST-VALUE", *TENSORS)
    ai.execute_command("DEBUG", "RELOAD")
    assert read(ai) == before
    rewrite_and_load_aof(ai)
    assert read(ai) == before
    assert ai.execute_command("DEBUG", "DIGEST-VALUE", *TENSORS) == digests


def test_copy_dump_and_memory(ai: redis.Redis) -> None:
    fill(ai)
    assert ai.copy("real", "copy")
    dump = ai.dump("real")
    assert isinstance(dump, bytes)
    ai.restore("restored", 0, dump)
    digests = ai.execute_command("DEBUG", "DIGEST-VALUE", "real", "copy", "restored", "strings")
    assert digests[0] == digests[1] == digests[2] != digests[3]
    ai.delete("real")
    assert ai.execute_command("AI.TENSORGET", "copy", "VALUES") == [b"0.10000000149011612", b"2", b"3", b"4"]
    assert 1_000_000 < int(str(ai.memory_usage("large"))) < 1_300_000
    assert int(str(ai.memory_usage("copy"))) < 200
    ai.unlink("large", "copy")
    ai.flushall(asynchronous=True)
    assert ai.ping()


def test_damaged_payloads(ai: redis.Redis) -> None:
    fill(ai)
    for key in ("real", "strings", "scalar"):
        assert restore_corrupted(ai, key, 400) > 50
    assert ai.ping()


def test_replication(ai: redis.Redis, ai_server: Server, server_binary: Path) -> None:
    before = fill(ai)
    primary = {"replicaof": f"127.0.0.1 {ai_server.port}"}
    with Server(server_binary, primary) as replica, replica.client(decode_responses=False, protocol=2) as client:
        eventually(lambda: client.exists("large"), ignore=redis.RedisError)
        assert read(client) == before
        ai.execute_command("AI.TENSORSET", "real", "FLOAT", "VALUES", 5)
        ai.execute_command("AI.TENSORSET", "last", "INT8", 1)
        eventually(lambda: client.exists("last"))
        assert client.execute_command("AI.TENSORGET", "real", "VALUES") == [b"5"]
