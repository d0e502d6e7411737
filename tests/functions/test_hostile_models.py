"""Hostile models on a cluster that answers questions. Each causes only an error, and all questions get answers."""

from __future__ import annotations

import itertools
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.gears.shard.memory import resident_bytes
from qa_cluster.reading.manifest import TOKENIZER_FILE, sha256_hex
from tests.functions.tiny_shards import FIRST, TinyShards, tiny_shards
from tests.gears.hostile_files import giant_at_load, giant_at_run, long_chain, overflowing
from tests.gears.onnx_file import add_model, loop_model
from tests.harness.figures import Figures
from tests.harness.polling import eventually
from tests.harness.processes import descendants
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

pytestmark = [pytest.mark.hostile, pytest.mark.one_server("the worker starts the processes")]

MEMORY_MB, LOAD_MS, RUN_MS = 512, 4000, 2000
SETTINGS = {
    "qa.model-memory-mb": MEMORY_MB,
    "qa.model-load-timeout-ms": LOAD_MS,
    "qa.model-timeout-ms": RUN_MS,
    "cluster-require-full-coverage": "no",
    "cluster-node-timeout": 15000,
}
QUESTION_SECONDS = 5.0
READY_SECONDS = 15.0
# the worker with its runtimes, and a model process with its runtimes and its memory limit
MOST_MB = 1500.0
REFUSED = "is refused, because it failed 2 times in a row"
_numbers = itertools.count()
# all in one slot
X, LEAST, MANY, M, LOOP, Y, N, GO = (f"{name}{{h}}" for name in ("x", "least", "many", "m", "loop", "y", "n", "go"))


