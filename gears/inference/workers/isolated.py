"""A process for each model and TorchScript that is not a reader, with limits on its memory and time.

The file of a client may crash a runtime, compute for hours or take all memory. In a separate process, such a file does
not affect questions, readers or other models.

*Processes.* A process starts when its model is loaded or run. At most `qa.model-processes` processes exist at the same
time. If another process is needed, the least recently used process without a run ends, and its model is loaded again
at its next use.

*Limits.* The kernel limits the memory (RLIMIT_DATA). Loads and runs have deadlines. A process that exceeds a limit is
killed. If a process ends during a run within its limits, the run is repeated once.

*Trials.* The module counts the failures of each model (`trials.py`). After `REFUSED_AFTER` consecutive failures, the
model is refused until it is stored again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO
from weakref import WeakSet

from qa_cluster.errors import InferenceFailed, ModelError, QueueFull

from ...shard.failures import error_line
from ...shard.memory import TooLarge
from ..backends.base import OutOfMemory, Port, RunTimedOut
from ..tensors import Array
from ..trials import ModuleTrials, Trial
from .frames import Head
from .process import PROGRAM, InferenceProcess, ProcessLost, ports

logger = logging.getLogger(__name__)
CommandAnswer = Callable[[InferenceProcess, int, list[Array]], None]
"""Answers a command of a running script. Arguments: the process, the number of the call, the command's arrays."""
REFUSED_AFTER = 2
FILE_COPIES = 4
"""In addition to `qa.model-memory-mb`, a process may use this multiple of the size of its file."""

NICENESS = 5  # while questions are computed, these processes get about a third of the worker's processor time
GRACE_SECONDS = 1.0  # ONNX Runtime itself stops a run at its limit; after this additional time, the process is killed
_POLL_SECONDS = 1.0
_NUMBER = 1  # the number of the only model in a process


@dataclass(frozen=True, slots=True)
class IsolationLimits:
    """The limits of the processes.

    Attributes:
        processes: the maximum number of processes.
        memory_mb: the memory of each process, without its runtime and `FILE_COPIES` times its file; 0: no limit.
        spare_mb: additional memory while a process receives tensors.
        load_ms, run_ms: the time limits of a load and of a run.
        start_seconds: the time limit from the start of a process to its first frame.
        run_threads: the maximum number of concurrent runs of a model.
    """

    processes: int
    memory_mb: int
    spare_mb: int
    load_ms: int
    run_ms: int
    start_seconds: float
    run_threads: int = 1


class Refused(ModelError):
    """The model or script has failed too often. It is refused until it is stored again."""


class IsolatedProcesses:
    """The running processes, the least recently used first. Any thread may call the methods."""

    def __init__(self, limits: IsolationLimits, trials: ModuleTrials) -> None:
        self.limits = limits
        self.trials = trials
        self.failures = 0
        self._changed = threading.Condition()
        self._running: OrderedDict[IsolatedModel, None] = OrderedDict()
        self._failed: WeakSet[InferenceProcess] = WeakSet()

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.pid for process in self._up()]

    @property
    def resident_bytes(self) -> int:
        """The resident memory of all processes."""
        return sum(process.resident_bytes for process in self._up())

    def _up(self) -> list[InferenceProcess]:
        with self._changed:
            return [model.process for model in self._running if model.process is not None]

    def acquire(self, model: IsolatedModel) -> None:
        """Let a model use a process until `release`. If necessary, end an idle process of another model.

        Raises QueueFull if all processes stay busy for the time limit of a load.
        """
        deadline = time.monotonic() + self.limits.load_ms / 1000
        with self._changed:
            while model not in self._running and len(self._running) >= self.limits.processes:
                idle = next((other for other in self._running if not other.busy), None)
                if idle is not None:
                    self._remove(idle)
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    raise QueueFull(
                        f"all {self.limits.processes} processes of models and scripts are busy: try again later, or"
                        " raise qa.model-processes"
                    )
                self._changed.wait(min(left, _POLL_SECONDS))
            self._running[model] = None
            self._running.move_to_end(model)
            model.busy += 1

    def release(self, model: IsolatedModel) -> None:
        """End the use of a process.

        If the model is closed or its process has ended, another model can then start a process.
        """
        with self._changed:
            model.busy -= 1
            is_over = model.closed or model.process is None or model.process.has_ended
            if not model.busy and is_over and model in self._running:
                self._remove(model)
            self._changed.notify_all()

    def close(self, model: IsolatedModel) -> None:
        """Close a model: end its process after its runs."""
        with self._changed:
            model.closed = True
            if not model.busy and model in self._running:
                self._remove(model)

    def report_end(self, model: IsolatedModel, process: InferenceProcess) -> bool:
        """Remove a failed process from its model; return whether this is the first report of the failure."""
        with self._changed:
            if model.process is process:
                model.process = None
            is_first = process not in self._failed
            self._failed.add(process)
            return is_first

    def stop(self) -> None:
        """End all processes."""
        with self._changed:
            for model in list(self._running):
                self._remove(model)

    def _remove(self, model: IsolatedModel) -> None:
        del self._running[model]
        process, model.process = model.process, None
        if process is not None:
            process.kill()
        self._changed.notify_all()


