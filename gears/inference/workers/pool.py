"""The inference workers of a shard's worker: keeps them running, loads models in all of them, runs batches in one.

Each has a thread here that starts it, reads its answers and, when it is gone, starts another: after
`qa.worker-backoff-ms`, and twice as long each time, as the module does with the worker. A new one loads every model and
runs their shapes before it takes batches. A batch goes to the least busy one. If that one dies, another gets the batch,
once; a batch during which two have died fails. While none is up, batches wait, but not for ever.

A model belongs to its `RemoteModel`: when nothing refers to that any more, the workers forget the model. Its file stays
in memory until then, once for all of them: a model's key may be gone, or a model never have had one, when a worker
starts again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from typing import IO

from qa_cluster.errors import WorkerLost

from ...shard.failures import error_line
from ...shard.memory import resident_bytes
from ..backends.base import Port, RuntimeLimits, blank_inputs
from ..model_file import kept
from ..tensors import Array
from .process import Answer, InferenceProcess, Lost
from .remote import RemoteModel, ports

logger = logging.getLogger(__name__)
MAX_DEATHS = 2
MAX_BACKOFF_SECONDS = 5.0
MAX_READY_BACKOFF_SECONDS = 0.8
STABLE_SECONDS = 30.0
WARM_FIRST_TOKENS = 512
"""Larger shapes are run only after a new worker has begun to take batches, while it has none."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How many inference workers there are, and their limits.

    Attributes:
        count: how many.
        run_threads: runs that one of them does at the same time.
        start_seconds: the longest time from its start to its first sign of life.
        silence_seconds: the longest time between two signs of life.
        wait_seconds: how long a batch waits for a worker while none is up.
        backoff_seconds: the first delay before another is started.
        memory_mb, spare_mb: as for the shard's worker (`limit_memory`), each.
        ahead: whether they import OpenVINO at their start.
    """

    count: int
    run_threads: int = 1
    start_seconds: float = 60.0
    silence_seconds: float = 10.0
    wait_seconds: float = 15.0
    backoff_seconds: float = 0.05
    memory_mb: int = 0
    spare_mb: int = 0
    ahead: bool = True


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What the inference workers are and have done since the shard's worker started, for `QA.BEAT`."""

    configured: int = 0
    ready: int = 0
    restarts: int = 0
    batches: int = 0
    retries: int = 0
    rss_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Model:
    """A model that all workers load; `deaths` is how many died while they loaded it."""

    number: int
    backend: str
    device: str
    file: IO[bytes]
    size: int
    limits: RuntimeLimits
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    served: bool = False
    deaths: int = 0
    error: Exception | None = None
    shapes: list[tuple[int, int]] = field(default_factory=list)