@pytest.fixture(scope="module")
def cluster(shared_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    with tiny_shards(shared_binary, tmp_path_factory.mktemp("hostile"), size=1, **SETTINGS) as found:
        found.written("asked")
        yield found


@pytest.fixture
def shards(cluster: TinyShards) -> Iterator[TinyShards]:
    """The cluster with tensors and without models of other tests. The worker must survive the test."""
    node = cluster.nodes[0]
    for name, kind, value in ((X, "FLOAT", 1), (LEAST, "INT64", -(1 << 63)), (MANY, "INT64", 1 << 29)):
        cluster.on(node, "AI.TENSORSET", name, kind, 1, "VALUES", value)
    yield cluster
    cluster.on(node, "DEL", M, LOOP)
    cluster.on(node, "DEL", *cluster.keys_of(node, cluster.last.name))


@contextmanager
def asked(shards: TinyShards, attack: str, figures: Figures) -> Iterator[None]:
    """Ask questions within the block. Each must get its answer, and the memory of all processes has a limit."""
    over, slowest, most, failures = threading.Event(), [0.0], [0.0], []
    node = shards.nodes[0]

    def ask() -> None:
        while not over.is_set():
            begun = time.monotonic()
            try:
                assert shards.get("asked", f"Who discovered it {next(_numbers)}?")["answer"] == FIRST
            except Exception as error:
                failures.append(error)
            slowest[0] = max(slowest[0], time.monotonic() - begun)

    def weigh() -> None:
        while not over.wait(0.02):
            total = 0
            for pid in descendants(node.pid):
                with suppress(OSError, IndexError, ValueError):
                    total += resident_bytes(pid)
            most[0] = max(most[0], total / 1e6)

    threads = [threading.Thread(target=work) for work in (ask, ask, weigh)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures
    figures.record_wait(f"{attack}: slowest question", slowest[0], QUESTION_SECONDS)
    figures.record(f"{attack}: memory", most[0], "MB", MOST_MB)


def refused(shards: TinyShards, *words: object) -> str:
    """The error of a command."""
    with pytest.raises(redis.ResponseError) as caught:
        shards.on(shards.nodes[0], *words)
    return str(caught.value)


def store(shards: TinyShards, key: str, blob: bytes) -> Any:
    return shards.on(shards.nodes[0], "AI.MODELSTORE", key, "ONNX", "CPU", "BLOB", blob)


def dumped(binary: Path, *blobs: bytes) -> list[bytes]:
    """Dumps of models that no worker has loaded. A backup or an older release may contain such dumps."""
    dumps = []
    with Server(binary, worker=fake_worker("rogue")) as server, server.client(decode_responses=False) as client:
        server.wait_ready()
        answer = ["OK", "hex:" + b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n".hex()]
        client.set("answer:model.load", json.dumps(answer))
        for blob in blobs:
            client.execute_command("AI.MODELSTORE", M, "ONNX", "CPU", "BLOB", blob)
            dumps.append(client.dump(M))
    return dumps


@contextmanager
def same_worker(node: Server) -> Iterator[None]:
    before = node.field("worker_pid")
    yield
    assert node.field("worker_pid") == before


def test_a_file_that_takes_all_memory_costs_an_error(shards: TinyShards, figures: Figures) -> None:
    with same_worker(shards.nodes[0]), asked(shards, "file that takes 9 GB", figures):
        try:  # a runtime may compute the tensors when it loads or when it runs the model
            store(shards, M, giant_at_load())
        except redis.ResponseError as load:
            error = str(load)
        else:
            error = refused(
                shards, "AI.MODELEXECUTE", M, "INPUTS", 1, X, "OUTPUTS", 10, *(f"{Y}{number}" for number in range(10))
            )
        assert re.search(rf"model {re.escape(M)}: its (load|run) needs more than {MEMORY_MB} MB of memory", error), (
            error
        )
    with same_worker(shards.nodes[0]), asked(shards, "input that takes 2 GB", figures):
        store(shards, M, giant_at_run())
        run = ("AI.MODELEXECUTE", M, "INPUTS", 2, X, MANY, "OUTPUTS", 1, Y)
        for _ in range(2):
            error = refused(shards, *run)
            assert "qa.model-memory-mb" in error and "use smaller inputs, or raise the limit" in error
        assert REFUSED in refused(shards, *run)


def test_a_file_that_ends_its_process_is_refused_until_it_is_stored_again(shards: TinyShards, figures: Figures) -> None:
    node = shards.nodes[0]
    run = ("AI.MODELEXECUTE", M, "INPUTS", 1, LEAST, "OUTPUTS", 1, Y)
    with asked(shards, "file that ends its process", figures):
        with same_worker(node):
            assert f"model {M}: its load ended its process: signal 8" in refused(
                shards, "AI.MODELSTORE", M, "ONNX", "CPU", "BLOB", overflowing(at_load=True)
            )
            store(shards, M, overflowing(at_load=False))
            for _ in range(2):
                error = refused(shards, *run)
                assert f"model {M} {REFUSED}, the last time: its run ended its process: signal 8" in error
        assert shards.on(node, "EXISTS", Y) == 0
    assert node.field("models_refused") == 1
    assert node.field("model_refused_1") == f"{M}: its run ended its process: signal 8"
    restarted(shards, "restart with a refused model", figures)
    assert REFUSED in refused(shards, *run)
    assert node.field("model_failures") == 0, "the new worker has not tried the file"
    store(shards, M, add_model())
    assert node.field("models_refused") == 0
    assert shards.on(node, "AI.MODELEXECUTE", M, "INPUTS", 2, X, X, "OUTPUTS", 1, Y) == "OK"


def test_a_file_that_compiles_for_minutes_delays_no_question(
    shards: TinyShards, figures: Figures, shared_binary: Path
) -> None:
    node = shards.nodes[0]
    with same_worker(node), asked(shards, "100,000 nodes", figures):
        begun = time.monotonic()
        error = refused(shards, "AI.MODELSTORE", M, "ONNX", "CPU", "BLOB", long_chain())
        assert f"model {M}: its load takes longer than {LOAD_MS} ms, the limit (qa.model-load-timeout-ms)" in error
        figures.record_wait("100,000 nodes: refused after", time.monotonic() - begun, LOAD_MS / 1000 + 20)
    names = [f"old{number}{{h}}" for number in range(3)]
    try:
        for name, dump in zip(
            names, dumped(shared_binary, long_chain(), giant_at_load(), overflowing(at_load=True)), strict=True
        ):
            with node.client(decode_responses=False) as client:
                client.restore(name, 0, dump)
        restarted(shards, "restart with three hostile models", figures)
        run = ("AI.MODELEXECUTE", names[2], "INPUTS", 1, X, "OUTPUTS", 1, Y)
        ended = "its load ended its process: signal 8"
        assert f"model {names[2]}: {ended}" in refused(shards, *run)
        assert f"model {names[2]} {REFUSED}, the last time: {ended}" in refused(shards, *run)
    finally:
        shards.on(node, "DEL", *names)


def restarted(shards: TinyShards, attack: str, figures: Figures) -> None:
    """Kill the worker. The next worker must soon be ready and answer."""
    node = shards.nodes[0]
    before, begun = node.field("worker_number"), time.monotonic()
    node.signal_worker(signal.SIGKILL)
    eventually(lambda: node.field("worker_number") > before and node.field("worker_state") == "ready")
    figures.record_wait(f"{attack}: ready after", time.monotonic() - begun, READY_SECONDS)
    assert shards.get("asked", f"Who discovered it {next(_numbers)}?")["answer"] == FIRST


def test_a_hostile_file_with_a_manifest_is_tried_in_its_own_process(
    shards: TinyShards, figures: Figures, shared_binary: Path
) -> None:
    node = shards.nodes[0]
    blob = overflowing(at_load=True)
    manifest = replace(shards.last, model_sha256=sha256_hex(blob), model_bytes=len(blob))
    own = shards.tag_of(node)
    (dump,) = dumped(shared_binary, blob)
    with same_worker(node), asked(shards, "reader that ends its process", figures):
        shards.on(
            node, "SET", keys.tokenizer_key(own, manifest.name), (shards.folder / "last" / TOKENIZER_FILE).read_bytes()
        )
        with node.client(decode_responses=False) as client:
            client.restore(keys.model_key(own, manifest.name), 0, dump)
        shards.on(node, "SET", keys.manifest_key(own, manifest.name), manifest.to_json())
        shards.wait_models(lambda models: "its load" in models.get(manifest.name, {}).get("problem", ""))
    for _ in range(2):
        restarted(shards, "restart with a reader that ends its process", figures)
    eventually(lambda: REFUSED in shards.models(node)[manifest.name]["problem"])
    shards.on(node, "DEL", *shards.keys_of(node, manifest.name))
    shards.wait_models(lambda models: manifest.name not in models)


def stored_endless_run(shards: TinyShards) -> tuple[object, ...]:
    """Store a model and its inputs; return the command of a run that does not end."""
    store(shards, LOOP, loop_model())
    for name, kind, value in ((N, "INT64", 1 << 60), (GO, "BOOL", 1)):
        shards.on(shards.nodes[0], "AI.TENSORSET", name, kind, 1, "VALUES", value)
    return "AI.MODELEXECUTE", LOOP, "INPUTS", 3, N, GO, X, "OUTPUTS", 1, Y


def test_runs_that_never_end_cost_neither_the_worker_nor_questions(shards: TinyShards, figures: Figures) -> None:
    node = shards.nodes[0]
    run = stored_endless_run(shards)
    failures = node.field("model_failures")
    with same_worker(node), asked(shards, "runs that never end", figures):
        shards.on(node, "CONFIG", "SET", "qa.job-timeout-ms", 500)
        shards.on(node, "CONFIG", "SET", "qa.cancel-grace-ms", 200)
        try:
            for _ in range(3):
                assert "DEADLINE" in refused(shards, *run)
        finally:
            shards.on(node, "CONFIG", "SET", "qa.job-timeout-ms", 30_000)
            shards.on(node, "CONFIG", "SET", "qa.cancel-grace-ms", 2000)
        eventually(lambda: node.field("model_failures") > failures)
        store(shards, LOOP, loop_model())
        clients = [threading.Thread(target=_ignoring_errors, args=(node, run)) for _ in range(100)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


def test_a_question_does_not_wait_for_runs_of_a_slow_model(shards: TinyShards, figures: Figures) -> None:
    """Runs of a user fill `qa.worker-ahead`. A fixed fault: questions shared this limit."""
    node = shards.nodes[0]
    run = stored_endless_run(shards)
    ahead = shards.on(node, "CONFIG", "GET", "qa.worker-ahead")["qa.worker-ahead"]
    shards.on(node, "CONFIG", "SET", "qa.worker-ahead", 1)
    clients = [threading.Thread(target=_ignoring_errors, args=(node, run)) for _ in range(4)]
    try:
        for client in clients:
            client.start()
        eventually(lambda: node.field("worker_ahead") >= 1 and node.field("queued_clients") >= 1)
        begun = time.monotonic()
        assert shards.get("asked", f"Who discovered it {next(_numbers)}?")["answer"] == FIRST
        figures.record_wait("slow model: wait of a question", time.monotonic() - begun, 2)
    finally:
        for client in clients:
            client.join()
        shards.on(node, "CONFIG", "SET", "qa.worker-ahead", ahead)


def _ignoring_errors(node: Server, words: tuple[object, ...]) -> None:
    with suppress(redis.ResponseError), node.client(socket_timeout=120) as client:
        client.execute_command(*words)
