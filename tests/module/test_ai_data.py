"""Tensors, models and scripts on disk, in other keys, on replicas and in damaged payloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
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
STORED: dict[str, tuple[str, list[Any]]] = {key: ("AI.TENSORSET", words) for key, words in TENSORS.items()} | {
    "model": ("AI.MODELSTORE", ["ONNX", "CPU:1", "TAG", "v1", "BATCHSIZE", 4, "BLOB", "ident", "ity"]),
    "script": ("AI.SCRIPTSTORE", ["CPU:1", "TAG", "v1", "ENTRY_POINTS", 2, "echo", "fail", "SOURCE", "the source"]),
    "old script": ("AI.SCRIPTSET", ["CPU", "SOURCE", "old source"]),
}


def store(client: redis.Redis, *keys: str) -> None:
    for key in keys or STORED:
        command, words = STORED[key]
        assert client.execute_command(command, key, *words) == b"OK"


def read(client: redis.Redis) -> dict[str, object]:
    """Every key with its value as clients see it, and the scans of models and scripts."""
    found: dict[str, object] = {}
    for key, (command, _) in STORED.items():
        kind = command.removeprefix("AI.").removesuffix("STORE").removesuffix("SET")
        found[key] = client.execute_command(f"AI.{kind}GET", key)
    scans = ("AI._MODELSCAN", "AI._SCRIPTSCAN")
    return found | {scan: sorted(client.execute_command(scan)) for scan in scans}


def test_rdb_and_aof_need_no_worker(shared_ai: redis.Redis) -> None:
    store(shared_ai)
    before, digests = read(shared_ai), shared_ai.execute_command("DEBUG", "DIGEST-VALUE", *STORED)
    assert len(set(digests)) == len(STORED)
    for load in (
        lambda: shared_ai.execute_command("DEBUG", "LOADAOF"),
        lambda: rewrite_and_load_aof(shared_ai),
        lambda: shared_ai.execute_command("DEBUG", "RELOAD"),
    ):
        load()
        assert read(shared_ai) == before
        assert shared_ai.execute_command("DEBUG", "DIGEST-VALUE", *STORED) == digests


def test_copy_dump_and_memory(shared_ai: redis.Redis) -> None:
    store(shared_ai)
    for key in ("real", "model", "script"):
        assert shared_ai.copy(key, "copy", replace=True)
        dump = shared_ai.dump(key)
        assert isinstance(dump, bytes)
        shared_ai.restore("restored", 0, dump, replace=True)
        digests = shared_ai.execute_command("DEBUG", "DIGEST-VALUE", key, "copy", "restored", "strings")
        assert digests[0] == digests[1] == digests[2] != digests[3]
    shared_ai.copy("real", "copy", replace=True)
    shared_ai.delete("real")
    assert shared_ai.execute_command("AI.TENSORGET", "copy", "VALUES") == [b"0.10000000149011612", b"2", b"3", b"4"]
    bounds = (("large", 10**6, 13 * 10**5), ("copy", 0, 200), ("model", 200, 2000), ("script", 150, 2000))
    for key, least, most in bounds:
        assert least < int(str(shared_ai.memory_usage(key))) < most, key
    shared_ai.unlink("large", "copy")
    shared_ai.flushall(asynchronous=True)
    assert shared_ai.ping()


@pytest.mark.parametrize("key", ["real", "strings", "scalar", "model", "script"])
def test_damaged_payloads(shared_ai: redis.Redis, key: str) -> None:
    store(shared_ai, key)
    assert restore_corrupted(shared_ai, key, 400) > 50
    assert shared_ai.ping()


def test_a_replica_stores_without_a_worker(
    shared_ai: redis.Redis, shared_ai_server: Server, shared_binary: Path
) -> None:
    first, *later = STORED
    store(shared_ai, first)
    primary = {"replicaof": f"127.0.0.1 {shared_ai_server.port}"}
    with Server(shared_binary, primary) as replica, replica.client(decode_responses=False, protocol=2) as client:
        eventually(lambda: client.exists(first), ignore=redis.RedisError)
        store(shared_ai, *later)
        eventually(lambda: client.exists(later[-1]))
        assert read(client) == read(shared_ai)
        for key, (command, words) in STORED.items():
            with pytest.raises(redis.ReadOnlyError):
                client.execute_command(command, key, *words)
        shared_ai.execute_command("AI.TENSORSET", "real", "FLOAT", "VALUES", 5)
        shared_ai.execute_command("AI.SCRIPTDEL", "script")
        eventually(lambda: not client.exists("script"))
        assert client.execute_command("AI.TENSORGET", "real", "VALUES") == [b"5"]
