"""Inference workers without a shard: real processes load models, die, hang, are restarted and drop models."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InferenceFailed, ModelError, WorkerLost
from qa_cluster.gears.inference.backends.base import CompiledModel, RuntimeLimits
from qa_cluster.gears.inference.tensors import Array
from qa_cluster.gears.inference.workers import process
from qa_cluster.gears.inference.workers.frames import LAST_REQUEST
from qa_cluster.gears.inference.workers.pool import InferenceWorkers, WorkerOptions
from tests.gears.files import load_bytes
from tests.gears.onnx_file import add_model, double_model, loop_model, token_model
from tests.harness.polling import SECONDS, eventually
from tests.harness.processes import inference_workers

LIMITS = RuntimeLimits()
FOR_EVER = [np.array(1 << 60), np.array(True), np.ones(1, "<f4")]
"""Inputs of `loop_model` whose run does not end."""


_EARLIER: set[int] = set()
"""The processes of models that tests of other files have left. They end at any time."""


@pytest.fixture(scope="module", autouse=True)
def earlier_processes() -> None:
    _EARLIER.update(inference_workers(os.getpid()))


def children() -> list[int]:
    """The inference workers of this process that tests of this file have started."""
    return [pid for pid in inference_workers(os.getpid()) if pid not in _EARLIER]


@contextmanager
def workers(count: int = 2, **options: Any) -> Iterator[InferenceWorkers]:
    made = InferenceWorkers(WorkerOptions(count, **{"backoff_seconds": 0.01, "run_threads": 4, **options}))
    made.begin()
    try:
        eventually(lambda: made.counts.ready == count)
        yield made
    finally:
        made.stop()
        assert children() == []


def load(pool: InferenceWorkers, blob: bytes, limits: RuntimeLimits = LIMITS) -> CompiledModel:
    return pool.load("ONNX", "CPU", [blob], limits)


def begun(pool: InferenceWorkers, model: CompiledModel, arrays: list[Array]) -> Future[list[Array]]:
    """Start a run in a separate thread, and wait until a worker has started it."""
    before = taken(pool)
    future: Future[list[Array]] = Future()

    def run() -> None:
        try:
            future.set_result(model.run(arrays))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    eventually(lambda: len(taken(pool)) > len(before))
    return future


def sent_to(pool: InferenceWorkers) -> list[int]:
    """The process ids of the workers that have not answered all requests."""
    return [life.pid for life in pool._processes if life is not None and life._waiting]


def taken(pool: InferenceWorkers) -> list[int]:
    """For each request that a worker has started and not answered, the process id of that worker."""
    found = []
    for life in pool._processes:
        with suppress(ValueError):  # the process has just died, so its shared memory is closed
            if life is not None and life._waiting:
                (last,) = LAST_REQUEST.unpack(life._last_request)
                found += [life.pid for number in list(life._waiting) if number <= last]
    return found


def test_models_have_the_same_ports_results_and_errors_as_in_the_worker_itself() -> None:
    """A refused model and a refused shape cost no process."""
    ids, mask = np.array([[5, 6, 7]]), np.array([[1, 1, 0]])
    ones = np.ones(3, "<f4")
    with workers() as pool:
        pids = children()
        for blob, arrays in ((token_model(), [ids, mask]), (add_model(), [ones, ones]), (double_model(), [ids])):
            here, there = load_bytes("ONNX", "CPU", blob, LIMITS), load(pool, blob)
            assert (there.inputs, there.outputs) == (here.inputs, here.outputs)
            for _ in range(4):
                (expected,), (got,) = here.run(arrays), there.run(arrays)
                assert (got.dtype, got.tolist()) == (expected.dtype, expected.tolist())
            got[...] = 0  # the caller may write to the result
        errors = []
        for model in (load_bytes("ONNX", "CPU", loop_model(), LIMITS), load(pool, loop_model())):
            with pytest.raises(InferenceFailed) as caught:
                model.run([np.ones(2, "<f4")] * 3)
            errors.append(str(caught.value))
        assert errors[0] == errors[1] and "Unexpected input data type" in errors[0]
        assert pool.counts.batches == 3 * 4 and pool.counts.retries == 0
        for backend, blob, said in (
            ("ONNX", b"x", "not a model that ONNX"),
            ("TF", add_model(), "unsupported backend TF"),
        ):
            with pytest.raises(ModelError, match=said):
                pool.load(backend, "CPU", [blob], LIMITS)
        with pytest.raises((InferenceFailed, TypeError)):
            model.warm(1, 16)  # type: ignore[attr-defined]
        assert not any(found.shapes for found in pool._models.values()), "a refused shape is not warmed again"
        assert load(pool, double_model()).run([np.array([[2]])])[0].tolist() == [[4]]
        assert children() == pids


def test_batches_run_in_parallel_in_the_least_busy_processes() -> None:
    with workers() as pool:
        model = load(pool, loop_model())
        first, second = begun(pool, model, FOR_EVER), begun(pool, model, FOR_EVER)
        assert sorted(taken(pool)) == children()
        third, fourth = begun(pool, model, FOR_EVER), begun(pool, model, FOR_EVER)
        assert sorted(taken(pool)) == sorted(2 * children())
        assert not any(run.done() for run in (first, second, third, fourth))


def test_a_run_whose_worker_is_killed_is_retried_in_another_worker() -> None:
    with workers() as pool:
        model = load(pool, loop_model(), RuntimeLimits(run_timeout_ms=4000))
        held = begun(pool, model, FOR_EVER)
        os.kill(taken(pool)[0], signal.SIGKILL)
        # the other worker ends the run by its time limit
        with pytest.raises(InferenceFailed, match="terminate flag"):
            held.result(60)
        eventually(lambda: (pool.counts.ready, pool.counts.restarts, pool.counts.retries) == (2, 1, 1))
        eventually(lambda: all(life is not None and life.loaded for life in pool._processes))
        assert model.run([np.array(1), np.array(True), np.ones(1, "<f4")])[0].tolist() == [1]


def test_deaths_before_a_run_started_do_not_count() -> None:
    with workers(wait_seconds=SECONDS) as pool, ThreadPoolExecutor(1) as threads:
        model = load(pool, double_model())
        pids = children()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        asked = threads.submit(model.run, [np.array([[3]])])
        for _ in pids:
            sent = eventually(lambda: next(iter(sent_to(pool)), 0))
            os.kill(sent, signal.SIGKILL)
            eventually(lambda gone=sent: gone not in sent_to(pool))  # type: ignore[misc]
        assert asked.result(60)[0].tolist() == [[6]]


def test_runs_wait_for_a_process_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with workers(1, wait_seconds=60.0) as pool:
        model = load(pool, double_model())
        os.kill(children()[0], signal.SIGKILL)
        assert model.run([np.array([[3]])])[0].tolist() == [[6]]
    with workers(1, wait_seconds=0.5) as pool:
        model = load(pool, double_model())
        monkeypatch.setattr(process, "PROGRAM", "no.such.module")
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(WorkerLost, match="no inference worker of 1 is running"):
            model.run([np.array([[3]])])


def test_a_new_worker_has_all_models_and_shapes_of_its_predecessor() -> None:
    with workers(1, wait_seconds=60.0) as pool:
        model = load(pool, token_model())
        for shape in ((1, 16), (4, 48), (1, 1024)):
            model.warm(*shape)  # type: ignore[attr-defined]
        others = [load(pool, double_model()) for _ in range(3)]
        os.kill(children()[0], signal.SIGKILL)
        for other in others:
            assert other.run([np.array([[3]])])[0].tolist() == [[6]]
        (life,) = pool._processes
        assert life is not None and {(rows, length) for _, rows, length in life.warmed} >= {(1, 16), (4, 48)}
        # the idle worker also warms the large shape
        eventually(lambda: (1, 1024) in {(rows, length) for _, rows, length in life.warmed})


def test_a_model_is_in_all_processes_and_memory_until_nothing_refers_to_it() -> None:
    with workers() as pool:
        blobs = [double_model(), token_model()]
        stays, goes = (load(pool, blob) for blob in blobs)
        assert [len(life.loaded) for life in pool._processes if life is not None] == [2, 2]
        assert (pool.counts.missing, pool.counts.file_bytes) == (0, len(blobs[0]) + len(blobs[1]))
        del goes
        gc.collect()
        eventually(lambda: [len(life.loaded) for life in pool._processes if life is not None] == [1, 1])
        assert (len(pool._models), pool.counts.file_bytes) == (1, len(blobs[0]))
        assert stays.run([np.array([[3]])])[0].tolist() == [[6]]


def test_a_worker_without_memory_for_a_model_refuses_it() -> None:
    with workers(1, memory_mb=400, spare_mb=400) as pool:
        (pid,) = children()
        blob = double_model() + bytes(200_000_000)
        with pytest.raises(ModelError, match=r"200000\d+ bytes does not fit into the worker.*limit of 400 MB"):
            load(pool, blob)
        assert load(pool, double_model()).run([np.array([[3]])])[0].tolist() == [[6]]
        assert children() == [pid]
