"""The pool of inference workers: restarts processes, loads models into all of them, and runs a batch in one of them.

*Processes.* Each inference worker is a process with a thread in this process. The thread starts the process, reads its
replies, and replaces it when it ends. The first wait before a replacement is `qa.worker-backoff-ms`, and each further
wait is twice as long, up to a limit. After a process that lived for `STABLE_SECONDS`, the wait is again
`qa.worker-backoff-ms`. A new process loads all models and warms their small shapes before it accepts batches. *Warming*
a shape is a first run with inputs of this size, which makes later runs fast.

*Batches.* A batch goes to the least busy process. If this process dies, another process gets the batch. After two
deaths the batch fails. If no process is ready, batches wait for a limited time.

*Models.* One process loads a model first, and then the other processes load it (`models.py`). If a new process cannot
load a model that was served before, it still serves its other models. Batches then go to processes with the model, and
fail at once if no process has it. The process retries after 1 s, and doubles the delay each time, up to 60 s.

*Files.* The processes drop a model when its `RemoteModel` has no references any more. Until then, the file stays in
memory that all processes share, because a process may restart after the model's key was deleted.
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
from ..backends.base import Port, RuntimeLimits, blank_inputs
from ..model_file import memory_file
from ..tensors import Array
from .models import MAX_DEATHS, PooledModel
from .process import Answer, InferenceProcess, ProcessLost, ports

logger = logging.getLogger(__name__)
MAX_BACKOFF_SECONDS = 5.0
MAX_READY_BACKOFF_SECONDS = 0.8
STABLE_SECONDS = 30.0
_POLL_SECONDS = 1.0  # the interval at which waiting batches check whether a model can be loaded again
WARM_FIRST_TOKENS = 512
"""A new process warms shapes with more tokens only after it is ready, while it is idle."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The number and the limits of the inference workers.

    Attributes:
        count: the number of processes.
        run_threads: concurrent runs in one process.
        start_seconds: the timeout from the start of a process to its first frame.
        silence_seconds: the timeout between two frames.
        wait_seconds: the maximum time that a batch waits for a process that is ready and has its model.
        backoff_seconds: the first delay before the replacement of a process.
        memory_mb, spare_mb: the limits of each process, as for the worker (`limit_memory`).
        ahead: whether a process imports OpenVINO at its start.
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
    """The counts of the inference workers since the worker started, for `QA.BEAT`.

    Attributes:
        configured: the number of processes that there should be (`qa.inference-workers`).
        ready: the number of processes that accept batches now.
        restarts: the number of starts after the end of a process or after a failed start.
        batches: the number of batches that have run without an error.
        retries: the number of batches that were sent to another process because a process died while it ran them.
        rss_bytes: the resident memory of all processes.
        missing: the number of served models that a ready process does not have now, summed over all ready processes.
        file_bytes: the shared memory of the model files. The resident memory of the processes does not include it.
    """

    configured: int = 0
    ready: int = 0
    restarts: int = 0
    batches: int = 0
    retries: int = 0
    rss_bytes: int = 0
    missing: int = 0
    file_bytes: int = 0


