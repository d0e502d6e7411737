"""A command finds the reason why a running server refuses writes, without a write. The servers are real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from qa_cluster.cluster.nodes.connect import seed_client
from qa_cluster.cluster.provision.writability import write_refusal
from qa_cluster.cluster.servers.processes import stop_all
from qa_cluster.cluster.servers.server_process import ServerSpec, find_program, start
from qa_cluster.config import Settings
from qa_cluster.errors import CannotWrite, from_reply
from tests.harness.ports import free_port


@pytest.fixture
def client(tmp_path: Path, server: str) -> Iterator[redis.Redis]:
    """A server whose append-only file is on a full disk."""
    spec = ServerSpec(tmp_path / "full", find_program(server), free_port(), cluster=False)
    files = spec.directory / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (files / "appendonly.aof.1.incr.aof").symlink_to("/dev/full")
    process = start(spec, 120)
    try:
        with seed_client(Settings(), f"redis://127.0.0.1:{spec.port}") as found:
            yield found
    finally:
        stop_all([process], 10)


def test_a_full_disk_is_named_and_the_server_still_answers(client: redis.Redis) -> None:
    assert not write_refusal(client)
    client.set("a", "b")  # this write fails on the full disk, so the server refuses the next write
    refused = write_refusal(client)
    assert refused == (
        "cannot write: disk is full (MISCONF): free space on the disk of its `dir`; writes then resume automatically"
    )
    with pytest.raises(redis.exceptions.ResponseError, match="MISCONF") as raised:
        client.set("a", "c")
    found = from_reply(str(raised.value))
    assert isinstance(found, CannotWrite)
    assert "disk is full (MISCONF): free space" in str(found)
    with seed_client(Settings(), f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}") as seed:
        assert seed.get("a") == b"b"


def test_full_memory_and_missing_replicas_are_named_with_their_settings(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    for policy in ("noeviction", "volatile-lru"):  # qa-cluster's servers have volatile-lru, and no key expires here
        client.config_set("maxmemory-policy", policy)
        assert write_refusal(client).startswith("cannot write: memory is full (OOM: ")
        assert "raise its maxmemory, or add shards" in write_refusal(client)
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert not write_refusal(client)
    client.config_set("min-replicas-to-write", 2)
    refused = write_refusal(client)
    assert refused.startswith("cannot write: too few replicas (NOREPLICAS: 0 replicas are in sync")
    assert "lower min-replicas-to-write" in refused
