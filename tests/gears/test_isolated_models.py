"""The processes of models that are not readers: their number, their limits, and their failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple, replace

import numpy as np
import pytest

from qa_cluster.errors import InferenceFailed, ModelError, QueueFull
from qa_cluster.gears.inference.backends.base import RuntimeLimits
from qa_cluster.gears.inference.model_file import memory_file
from qa_cluster.gears.inference.trials import ModuleTrials, Trial
from qa_cluster.gears.inference.workers.isolated import (
    IsolatedModel,
    IsolatedProcesses,
    IsolationLimits,
    Refused,
)
from tests.gears.hostile_files import giant_at_run, overflowing
from tests.gears.onnx_file import double_model, loop_model
from tests.harness.polling import eventually

LIMITS = IsolationLimits(2, memory_mb=300, spare_mb=100, load_ms=60_000, run_ms=60_000, start_seconds=60.0)
LEAST = np.array([-(1 << 63)])


class Trials(ModuleTrials):
    """The record of failed runs, in memory instead of the module."""

    def __init__(self) -> None:
        self.known: dict[int, Trial] = {}

    def _asked(self, ref: int, *words: str) -> Trial:
        trial = self.known.get(ref, Trial(f"m{ref}"))
        if words[:1] == ("FAILED",):
            trial = replace(trial, failures=trial.failures + 1, reason=words[1])
        elif words == ("PASSED",):
            trial = replace(trial, passed=True)
        elif words == ("SUCCEEDED",):
            trial = replace(trial, failures=0)
        self.known[ref] = trial
        return trial


@pytest.fixture
def trials() -> Trials:
    return Trials()


@pytest.fixture
def processes(trials: Trials) -> Iterator[IsolatedProcesses]:
    found = IsolatedProcesses(LIMITS, trials)
    yield found
    found.stop()


def made(processes: IsolatedProcesses, ref: int, blob: bytes, run_ms: int = 60_000) -> IsolatedModel:
    limits = RuntimeLimits(run_timeout_ms=run_ms)
    load = {"backend": "ONNX", "device": "CPU", "limits": astuple(limits)}
    return IsolatedModel(processes, ref, load, lambda: memory_file([blob]))


def doubled(model: IsolatedModel, value: int) -> int:
    return int(model.run([np.array([[value]])])[0][0, 0])


def test_the_least_recently_used_process_is_replaced(processes: IsolatedProcesses, trials: Trials) -> None:
    models = [made(processes, ref, double_model()) for ref in range(3)]
    for model in models:
        model.open()
    assert [model.process is not None for model in models] == [False, True, True]
    for used, running in ((0, [True, False, True]), (2, [True, False, True]), (1, [False, True, True])):
        assert doubled(models[used], 3) == 6
        assert [model.process is not None for model in models] == running
        assert len(processes.pids) <= 2
    models[2].close()
    eventually(lambda: len(processes.pids) == 1)
    os.kill(processes.pids[0], signal.SIGKILL)
    assert doubled(models[1], 3) == 6, "a process that was killed while idle starts again"
    assert processes.failures == trials.of(1).failures == 0


def test_busy_processes_are_not_ended_for_another(processes: IsolatedProcesses) -> None:
    processes.limits = replace(LIMITS, load_ms=300)
    busy = [made(processes, ref, double_model()) for ref in (1, 2)]
    for model in busy:
        processes.acquire(model)
    with pytest.raises(QueueFull, match=r"all 2 processes of models and scripts are busy: .* qa\.model-processes"):
        made(processes, 3, double_model()).open()
    processes.release(busy[0])
    made(processes, 3, double_model())._processes.acquire(busy[1])


def test_a_run_that_ends_its_process_is_repeated_once_then_refused(
    processes: IsolatedProcesses, trials: Trials
) -> None:
    model = made(processes, 1, overflowing(at_load=False))
    with pytest.raises(
        Refused, match="model m1 is refused, because it failed 2 times in a row, the last time: its run"
    ):
        model.run([LEAST])
    with pytest.raises(Refused):
        model.open()
    trials.succeeded(1)  # a client stores the model again
    assert model.run([np.array([6])])[0].tolist() == [-6]


def test_requests_that_fail_with_one_process_count_once(processes: IsolatedProcesses, trials: Trials) -> None:
    processes.limits = replace(LIMITS, run_threads=4)
    model = made(processes, 1, loop_model(), run_ms=0)
    inputs = [np.array(1 << 60), np.array(True), np.ones(1, "<f4")]
    model.open()
    errors: list[Exception] = []

    def run() -> None:
        try:
            model.run(inputs)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: model.busy == 3)
    time.sleep(1)  # all runs have begun
    pid = processes.pids[0]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: trials.of(1).failures == 1)
    eventually(lambda: [p for p in processes.pids if p != pid])
    assert trials.of(1).failures == 1
    processes.stop()
    eventually(lambda: not [thread for thread in threads if thread.is_alive()])


def test_limits_of_a_run(processes: IsolatedProcesses, trials: Trials) -> None:
    giant = made(processes, 1, giant_at_run())
    with pytest.raises(InferenceFailed, match=r"model m1: its run needs more than 300 MB of memory, the limit"):
        giant.run([np.ones(1, "<f4"), np.array([1 << 28])])
    assert giant.run([np.ones(1, "<f4"), np.array([3])])[0].tolist() == [1.0, 1.0, 1.0]
    assert trials.of(1).failures == 0, "a run that succeeds resets the failures"
    processes.limits = replace(LIMITS, run_ms=500)
    endless = made(processes, 2, loop_model(), run_ms=0)  # without the time limit of the runtime itself
    with pytest.raises(
        InferenceFailed, match=r"model m2: its run takes longer than 500 ms, the limit \(qa\.model-timeout"
    ):
        endless.run([np.array(1 << 60), np.array(True), np.ones(1, "<f4")])


def test_a_file_that_is_not_a_model_is_no_failure(processes: IsolatedProcesses, trials: Trials) -> None:
    with pytest.raises(ModelError, match="not a model that ONNX Runtime can load"):
        made(processes, 1, b"garbage").open()
    assert trials.of(1).failures == 0
    assert processes.pids == []