class RemoteModel:
    """A model in all inference workers. The workers drop the model when this object has no references any more."""

    def __init__(
        self, workers: InferenceWorkers, number: int, inputs: tuple[Port, ...], outputs: tuple[Port, ...]
    ) -> None:
        self._workers = workers
        self._number = number
        self.inputs = inputs
        self.outputs = outputs

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once, in one inference worker."""
        return self._workers.run(self._number, arrays)

    def warm(self, rows: int, length: int) -> None:
        """Run a token model once in this shape, in all inference workers."""
        self._workers.warm(self._number, rows, length)


class InferenceWorkers:
    """All inference workers. Any thread may call the methods. No thread holds the lock while it sends or
    waits for a reply.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._changed = threading.Condition()
        self._processes: list[InferenceProcess | None] = [None] * options.count
        self._models: dict[int, PooledModel] = {}
        self._numbers = itertools.count(1)
        # the numbers of models that can be dropped; finalizers append to it without the lock
        self._unused: deque[int] = deque()
        self._stop = threading.Event()
        self._restarts = 0
        self._batches = 0
        self._retries = 0
        self._progress = time.monotonic()  # when a process last became ready, ended a load, or died while ready
        self._threads = [
            threading.Thread(target=self._supervise, args=(place,), name=f"inference-{place + 1}", daemon=True)
            for place in range(options.count)
        ]

    def begin(self) -> None:
        """Start the threads that start and replace the processes. Do not wait for the processes."""
        self._progress = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all processes without replacement."""
        self._stop.set()
        with self._changed:
            processes = [process for process in self._processes if process is not None]
            self._changed.notify_all()
        for process in processes:
            process.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        with self._changed:
            for model in self._models.values():
                model.forget()
            self._models.clear()

    @property
    def counts(self) -> WorkerCounts:
        """The current counts."""
        with self._changed:
            processes = [process for process in self._processes if process is not None]
            up, models = self._up(), list(self._models.values())
            numbers = (len(up), self._restarts, self._batches, self._retries)
            missing = sum(m.served and m.number not in process.loaded for process in up for m in models)
            files = sum(model.size for model in models)
        return WorkerCounts(
            self._options.count, *numbers, sum(process.resident_bytes for process in processes), missing, files
        )

    def load(self, backend: str, device: str, parts: Iterable[bytes], limits: RuntimeLimits) -> RemoteModel:
        """Load a model into one process, and then into the others; return the model when all ready processes have it.

        Raises:
            WorkerLost: no process is ready in time, or two processes have died while they loaded the model.
            Exception: the error of a process that cannot load the model.
        """
        file, size = memory_file(parts)
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
        """Run a model in the least busy process that has the model. If the process dies, try again in another process.

        Raises WorkerLost in three cases:

        - no process that has the model is ready in time, or no process can load the model again at present;
        - in two tries, the process died after it had received the request;
        - in four tries, the process died before its reply.
        """
        deaths = tries = 0
        while True:
            process = self._choose(number)
            try:
                outputs = process.request({"op": "run", "model": number}, arrays).result()[1]
            except ProcessLost as lost:
                deaths += lost.begun
                tries += 1
                if deaths == MAX_DEATHS or tries == 2 * MAX_DEATHS:  # a process can die before it starts the run
                    raise WorkerLost(f"{max(deaths, MAX_DEATHS)} inference workers died during this run") from None
                with self._changed:
                    process.has_ended = True  # the thread of the process also notices the end
                    self._retries += lost.begun
            else:
                with self._changed:
                    self._batches += 1
                return outputs
            finally:
                with self._changed:
                    process.busy -= 1

    def warm(self, number: int, rows: int, length: int) -> None:
        """Run a token model once in this shape, in all present and future processes."""
        with self._changed:
            model = self._models[number]
            if (rows, length) not in model.shapes:
                model.shapes.append((rows, length))
            processes = [process for process in self._up() if number in process.loaded]
        running = [(process, self._warm_in(process, model, rows, length)) for process in processes]
        error: Exception | None = None
        for process, answer in running:
            try:
                answer.result()
            except Exception as failure:
                error = failure
            with self._changed:
                process.warmed.add((number, rows, length))
        if error is not None:
            self._skip_warming(number, rows, length)
        if error is not None and not isinstance(error, ProcessLost):
            raise error

    # ---- Choice of a process ----

    def _up(self) -> list[InferenceProcess]:
        return [
            process for process in self._processes if process is not None and process.ready and not process.has_ended
        ]

    def _choose(self, number: int) -> InferenceProcess:
        deadline = time.monotonic() + self._options.wait_seconds
        with self._changed:
            while True:
                able = [process for process in self._up() if number in process.loaded]
                if able:
                    chosen = min(able, key=lambda process: process.busy)
                    chosen.busy += 1
                    return chosen
                now = time.monotonic()
                up, model = self._up(), self._models.get(number)
                unavailable_reason = model.unavailable_reason(up, now) if model is not None else ""
                over = now >= deadline or self._stop.is_set()
                if unavailable_reason and (over or len(up) == self._options.count):
                    raise WorkerLost(unavailable_reason)
                if over:
                    raise WorkerLost(f"no inference worker of {self._options.count} is running: the log says why")
                self._changed.wait(min(deadline - now, _POLL_SECONDS))

    def _await_loaded(self, model: PooledModel) -> None:
        """Wait until all ready processes have the model.

        If no process is ready, the wait ends `start_seconds` after the last progress of the pool. This time is common
        to all models, so if no process can be started, only the first model waits.
        """
        with self._changed:
            while True:
                if model.error is not None:
                    raise model.error
                if model.given_up:
                    raise WorkerLost(f"{MAX_DEATHS} inference workers died while they loaded this model")
                up = self._up()
                if up and all(model.number in process.loaded for process in up):
                    model.served = True
                    return
                left = self._progress + self._options.start_seconds - time.monotonic()
                if self._stop.is_set() or (not up and left <= 0):
                    raise WorkerLost(f"no inference worker of {self._options.count} is running: the log says why")
                self._changed.wait(_POLL_SECONDS if up else min(left, _POLL_SECONDS))

    # ---- The life of a process ----

    def _supervise(self, place: int) -> None:
        """Start a process, and replace it after each end, until `stop`. `place` is its index in `_processes`."""
        delay = 0.0
        while not self._stop.is_set():
            began, was_ready = time.monotonic(), False
            try:
                was_ready = self._run_process(place)
            except Exception as error:  # the loop starts another process after any error
                logger.error("inference worker %d cannot be started: %s", place + 1, error_line(error))
            limit = MAX_READY_BACKOFF_SECONDS if was_ready else MAX_BACKOFF_SECONDS
            if time.monotonic() - began >= STABLE_SECONDS:
                delay = 0.0
            delay = min(delay or self._options.backoff_seconds, limit)
            if not self._stop.wait(delay):
                delay *= 2
                with self._changed:
                    self._restarts += 1

    def _run_process(self, place: int) -> bool:
        """Start a process and deliver its replies until its end; return whether the process became ready.

        `place` is the index of the process in `_processes`.
        """
        options = self._options
        start = {
            "memory_mb": options.memory_mb,
            "spare_mb": options.spare_mb,
            "run_threads": options.run_threads,
            "ahead": options.ahead,
        }
        process = InferenceProcess(start, options.start_seconds, options.silence_seconds)
        with self._changed:
            self._processes[place] = process
        if self._stop.is_set():
            process.kill()
        logger.info("inference worker %d started, pid %d", place + 1, process.pid)
        try:
            reason = process.serve(lambda: self._advance(process))
        finally:
            with self._changed:
                process.has_ended = True
                self._processes[place] = None
                if process.ready:
                    self._progress = time.monotonic()
                self._record_death(process)
                self._changed.notify_all()
            if process.warming is not None:
                self._skip_warming(*process.warming)
        if not self._stop.is_set():
            logger.warning("inference worker %d (pid %d) is gone: %s", place + 1, process.pid, reason)
        return process.ready

    def _record_death(self, process: InferenceProcess) -> None:
        """Record the death of a process in the model that it was loading."""
        model = self._models.get(process.loading) if process.loading is not None else None
        if model is None or self._stop.is_set():
            return
        pause = model.died(process, time.monotonic())
        if pause and model.served:
            told = "%d inference workers died while they loaded model %d again; the next try is in %g s"
            logger.error(told, model.deaths, model.number, pause)

    def _advance_all(self) -> None:
        with self._changed:
            processes = self._up()
        for process in processes:
            self._advance(process)

    def _advance(self, process: InferenceProcess) -> None:
        """Give a process its next task: first drop unused models, then load a model or warm a shape.

        If the process has nothing to load or warm any more, it becomes ready.
        """
        with self._changed:
            self._forget_unused()
            gone = [number for number in process.loaded if number not in self._models]
            process.loaded.difference_update(gone)
            model, shape = None, None
            if not process.preparing and not process.has_ended:
                now = time.monotonic()
                model = next((model for model in self._models.values() if model.due(process, now)), None)
                if model is not None:
                    model.begin(process)
                else:
                    shape = self._next_shape(process)
                process.preparing = model is not None or shape is not None
                if not process.preparing and not process.ready:
                    process.ready = True
                    self._progress = now
                    self._changed.notify_all()
                    logger.info("inference worker with pid %d is ready", process.pid)
        with contextlib.suppress(ProcessLost):  # the thread of the process also notices the end
            for number in gone:
                process.tell({"op": "drop", "model": number})
        if model is not None:
            self._load_in(process, model)
        elif shape is not None:
            self._prepare_shape(process, *shape)

    def _forget_unused(self) -> None:
        while self._unused:
            model = self._models.pop(self._unused.popleft(), None)
            if model is not None:
                model.forget()

    def _next_shape(self, process: InferenceProcess) -> tuple[PooledModel, int, int] | None:
        """Return a shape that the process must warm: the model, rows and length. Return None if there is no such shape.

        A shape of up to `WARM_FIRST_TOKENS` tokens is returned only before the process is ready. A larger shape is
        returned only while the process is ready and idle.
        """
        for model in self._models.values():
            if not model.served or model.number not in process.loaded:
                continue
            for rows, length in model.shapes:
                small = rows * length <= WARM_FIRST_TOKENS
                due = not process.ready if small else process.ready and not process.busy
                if due and (model.number, rows, length) not in process.warmed:
                    return model, rows, length
        return None

    def _skip_warming(self, number: int, rows: int, length: int) -> None:
        """Do not warm this shape again, because its run failed or killed a process."""
        with self._changed, contextlib.suppress(KeyError, ValueError):
            self._models[number].shapes.remove((rows, length))

    def _load_in(self, process: InferenceProcess, model: PooledModel) -> None:
        head = {
            "op": "load",
            "model": model.number,
            "backend": model.backend,
            "device": model.device,
            "size": model.size,
            "limits": astuple(model.limits),
        }
        try:
            answer = process.request(head, descriptor=model.file.fileno())
        except Exception as error:  # the request could not be sent
            answer = _failed(error)
        finally:
            with self._changed:
                model.sent()
        answer.add_done_callback(lambda done: self._loaded_in(process, model, done))

    def _loaded_in(self, process: InferenceProcess, model: PooledModel, done: Future[Answer]) -> None:
        error = done.exception()
        if isinstance(error, ProcessLost):
            return
        with self._changed:
            process.preparing = False
            self._progress = time.monotonic()
            if error is None:
                head = done.result()[0]
                model.loaded(process, ports(head["inputs"]), ports(head["outputs"]))
            elif isinstance(error, Exception):
                pause = model.refused(process, error, self._progress)
                if pause:
                    told = "inference worker with pid %d cannot load model %d again; the next try is in %g s: %s"
                    logger.error(told, process.pid, model.number, pause, error_line(error))
            self._changed.notify_all()
        if error is None:
            self._advance_all()  # the other processes have waited for the first load

    def _warm_in(self, process: InferenceProcess, model: PooledModel, rows: int, length: int) -> Future[Answer]:
        try:
            return process.request({"op": "run", "model": model.number}, blank_inputs(model.inputs, rows, length))
        except Exception as error:  # the process has ended, or the model does not accept the inputs
            return _failed(error)

    def _prepare_shape(self, process: InferenceProcess, model: PooledModel, rows: int, length: int) -> None:
        def ran(done: Future[Answer]) -> None:
            if isinstance(done.exception(), ProcessLost):
                return
            if done.exception() is not None:
                self._skip_warming(model.number, rows, length)
            with self._changed:
                process.preparing, process.warming = False, None
                process.warmed.add((model.number, rows, length))

        process.warming = (model.number, rows, length)
        self._warm_in(process, model, rows, length).add_done_callback(ran)


def _failed(error: Exception) -> Future[Answer]:
    failed: Future[Answer] = Future()
    failed.set_exception(error)
    return failed
