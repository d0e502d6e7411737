"""Inference workers that cannot load a model, die while they load it, cannot start, or run out of descriptors."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import WorkerLost
from qa_cluster.gears.inference.backends.base import CompiledModel
from qa_cluster.gears.inference.workers import models, pool, process
from qa_cluster.gears.inference.workers.pool import InferenceWorkers, WorkerOptions
from tests.gears.onnx_file import add_model, double_model
from tests.gears.test_inference_workers import children, load, workers
from tests.harness.polling import SECONDS, eventually


def doubled(model: CompiledModel) -> Any:
    return model.run([np.array([[3]])])[0].tolist()


class Loading:
    """Make the processes of a pool refuse some models, or die while they load them."""

    def __init__(self, of: InferenceWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: set[int] = set()
        self.deadly: set[int] = set()
        self.tries = 0
        self._send = of._load_in
        monkeypatch.setattr(of, "_load_in", self._load_in)

    def _load_in(self, life: Any, model: Any) -> None:
        bad = model.number in self.deadly
        backend = model.backend
        self.tries += bad or model.number in self.refused
        if bad:
            os.kill(life.pid, signal.SIGSTOP)  # the process must not answer before it dies
        if model.number in self.refused:
            model.backend = "TF"
        self._send(life, model)
        model.backend = backend
        if bad:
            os.kill(life.pid, signal.SIGKILL)


def number_of(model: Any) -> int:
    return int(model._number)


def busy(found: InferenceWorkers) -> list[int]:
    """The process ids of the workers that have runs."""
    return [life.pid for life in found._processes if life is not None and life.busy]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pid not in children())


def test_a_model_that_kills_its_process_is_loaded_in_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with workers(4) as found:
        other = load(found, double_model())
        before = set(children())
        loading = Loading(found, monkeypatch)
        loading.deadly.add(number_of(other) + 1)
        with pytest.raises(WorkerLost, match="2 inference workers died while they loaded this model"):
            load(found, add_model())
        assert loading.tries == 2
        eventually(lambda: found.counts.ready == 4 and len(found._models) == 1)
        assert len(before & set(children())) >= 2 and found.counts.restarts == 2
        assert doubled(other) == [[6]]


def test_a_process_that_cannot_reload_a_model_retries_while_others_serve_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with workers(2, wait_seconds=3600.0) as found:
        model, other = load(found, double_model()), load(found, double_model())
        loading = Loading(found, monkeypatch)
        loading.refused.add(number_of(model))
        first, second = children()
        kill(first)
        eventually(lambda: (found.counts.ready, found.counts.missing) == (2, 1))
        assert doubled(model) == doubled(other) == [[6]]
        kill(second)
        eventually(lambda: (found.counts.ready, found.counts.missing) == (2, 2))
        assert doubled(other) == [[6]]
        with pytest.raises(WorkerLost, match=r"next try in \d+ s: .*unsupported backend TF"):
            for _ in range(1000):  # repeated: a run may wait while a process retries the load
                model.run([np.array([[3]])])
        pids = children()
        loading.refused.clear()
        eventually(lambda: found.counts.missing == 0)
        assert doubled(model) == [[6]] and children() == pids


def test_a_model_that_kills_new_processes_is_paused_and_affects_no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FIRST_RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(models, "MAX_RETRY_SECONDS", 3600.0)
    with workers(2, wait_seconds=3600.0) as found:
        model, other = load(found, double_model()), load(found, double_model())
        loading = Loading(found, monkeypatch)
        loading.deadly.add(number_of(model))
        for pid in children():
            kill(pid)
        eventually(lambda: (found.counts.ready, found.counts.missing) == (2, 2))
        assert loading.tries == 2
        assert doubled(other) == [[6]]
        with pytest.raises(WorkerLost, match="2 inference workers died while they loaded this model again"):
            model.run([np.array([[3]])])
        loading.deadly.clear()
        with found._changed:
            found._models[number_of(model)].no_load_before = 0.0
        eventually(lambda: found.counts.missing == 0)
        assert doubled(model) == [[6]]


def test_a_death_during_a_run_does_not_delay_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was ready restarts after a short backoff, also if a run is the first to detect its end."""
    monkeypatch.setattr(pool, "MAX_READY_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(pool, "MAX_BACKOFF_SECONDS", 3600.0)
    with workers(2, backoff_seconds=3600.0, silence_seconds=60.0) as found:
        model = load(found, double_model())
        large = np.ones((1, 200_000), "<i8")  # larger than the buffer of the socket, so that the send detects the end
        for round_ in range(3):
            victim = children()[0]
            os.kill(victim, signal.SIGSTOP)
            threads = [threading.Thread(target=model.run, args=([large],)) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda pid=victim: pid in busy(found))  # type: ignore[misc]
            os.kill(victim, signal.SIGKILL)
            for thread in threads:
                thread.join(60)
            eventually(lambda least=round_ + 1: found.counts.restarts >= least)  # type: ignore[misc]
            eventually(lambda: found.counts.ready == 2)


def test_only_the_first_load_waits_if_no_process_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRAM", "no.such.module")
    found = InferenceWorkers(WorkerOptions(2, start_seconds=1.0, backoff_seconds=0.01))
    found.begin()
    try:
        with pytest.raises(WorkerLost, match="no inference worker of 2 is running"):
            load(found, double_model())

        def waits(*_: object) -> bool:
            raise AssertionError("the second model waits, too")

        monkeypatch.setattr(found._changed, "wait", waits)
        for _ in range(3):
            with pytest.raises(WorkerLost, match="no inference worker of 2 is running"):
                load(found, double_model())
        monkeypatch.undo()
        found._options = replace(found._options, start_seconds=SECONDS)  # a real process takes longer than a second
        eventually(lambda: found.counts.ready == 2)
        assert found.counts.restarts >= 1
        assert doubled(load(found, double_model())) == [[6]]
    finally:
        found.stop()


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only a few more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count + 2, before[1]))
    try:
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for descriptor in taken[len(taken) - count :]:
                os.close(descriptor)
            del taken[len(taken) - count :]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


def test_a_process_keeps_no_descriptor_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with workers() as found:
        model = load(found, double_model())
        pids = children()
        with descriptors_left(1):  # one descriptor, for the file of the model
            assert doubled(load(found, double_model())) == [[6]]
        with descriptors_left(0), pytest.raises(OSError, match="Too many open files"):
            load(found, double_model())
        assert children() == pids and doubled(model) == [[6]]
        with descriptors_left(0):
            os.kill(pids[0], signal.SIGKILL)
            for _ in range(20):
                assert doubled(model) == [[6]]
        eventually(lambda: found.counts.ready == 2)
