"""The limits of a worker: memory, threads and descriptors."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import redis

from qa_cluster.gears.process.service import model_threads
from qa_cluster.topology import Address, Shard, Topology
from tests.harness.servers import Server
from tests.harness.workers import WORKER

pytestmark = pytest.mark.one_server("the limits apply to the worker")


def test_memory_limit_fails_the_script_and_not_the_worker(server_binary: Path) -> None:
    with Server(server_binary, {"qa.worker-memory-mb": 700}, worker=WORKER) as shard:
        shard.wait_ready()
        with shard.client() as client:
            with pytest.raises(redis.ResponseError, match="MemoryError"):
                client.execute_command("RG.PYEXECUTE", "x = bytearray(800 << 20)")
            assert client.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]
        assert shard.field("worker_number") == 1


def open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor has just been closed
            found.add(os.readlink(descriptor))
    return found


def test_worker_keeps_no_descriptor_of_the_server(server_binary: Path) -> None:
    with Server(server_binary, worker=WORKER) as shard:
        shard.wait_ready()
        server_sockets = {name for name in open_files(shard.pid) if name.startswith("socket:")}
        assert not server_sockets & open_files(shard.field("worker_pid"))


def test_the_threads_of_a_host_are_divided_among_its_shards() -> None:
    def shard(number: int, host: str) -> tuple[int, int, Shard]:
        return number, number, Shard(str(number), Address(host, 7000 + number))

    here = Topology([shard(0, "127.0.0.1"), shard(1, "127.0.0.1"), shard(2, "10.0.0.9")])
    assert model_threads(3, here, "0", 8) == 3
    assert model_threads(0, None, "0", 8) == 8
    assert model_threads(0, here, "0", 8) == 4
    assert model_threads(0, here, "2", 8) == 2
    assert model_threads(0, here, "0", 1) == 1
