"""A shard with inference workers: requests, scripts, kills, hangs, replaced models, and the fields of `INFO`."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.gears.onnx_file import add_model, double_model, loop_model, token_model
from tests.harness.polling import eventually
from tests.harness.processes import descendants, inference_workers
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

PATIENT = "; ".join(
    [
        "from qa_cluster.gears import worker",
        "from qa_cluster.gears.process import service",
        "service.MAX_WAIT_SECONDS = 120.0",
        "worker.main()",
    ]
)
PATIENT_WORKER = f'"{sys.executable}" -c "{PATIENT}"'
"""The real worker, except that runs wait longer for new inference workers, which start slowly on a busy machine."""
PATIENCE_SECONDS = 240.0

SETTINGS = {
    "qa.model-processes": 0,  # models of clients run in the inference workers, too
    "qa.inference-workers": 2,
    "qa.worker-backoff-ms": 1,
    "qa.worker-threads": 2,
    "qa.model-timeout-ms": 600_000,
    "qa.job-timeout-ms": 240_000,
}


@pytest.fixture(scope="module")
def own_shared(shared_binary: Path) -> Iterator[Server]:
    with Server(shared_binary, SETTINGS, worker=PATIENT_WORKER) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def shard(own_shared: Server) -> Iterator[Server]:
    """The shared server with both inference workers running. Its worker must survive the test."""
    all_up(own_shared)
    worker = own_shared.field("worker_pid")
    yield own_shared
    for entry in execute(own_shared, "RG.DUMPREGISTRATIONS"):
        execute(own_shared, "RG.UNREGISTER", entry[1])
    execute(own_shared, "FLUSHALL")
    assert own_shared.field("worker_pid") == worker


def all_up(server: Server) -> None:
    eventually(lambda: server.fields("inference_workers", "inference_ready") == (2, 2))


def store(server: Server, key: str, blob: bytes) -> None:
    assert execute(server, "AI.MODELSTORE", key, "ONNX", "CPU", "BLOB", blob) == "OK"


def double(client: redis.Redis, key: str, value: int) -> int:
    """The result of the model at `key` for one number."""
    blob = struct.pack("<q", value)
    reply = client.execute_command(
        "AI.DAGEXECUTE", "ROUTING", key, "|>", "AI.TENSORSET", "x", "INT64", 1, 1, "BLOB", blob,
        "|>", "AI.MODELEXECUTE", key, "INPUTS", 1, "x", "OUTPUTS", 1, "y", "|>", "AI.TENSORGET", "y", "VALUES",
    )  # fmt: skip
    return int(reply[2][0])


def test_requests_run_in_inference_workers_and_info_counts_them(shard: Server) -> None:
    store(shard, "double", double_model())
    before = shard.field("inference_batches")
    with shard.client() as client:
        assert [double(client, "double", n) for n in range(10)] == [2 * n for n in range(10)]
    eventually(lambda: shard.field("inference_batches") == before + 10)
    restarts, retries, rss = shard.fields("inference_restarts", "inference_retries", "inference_rss_bytes")
    assert (restarts, retries) == (0, 0) and rss > 0
    assert len(inference_workers(shard.pid)) == 2


def test_a_request_is_answered_while_a_script_computes(shard: Server) -> None:
    store(shard, "double", double_model())
    # each call into C is short, and holds the interpreter lock until its end
    execute(
        shard,
        "RG.PYEXECUTE",
        "def burn(r):\n    while execute('GET', 'stop') is None:\n        execute('INCR', 'rounds')\n"
        "        for _ in range(20):\n            sum(range(300000))\n"
        "GB('ShardsIDReader').foreach(burn).run()",
        "UNBLOCKING",
    )
    with shard.client() as client:
        eventually(lambda: int(client.get("rounds") or 0) > 0)
        assert [double(client, "double", n) for n in range(5)] == [2 * n for n in range(5)]
        seen = int(client.get("rounds"))
        eventually(lambda: int(client.get("rounds")) > seen)  # the function continues
        client.set("stop", 1)
    eventually(lambda: shard.field("worker_functions_running") == 0)


@pytest.mark.one_server("the worker restarts inference workers; other tests here run on both servers")
def test_all_requests_are_answered_when_inference_workers_are_killed(shard: Server) -> None:
    store(shard, "double", double_model())
    before = shard.field("inference_restarts")
    over = threading.Event()

    def ask(number: int) -> int:
        done = 0
        with shard.client(socket_timeout=PATIENCE_SECONDS) as client:
            while not over.is_set():
                assert double(client, "double", number) == 2 * number
                done += 1
        return done

    with ThreadPoolExecutor(6) as threads:
        asking = [threads.submit(ask, number) for number in range(6)]
        try:
            for round_ in range(3):
                os.kill(inference_workers(shard.pid)[round_ % 2], signal.SIGKILL)
                eventually(lambda least=before + round_ + 1: shard.field("inference_restarts") >= least)  # type: ignore[misc]
                all_up(shard)
        finally:
            over.set()
        assert all(future.result(PATIENCE_SECONDS) for future in asking)
    assert shard.field("inference_restarts") == before + 3


@pytest.mark.one_server("the worker restarts inference workers; other tests here run on both servers")
def test_the_shard_continues_when_all_inference_workers_are_killed_repeatedly(shard: Server) -> None:
    store(shard, "double", double_model())
    with shard.client(socket_timeout=PATIENCE_SECONDS) as client:
        for number in range(2):
            before = shard.field("inference_restarts")
            for pid in inference_workers(shard.pid):
                os.kill(pid, signal.SIGKILL)
            assert double(client, "double", number) == 2 * number
            eventually(lambda least=before + 2: shard.field("inference_restarts") >= least)  # type: ignore[misc]
        all_up(shard)


@pytest.mark.one_server("the worker restarts inference workers; other tests here run on both servers")
def test_a_run_that_kills_two_inference_workers_fails_and_the_worker_survives(shard: Server) -> None:
    store(shard, "loop", loop_model())
    for name, kind, value in (("n", "INT64", np.array([1 << 60])), ("x", "FLOAT", np.ones(1, "<f4"))):
        execute(shard, "AI.TENSORSET", name, kind, 1, "BLOB", value.tobytes())
    execute(shard, "AI.TENSORSET", "go", "BOOL", 1, "VALUES", 1)
    run = ("AI.MODELEXECUTE", "loop", "INPUTS", 3, "n", "go", "x", "OUTPUTS", 1, "y")
    with shard.client(socket_timeout=PATIENCE_SECONDS) as client, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.execute_command, *run)
        while not asked.done():
            all_up(shard)
            with suppress(TimeoutError):
                asked.exception(0.5)  # enough time for an inference worker to take the run
                break
            for pid in inference_workers(shard.pid):
                os.kill(pid, signal.SIGKILL)
    assert "WORKERLOST 2 inference workers died during this run" in str(asked.exception())


@pytest.mark.one_server("the worker restarts inference workers; other tests here run on both servers")
def test_an_inference_worker_that_hangs_is_replaced(server_binary: Path) -> None:
    settings = {**SETTINGS, "qa.worker-silence-ms": 5000}  # the worker itself has the same limit
    with (
        Server(server_binary, settings, worker=PATIENT_WORKER) as server,
        server.client(socket_timeout=PATIENCE_SECONDS) as client,
    ):
        all_up(server)
        store(server, "double", double_model())
        worker = server.field("worker_pid")
        for pid in inference_workers(server.pid):
            os.kill(pid, signal.SIGSTOP)
        assert [double(client, "double", n) for n in range(4)] == [0, 2, 4, 6]
        eventually(lambda: server.field("inference_restarts") >= 2)
        assert server.field("worker_pid") == worker


def alive() -> set[int]:
    return set(descendants(1))


def test_models_survive_the_worker_and_the_server_and_no_process_outlives_them(server_binary: Path) -> None:
    with Server(server_binary, {**SETTINGS, "save": "3600 1"}, worker=PATIENT_WORKER) as server:
        all_up(server)
        store(server, "m", add_model())
        store(server, "m", double_model())
        with server.client(socket_timeout=PATIENCE_SECONDS) as client:
            assert double(client, "m", 4) == 8
            client.delete("m")
            with pytest.raises(redis.ResponseError):
                double(client, "m", 4)
            store(server, "m", double_model())
            store(server, "reader", token_model())
            for pid in inference_workers(server.pid):
                os.kill(pid, signal.SIGKILL)
            assert double(client, "m", 5) == 10
            all_up(server)
            first = inference_workers(server.pid)
            worker = server.signal_worker(signal.SIGKILL)
            eventually(lambda: not {worker, *first} & alive())
            assert double(client, "m", 6) == 12
        all_up(server)
        second = inference_workers(server.pid)
        os.kill(second[0], signal.SIGSTOP)
        server.stop()
        eventually(lambda: not {*second} & alive())
        server.start()
        with server.client(socket_timeout=PATIENCE_SECONDS) as client:
            assert double(client, "m", 7) == 14
            all_up(server)
            assert client.config_get("qa.inference-workers") == {"qa.inference-workers": "2"}
        third = inference_workers(server.pid)
        server.stop(signal.SIGKILL)
        eventually(lambda: not {*third} & alive())


def test_a_change_takes_effect_with_the_next_worker(server_binary: Path) -> None:
    with Server(server_binary, {"qa.model-processes": 0}, worker=WORKER) as server, server.client() as client:
        server.wait_ready()
        assert inference_workers(server.pid) == []
        client.config_set("qa.inference-workers", 1)
        with pytest.raises(redis.ResponseError):
            client.config_set("qa.inference-workers", 65)
        assert server.field("inference_workers") == 0
        server.signal_worker(signal.SIGKILL)
        eventually(lambda: server.fields("inference_workers", "inference_ready") == (1, 1))
        assert len(inference_workers(server.pid)) == 1
        store(server, "double", double_model())
        assert double(client, "double", 3) == 6