class InferenceWorkers:
    """All inference workers. Any thread may call it; its lock is never held while something is sent or awaited."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._changed = threading.Condition()
        self._lives: list[InferenceProcess | None] = [None] * options.count
        self._models: dict[int, _Model] = {}
        self._numbers = itertools.count(1)
        self._unused: deque[int] = deque()  # filled by finalizers, which may run while the lock is held
        self._stop = threading.Event()
        self._restarts = 0
        self._batches = 0
        self._retries = 0
        self._threads = [
            threading.Thread(target=self._keep, args=(place,), name=f"inference-{place + 1}", daemon=True)
            for place in range(options.count)
        ]

    def begin(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the workers; no other is started."""
        self._stop.set()
        with self._changed:
            lives = [life for life in self._lives if life is not None]
            self._changed.notify_all()
        for life in lives:
            life.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        with self._changed:
            for model in self._models.values():
                model.file.close()
            self._models.clear()

    @property
    def counts(self) -> WorkerCounts:
        """The counts of now."""
        with self._changed:
            lives = [life for life in self._lives if life is not None]
            numbers = (sum(life.ready for life in lives), self._restarts, self._batches, self._retries)
        return WorkerCounts(self._options.count, *numbers, sum(map(_resident, lives)))

    def load(self, backend: str, device: str, parts: Iterable[bytes], limits: RuntimeLimits) -> RemoteModel:
        """Load a model in every worker, and return it once all that are up have it.

        It raises what the workers raise for a model that they do not take, and WorkerLost if none is up in time or two
        have died loading it.
        """
        file, size = kept(parts)
        model = _Model(next(self._numbers), backend, device, file, size, limits)
        with self._changed:
            self._models[model.number] = model
            lives = self._up()
        for life in lives:
            self._advance(life)
        try:
            self._await_loaded(model)
        except BaseException:
            self._unused.append(model.number)
            raise
        remote = RemoteModel(self, model.number, model.inputs, model.outputs)
        weakref.finalize(remote, self._unused.append, model.number).atexit = False
        return remote

    def run(self, number: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model in the least busy worker; WorkerLost if none is up in time or two have died running it."""
        deaths = tries = 0
        while True:
            life = self._choose(number)
            try:
                outputs = life.request({"op": "run", "model": number}, arrays).result()[1]
            except Lost as lost:
                deaths += lost.begun
                tries += 1
                if deaths == MAX_DEATHS or tries == 2 * MAX_DEATHS:  # it may kill a process before that takes it up
                    raise WorkerLost(f"{max(deaths, MAX_DEATHS)} inference workers died during this run") from None
                with self._changed:
                    life.ready = False  # its thread will see its end, too
                    self._retries += lost.begun
            else:
                with self._changed:
                    self._batches += 1
                return outputs
            finally:
                with self._changed:
                    life.busy -= 1

    def warm(self, number: int, rows: int, length: int) -> None:
        """Run a token model once in this shape, in every worker: those of now and those to come."""
        with self._changed:
            model = self._models[number]
            if (rows, length) not in model.shapes:
                model.shapes.append((rows, length))
            lives = [life for life in self._up() if number in life.loaded]
        running = [(life, self._warm_in(life, model, rows, length)) for life in lives]
        error: Exception | None = None
        for life, answer in running:
            try:
                answer.result()
            except Exception as failure:
                error = failure
            with self._changed:
                life.warmed.add((number, rows, length))
        if error is not None:
            self._leave_cold(number, rows, length)
        if error is not None and not isinstance(error, Lost):
            raise error

    # ---- Which worker ----

    def _up(self) -> list[InferenceProcess]:
        return [life for life in self._lives if life is not None and life.ready]

    def _choose(self, number: int) -> InferenceProcess:
        deadline = time.monotonic() + self._options.wait_seconds
        with self._changed:
            while True:
                able = [life for life in self._up() if number in life.loaded]
                if able:
                    chosen = min(able, key=lambda life: life.busy)
                    chosen.busy += 1
                    return chosen
                left = deadline - time.monotonic()
                if left <= 0 or self._stop.is_set():
                    raise WorkerLost(f"no inference worker of {self._options.count} is up: its end is in the log")
                self._changed.wait(left)

    def _await_loaded(self, model: _Model) -> None:
        deadline = time.monotonic() + self._options.start_seconds
        with self._changed:
            while True:
                if model.error is not None:
                    raise model.error
                if model.deaths >= MAX_DEATHS:
                    raise WorkerLost(f"{MAX_DEATHS} inference workers died while they loaded this model")
                up = self._up()
                if up and all(model.number in life.loaded for life in up):
                    model.served = True
                    return
                if up:
                    # it is being loaded: that may take any time, as long as the worker shows that it lives
                    deadline = time.monotonic() + self._options.start_seconds
                left = deadline - time.monotonic()
                if left <= 0 or self._stop.is_set():
                    raise WorkerLost(f"no inference worker of {self._options.count} is up: its end is in the log")
                self._changed.wait(left)

    # ---- One worker's life ----

    def _keep(self, place: int) -> None:
        """Keep a worker running, until `stop`."""
        delay = 0.0
        while not self._stop.is_set():
            began, was_ready = time.monotonic(), False
            try:
                was_ready = self._live(place)
            except Exception as error:  # whatever it was, another one is started
                logger.error("inference worker %d cannot be started: %s", place + 1, error_line(error))
            limit = MAX_READY_BACKOFF_SECONDS if was_ready else MAX_BACKOFF_SECONDS
            if time.monotonic() - began >= STABLE_SECONDS:
                delay = 0.0
            delay = min(delay or self._options.backoff_seconds, limit)
            if not self._stop.wait(delay):
                delay *= 2
                with self._changed:
                    self._restarts += 1

    def _live(self, place: int) -> bool:
        """Start a worker and serve it until its end; return whether it was ready."""
        options = self._options
        start = {
            "memory_mb": options.memory_mb,
            "spare_mb": options.spare_mb,
            "run_threads": options.run_threads,
            "ahead": options.ahead,
        }
        life = InferenceProcess(start, options.start_seconds, options.silence_seconds)
        with self._changed:
            self._lives[place] = life
        if self._stop.is_set():
            life.kill()
        logger.info("inference worker %d started, pid %d", place + 1, life.pid)
        try:
            reason = life.serve(lambda: self._advance(life))
        finally:
            with self._changed:
                was_ready, life.ready = life.ready, False
                self._lives[place] = None
                for model in self._models.values():
                    # it was asked to load it, and died before it had done so
                    model.deaths += model.number in life.asked and model.number not in life.loaded
                self._changed.notify_all()
            if life.warming is not None:
                self._leave_cold(*life.warming)
        if not self._stop.is_set():
            logger.warning("inference worker %d (pid %d) is gone: %s", place + 1, life.pid, reason)
        return was_ready

    def _advance(self, life: InferenceProcess) -> None:
        """Give a worker the next thing to prepare, one at a time: models to forget or load, then shapes to run."""
        with self._changed:
            self._forget_unused()
            gone = [number for number in life.loaded if number not in self._models]
            life.loaded.difference_update(gone)
            model, shape, descriptor = None, None, -1
            if not life.preparing:
                model = next((m for n, m in self._models.items() if n not in life.asked and m.error is None), None)
                if model is not None:
                    life.asked.add(model.number)
                    descriptor = os.dup(model.file.fileno())  # it may be closed as soon as the lock is free
                else:
                    shape = self._next_shape(life)
                life.preparing = model is not None or shape is not None
                if not life.preparing and not life.ready:
                    life.ready = True
                    self._changed.notify_all()
                    logger.info("inference worker with pid %d is ready", life.pid)
        try:
            for number in gone:
                life.tell({"op": "drop", "model": number})
            if model is not None:
                self._load_in(life, model, descriptor)
            elif shape is not None:
                self._prepare_shape(life, *shape)
        except Lost:
            pass  # its thread sees the end, too
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _forget_unused(self) -> None:
        while self._unused:
            model = self._models.pop(self._unused.popleft(), None)
            if model is not None:
                model.file.close()

    def _next_shape(self, life: InferenceProcess) -> tuple[_Model, int, int] | None:
        """A shape that the worker has not run; a large one only while it is ready and has nothing else to do."""
        for model in self._models.values():
            if not model.served or model.number not in life.loaded:
                continue
            for rows, length in model.shapes:
                small = rows * length <= WARM_FIRST_TOKENS
                due = not life.ready if small else life.ready and not life.busy
                if due and (model.number, rows, length) not in life.warmed:
                    return model, rows, length
        return None

    def _leave_cold(self, number: int, rows: int, length: int) -> None:
        """Do not warm this shape again: it failed, or a worker died of it, or at least while it ran."""
        with self._changed, contextlib.suppress(KeyError, ValueError):
            self._models[number].shapes.remove((rows, length))

    def _load_in(self, life: InferenceProcess, model: _Model, descriptor: int) -> None:
        head = {
            "op": "load",
            "model": model.number,
            "backend": model.backend,
            "device": model.device,
            "size": model.size,
            "limits": astuple(model.limits),
        }
        answer = life.request(head, descriptor=descriptor)
        answer.add_done_callback(lambda done: self._loaded_in(life, model, done))

    def _loaded_in(self, life: InferenceProcess, model: _Model, done: Future[Answer]) -> None:
        error = done.exception()
        if isinstance(error, Lost):
            return
        with self._changed:
            life.preparing = False
            if error is None:
                head = done.result()[0]
                model.inputs, model.outputs = ports(head["inputs"]), ports(head["outputs"])
                life.loaded.add(model.number)
            elif isinstance(error, Exception) and not model.served:
                model.error = error
                life.loaded.add(model.number)  # it did not die of it
            else:
                logger.error("a new inference worker does not take model %d: %s", model.number, error_line(error))
            self._changed.notify_all()

    def _warm_in(self, life: InferenceProcess, model: _Model, rows: int, length: int) -> Future[Answer]:
        try:
            return life.request({"op": "run", "model": model.number}, blank_inputs(model.inputs, rows, length))
        except Lost as lost:
            failed: Future[Answer] = Future()
            failed.set_exception(lost)
            return failed

    def _prepare_shape(self, life: InferenceProcess, model: _Model, rows: int, length: int) -> None:
        def ran(done: Future[Answer]) -> None:
            if isinstance(done.exception(), Lost):
                return
            with self._changed:
                life.preparing, life.warming = False, None
                life.warmed.add((model.number, rows, length))

        life.warming = (model.number, rows, length)
        self._warm_in(life, model, rows, length).add_done_callback(ran)


def _resident(life: InferenceProcess) -> int:
    try:
        return resident_bytes(life.pid)
    except (OSError, IndexError, ValueError):  # it has just ended
        return 0