class IsolatedModel:
    """A model or script in a separate process, which starts again when needed.

    Attributes:
        busy: the number of its runs and loads (under the lock of `IsolatedProcesses`).
        process: its process; None if it has no process.
        closed: whether `close` was called. After this call, the process ends as soon as it has no running request.
    """

    def __init__(
        self,
        processes: IsolatedProcesses,
        ref: int,
        load: Head,
        open_file: Callable[[], tuple[IO[bytes], int]],
        *,
        noun: str = "model",
        program: str = PROGRAM,
    ) -> None:
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()
        self.busy = 0
        self.closed = False
        self.process: InferenceProcess | None = None
        self._processes = processes
        self._limits = processes.limits
        self._ref = ref
        self._noun = noun
        self._load = load
        self._open_file = open_file
        self._program = program
        self._starting = threading.Lock()
        self._has_failed = False

    def open(self) -> None:
        """Start the process and load the file.

        Raises:
            Refused: the model has failed too often.
            ModelError: the file cannot be loaded, or its load exceeded a limit.
        """
        self._check_refused()
        self._processes.acquire(self)
        try:
            self._ready()
        finally:
            self._processes.release(self)

    def close(self) -> None:
        """End the process as soon as it has no running request."""
        self._processes.close(self)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once."""
        return self.ask({"op": "run"}, arrays)

    def warm(self, arrays: Sequence[Array]) -> None:
        """Run the model once as part of its load. Unlike `run`, a success does not reset its failures."""
        self.ask({"op": "run"}, arrays, resets=False)

    def ask(
        self,
        head: Head,
        arrays: Sequence[Array] = (),
        answer: CommandAnswer | None = None,
        *,
        resets: bool = True,
    ) -> list[Array]:
        """Send a request and return the arrays of its reply.

        If the process dies during the request, another process repeats the request once.

        Args:
            answer: answers the commands of a running script, on this thread.
            resets: whether a success resets the count of failures.
        """
        self._check_refused()
        self._processes.acquire(self)
        try:
            for last in (False, True):
                process = self._ready()
                try:
                    return self._ask_once(process, head, arrays, answer, resets)
                except ProcessLost as lost:
                    failure = self._failed(process, "run", f"ended its process: {lost.reason}", counts=lost.begun)
                    if last or isinstance(failure, Refused):
                        raise failure from None
            raise AssertionError("both runs end above")
        finally:
            self._processes.release(self)

    def _ask_once(
        self,
        process: InferenceProcess,
        head: Head,
        arrays: Sequence[Array],
        answer: CommandAnswer | None,
        resets: bool,
    ) -> list[Array]:
        commands: SimpleQueue[tuple[int, list[Array]] | None] = SimpleQueue()
        reply = process.request({**head, "model": _NUMBER}, arrays, commands=commands.put if answer else None)
        limit_ms = self._limits.run_ms
        deadline = time.monotonic() + limit_ms / 1000 + GRACE_SECONDS
        if answer is not None:
            reply.add_done_callback(lambda _: commands.put(None))
        try:
            if answer is not None:
                _answer_commands(process, commands, answer, deadline)
            outputs = reply.result(max(0.0, deadline - time.monotonic()))[1]
        except (TimeoutError, RunTimedOut) as error:
            text = f"takes longer than {limit_ms} ms, the limit (qa.model-timeout-ms)"
            raise self._failed(process, "run", text, error) from None
        except OutOfMemory as error:
            raise self._failed(process, "run", self._memory_text(), error) from None
        if resets and self._has_failed:
            self._has_failed = False
            self._processes.trials.succeeded(self._ref)
        return outputs

    def _memory_text(self) -> str:
        return f"needs more than {self._limits.memory_mb} MB of memory, the limit (qa.model-memory-mb)"

    def _failed(
        self, process: InferenceProcess, what: str, reason: str, error: Exception | None = None, *, counts: bool = True
    ) -> Exception:
        """End the process, count the failure and return the error for the client.

        If several requests fail with the same process, only the first failure counts.

        Args:
            what: what has failed: ``load`` or ``run``.
            reason: what the load or run has done, as the rest of a sentence.
            error: the error for an exceeded limit; None if the process ended by itself.
            counts: whether the failure may count against the model. It is False if the process had not received the
                request before its end.
        """
        process.kill()
        is_first = self._processes.report_end(self, process)
        whole = f"its {what} {reason}"
        if error is not None and str(error):
            whole += f" ({str(error)[:200]})"
        trials = self._processes.trials
        if counts and is_first:
            self._has_failed = True
            self._processes.failures += 1
            trial = trials.failed(self._ref, whole)
            logger.warning("%s %s: %s", self._noun, trial.key or self._ref, whole)
        else:
            trial = trials.of(self._ref)
        if trial.failures >= REFUSED_AFTER and error is None:
            return self._refused(trial)
        advice = "the log of the server has the last lines of the process"
        if error is not None:
            advice = f"{'use smaller inputs' if what == 'run' else 'store a smaller one'}, or raise the limit"
        refused = ". It is refused until it is stored again" if trial.failures >= REFUSED_AFTER else ""
        text = f"{self._noun} {trial.key}: {whole}: {advice}{refused}"
        return ModelError(text) if what == "load" else InferenceFailed(text)

    def _refused(self, trial: Trial) -> Refused:
        return Refused(
            f"{self._noun} {trial.key} is refused, because it failed {trial.failures} times in a row, the last time:"
            f" {trial.reason}. Correct it and store it again"
        )

    def _check_refused(self) -> None:
        """Raise Refused if the model has failed too often. Call this before another model's process is ended for this
        model.
        """
        if self.process is None and (trial := self._processes.trials.of(self._ref)).failures >= REFUSED_AFTER:
            raise self._refused(trial)

    def _ready(self) -> InferenceProcess:
        """Return the process with the loaded model. Start the process if necessary."""
        with self._starting:
            process = self.process
            if process is None or process.has_ended:
                trial = self._processes.trials.of(self._ref)
                if trial.failures >= REFUSED_AFTER:
                    raise self._refused(trial)
                self._has_failed = trial.failures > 0
                self._start()
                process = self.process
            assert process is not None
            return process

    def _start(self) -> None:
        file, size = self._open_file()
        with file:
            process = self._started_process(size)
            self.process = process
            limit_ms = self._limits.load_ms
            head = {**self._load, "op": "load", "model": _NUMBER, "size": size}
            try:
                answer = process.request(head, descriptor=file.fileno()).result(limit_ms / 1000)[0]
            except TimeoutError as error:
                text = f"takes longer than {limit_ms} ms, the limit (qa.model-load-timeout-ms)"
                raise self._failed(process, "load", text, error) from None
            except (TooLarge, OutOfMemory) as error:
                raise self._failed(process, "load", self._memory_text(), error) from None
            except ProcessLost as lost:
                raise self._failed(process, "load", f"ended its process: {lost.reason}") from None
            except BaseException:
                self.process = None
                process.kill()
                raise
        self.inputs, self.outputs = ports(answer["inputs"]), ports(answer["outputs"])

    def _started_process(self, size: int) -> InferenceProcess:
        limits = self._limits
        memory_mb = limits.memory_mb + (FILE_COPIES * size >> 20) if limits.memory_mb else 0
        start = {
            "memory_mb": 0,
            "niceness": NICENESS,
            "own_memory_mb": 0 if self._load["device"].startswith("GPU") else memory_mb,
            "spare_mb": limits.spare_mb,
            "run_threads": limits.run_threads,
            "ahead": False,
        }
        started: Future[InferenceProcess] = Future()
        up = threading.Event()
        # The kernel ends a process when the thread that started the process ends. So the thread that starts the process
        # here must run until the process ends.
        threading.Thread(target=self._serve, args=(start, started, up), name="model-process", daemon=True).start()
        process = started.result()
        if not up.wait(limits.start_seconds):
            process.kill()
            raise InferenceFailed(f"the process of a {self._noun} has not started in {limits.start_seconds:g} s")
        return process

    def _serve(self, start: Head, started: Future[InferenceProcess], up: threading.Event) -> None:
        silence = (self._limits.load_ms + self._limits.run_ms) / 1000 + self._limits.start_seconds
        try:
            process = InferenceProcess(start, self._limits.start_seconds, silence, self._program)
        except Exception as error:
            started.set_exception(InferenceFailed(f"no process can be started: {error_line(error)}"))
            return
        started.set_result(process)
        process.serve(up.set)
        process.has_ended = True
        up.set()


def _answer_commands(
    process: InferenceProcess,
    commands: SimpleQueue[tuple[int, list[Array]] | None],
    answer: CommandAnswer,
    deadline: float,
) -> None:
    """Answer the commands of a script until its reply arrives, or until `deadline` (seconds of `time.monotonic`)."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            command = commands.get(timeout=left)
        except Empty:
            return
        if command is None:
            return
        answer(process, *command)
