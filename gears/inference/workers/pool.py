"""The inference workers of a shard's worker: keeps them running, loads models in all of them, runs batches in one.

Each has a thread here that starts it, reads its answers and, when it is gone, starts another: after
`qa.worker-backoff-ms`, and twice as long each time, as the module does with the worker. A new one loads every model and
runs their shapes before it takes batches. A batch goes to the least busy one. If that one dies, another gets the batch,
once; a batch during which two have died fails. While none is up, batches wait, but not for ever.

A model is first loaded in one process, then in the others (`models.py`). One that a new process cannot load again costs
neither that process nor the other models: batches go to processes that have it, fail at once where none has, and the
process tries again, after a second and then twice as long each time.

A model belongs to its `RemoteModel`: when nothing refers to that any more, the workers forget the model. Its file stays
in memory until then, once for all of them: a model's key may be gone, or a model never have had one, when a worker
starts again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass

from qa_cluster.errors import WorkerLost

from ...shard.failures import error_line
from ...shard.memory import resident_bytes
from ..backends.base import RuntimeLimits, blank_inputs
from ..model_file import kept
from ..tensors import Array
from .models import MAX_DEATHS, PooledModel
from .process import Answer, InferenceProcess, Lost
from .remote import RemoteModel, ports

logger = logging.getLogger(__name__)
MAX_BACKOFF_SECONDS = 5.0
MAX_READY_BACKOFF_SECONDS = 0.8
STABLE_SECONDS = 30.0
_LOOK_SECONDS = 1.0  # what waits for a worker looks again so often: a model's rest may have ended
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
    """What the inference workers are and have done since the shard's worker started, for `QA.BEAT`.

    `missing` is how many models those that take batches could not load again, summed over them; `file_bytes` is the
    memory of the models' files, which all of them share and no process's resident memory has.
    """

    configured: int = 0
    ready: int = 0
    restarts: int = 0
    batches: int = 0
    retries: int = 0
    rss_bytes: int = 0
    missing: int = 0
    file_bytes: int = 0


class InferenceWorkers:
    """All inference workers. Any thread may call it; its lock is never held while something is sent or awaited."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._changed = threading.Condition()
        self._lives: list[InferenceProcess | None] = [None] * options.count
        self._models: dict[int, PooledModel] = {}
        self._numbers = itertools.count(1)
        self._unused: deque[int] = deque()  # filled by finalizers, which may run while the lock is held
        self._stop = threading.Event()
        self._restarts = 0
        self._batches = 0
        self._retries = 0
        self._progress = time.monotonic()  # when a process last began to take batches or loaded something
        self._threads = [
            threading.Thread(target=self._keep, args=(place,), name=f"inference-{place + 1}", daemon=True)
            for place in range(options.count)
        ]

    def begin(self) -> None:
        """Start the workers."""
        self._progress = time.monotonic()
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
                model.forget()
            self._models.clear()

    @property
    def counts(self) -> WorkerCounts:
        """The counts as they are."""
        with self._changed:
            lives = [life for life in self._lives if life is not None]
            up, models = self._up(), list(self._models.values())
            numbers = (len(up), self._restarts, self._batches, self._retries)
            missing = sum(m.served and m.number not in life.loaded for life in up for m in models)
            files = sum(model.size for model in models)
        return WorkerCounts(self._options.count, *numbers, sum(map(_resident, lives)), missing, files)

    def load(self, backend: str, device: str, parts: Iterable[bytes], limits: RuntimeLimits) -> RemoteModel:
        """Load a model in one worker and then in every other, and return it once all that are up have it.

        It raises what the workers raise for a model that they do not take, and WorkerLost if none is up in time or two
        have died loading it.
        """
        file, size = kept(parts)
        model = PooledModel(next(self._numbers), backend, device, file, size, limits)
        with self._changed:
            self._models[model.number] = model
        try:
            self._advance_all()
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
                    life.over = True  # its thread will see its end, too
                    self._retries += lost.begun
            else:
                with self._changed:
                    self._batches += 1
                return outputs
            finally:
                with self._changed:
                    life.busy -= 1

    def warm(self, number: int, rows: int, length: int) -> None:
        """Run a token model once in this shape, in every worker: those that there are and those to come."""
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
        return [life for life in self._lives if life is not None and life.ready and not life.over]

    def _choose(self, number: int) -> InferenceProcess:
        deadline = time.monotonic() + self._options.wait_seconds
        with self._changed:
            while True:
                able = [life for life in self._up() if number in life.loaded]
                if able:
                    chosen = min(able, key=lambda life: life.busy)
                    chosen.busy += 1
                    return chosen
                now = time.monotonic()
                up, model = self._up(), self._models.get(number)
                lacking = model.lacking(up, now) if model is not None else ""
                over = now >= deadline or self._stop.is_set()
                if lacking and (over or len(up) == self._options.count):
                    raise WorkerLost(lacking)
                if over:
                    raise WorkerLost(f"no inference worker of {self._options.count} is up: its end is in the log")
                self._changed.wait(min(deadline - now, _LOOK_SECONDS))

    def _await_loaded(self, model: PooledModel) -> None:
        """Wait until all workers that are up have it: as long as it takes, while one is up or comes up in its time.

        All models have that time together: where no worker can be started, only the first one waits for it.
        """
        with self._changed:
            while True:
                if model.error is not None:
                    raise model.error
                if model.given_up:
                    raise WorkerLost(f"{MAX_DEATHS} inference workers died while they loaded this model")
                up = self._up()
                if up and all(model.number in life.loaded for life in up):
                    model.served = True
                    return
                left = self._progress + self._options.start_seconds - time.monotonic()
                if self._stop.is_set() or (not up and left <= 0):
                    raise WorkerLost(f"no inference worker of {self._options.count} is up: its end is in the log")
                self._changed.wait(_LOOK_SECONDS if up else min(left, _LOOK_SECONDS))

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
                life.over = True
                self._lives[place] = None
                if life.ready:
                    self._progress = time.monotonic()
                self._note_death(life)
                self._changed.notify_all()
            if life.warming is not None:
                self._leave_cold(*life.warming)
        if not self._stop.is_set():
            logger.warning("inference worker %d (pid %d) is gone: %s", place + 1, life.pid, reason)
        return life.ready

    def _note_death(self, life: InferenceProcess) -> None:
        """Let another try the model that it was loading, or none for a while."""
        model = self._models.get(life.loading) if life.loading is not None else None
        if model is None or self._stop.is_set():
            return
        pause = model.died(life, time.monotonic())
        if pause and model.served:
            told = "%d inference workers died while they loaded model %d again, next try in %g s"
            logger.error(told, model.deaths, model.number, pause)

    def _advance_all(self) -> None:
        with self._changed:
            lives = self._up()
        for life in lives:
            self._advance(life)

    def _advance(self, life: InferenceProcess) -> None:
        """Give a worker the next thing to prepare, one at a time: models to forget or load, then shapes to run."""
        with self._changed:
            self._forget_unused()
            gone = [number for number in life.loaded if number not in self._models]
            life.loaded.difference_update(gone)
            model, shape = None, None
            if not life.preparing and not life.over:
                now = time.monotonic()
                model = next((model for model in self._models.values() if model.due(life, now)), None)
                if model is not None:
                    model.begin(life)
                else:
                    shape = self._next_shape(life)
                life.preparing = model is not None or shape is not None
                if not life.preparing and not life.ready:
                    life.ready = True
                    self._progress = now
                    self._changed.notify_all()
                    logger.info("inference worker with pid %d is ready", life.pid)
        with contextlib.suppress(Lost):  # its thread sees the end, too
            for number in gone:
                life.tell({"op": "drop", "model": number})
        if model is not None:
            self._load_in(life, model)
        elif shape is not None:
            self._prepare_shape(life, *shape)

    def _forget_unused(self) -> None:
        while self._unused:
            model = self._models.pop(self._unused.popleft(), None)
            if model is not None:
                model.forget()

    def _next_shape(self, life: InferenceProcess) -> tuple[PooledModel, int, int] | None:
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

    def _load_in(self, life: InferenceProcess, model: PooledModel) -> None:
        head = {
            "op": "load",
            "model": model.number,
            "backend": model.backend,
            "device": model.device,
            "size": model.size,
            "limits": astuple(model.limits),
        }
        try:
            answer = life.request(head, descriptor=model.file.fileno())
        except Exception as error:  # it could not be sent
            answer = _failed(error)
        finally:
            with self._changed:
                model.sent()
        answer.add_done_callback(lambda done: self._loaded_in(life, model, done))

    def _loaded_in(self, life: InferenceProcess, model: PooledModel, done: Future[Answer]) -> None:
        error = done.exception()
        if isinstance(error, Lost):
            return
        with self._changed:
            life.preparing = False
            self._progress = time.monotonic()
            if error is None:
                head = done.result()[0]
                model.loaded(life, ports(head["inputs"]), ports(head["outputs"]))
            elif isinstance(error, Exception):
                pause = model.refused(life, error, self._progress)
                if pause:
                    told = "inference worker with pid %d does not take model %d again, next try in %g s: %s"
                    logger.error(told, life.pid, model.number, pause, error_line(error))
            self._changed.notify_all()
        if error is None:
            self._advance_all()  # those that waited for one to have loaded it

    def _warm_in(self, life: InferenceProcess, model: PooledModel, rows: int, length: int) -> Future[Answer]:
        try:
            return life.request({"op": "run", "model": model.number}, blank_inputs(model.inputs, rows, length))
        except Exception as error:  # it is gone, or the model takes no such inputs
            return _failed(error)

    def _prepare_shape(self, life: InferenceProcess, model: PooledModel, rows: int, length: int) -> None:
        def ran(done: Future[Answer]) -> None:
            if isinstance(done.exception(), Lost):
                return
            if done.exception() is not None:
                self._leave_cold(model.number, rows, length)
            with self._changed:
                life.preparing, life.warming = False, None
                life.warmed.add((model.number, rows, length))

        life.warming = (model.number, rows, length)
        self._warm_in(life, model, rows, length).add_done_callback(ran)


def _failed(error: Exception) -> Future[Answer]:
    failed: Future[Answer] = Future()
    failed.set_exception(error)
    return failed


def _resident(life: InferenceProcess) -> int:
    try:
        return resident_bytes(life.pid)
    except (OSError, IndexError, ValueError):  # it has just ended
        return 0
