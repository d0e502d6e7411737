"""An inference worker or a model process as the shard's worker sees it: its process, its loaded models, its replies.

Threads: any thread may send requests. Only the thread that created the object reads replies (`serve`). A process that
sends no frame for too long is killed. When the process ends for any reason, all pending requests get `ProcessLost`.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from qa_cluster.errors import InferenceFailed, ModelError

from ...shard.failures import GearsError
from ...shard.memory import TooLarge, resident_bytes
from ..backends.base import OutOfMemory, Port, RunTimedOut
from ..model_file import memory_file
from ..tensors import Array
from .frames import LAST_REQUEST, ConnectionClosed, Head, receive, send

Answer = tuple[Head, list[Array]]
PROGRAM = "qa_cluster.gears.inference.workers.child"
_REAP_SECONDS = 5.0
_DYING_SECONDS = 0.5  # the limit of the time between the end of a connection and the end of its process


class ProcessLost(Exception):
    """The process has ended before its reply.

    Attributes:
        begun: whether the process has received the request, so that the request may have caused the end.
        reason: why the process ended.
    """

    def __init__(self, begun: bool, reason: str = "its connection is closed") -> None:
        super().__init__(f"the process is gone: {reason}")
        self.begun = begun
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A process could not load a model.

    The fields are the time of the retry (monotonic seconds), the delay, and the reason.
    """

    retry_at: float
    pause: float
    reason: str


class InferenceProcess:
    """A running process, with the state that the pool stores about it (under the pool's lock).

    Attributes:
        ready: whether it accepts batches.
        has_ended: whether any thread has detected its end. Its own thread may not have detected it yet.
        busy: number of runs without a reply.
        loaded: numbers of the models that it can run.
        loading: number of the model that it is loading.
        refused: failures to load a model, by the model's number.
        warmed: the shapes that models have already run: number of the model, rows, length.
        preparing: whether it is loading a model or warming a shape (one at a time).
        warming: the shape that it is warming, as in `warmed`; None while it warms no shape.
    """

    def __init__(self, start: Head, start_seconds: float, silence_seconds: float, program: str = "") -> None:
        self.ready = False
        self.has_ended = False
        self.busy = 0
        self.loaded: set[int] = set()
        self.loading: int | None = None
        self.refused: dict[int, LoadFailure] = {}
        self.warmed: set[tuple[int, int, int]] = set()
        self.preparing = False
        self.warming: tuple[int, int, int] | None = None
        self._silence = silence_seconds
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sending_lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._commands: dict[int, Callable[[tuple[int, list[Array]]], None]] = {}
        self._gone = False
        with contextlib.ExitStack() as undo:  # each step can fail for lack of descriptors
            self._receiving, theirs = socket.socketpair()
            undo.callback(self._receiving.close)
            with theirs:
                # a second socket object, because sending and receiving have different timeouts
                self._sending = undo.enter_context(self._receiving.dup())
                self._receiving.settimeout(start_seconds)
                self._sending.settimeout(silence_seconds)
                # after the death of the process, this memory still contains the number of the last request
                file, size = memory_file([bytes(LAST_REQUEST.size)])
                with file:
                    self._last_request = undo.enter_context(mmap.mmap(file.fileno(), size))
                    send(self._sending, start, descriptor=file.fileno())
                self._process = _started(theirs, program or PROGRAM)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Its resident memory; 0 after its end."""
        try:
            return resident_bytes(self.pid)
        except (OSError, IndexError, ValueError):  # the process has just ended
            return 0

    def request(
        self,
        head: Head,
        arrays: Sequence[Array] = (),
        descriptor: int | None = None,
        commands: Callable[[tuple[int, list[Array]]], None] | None = None,
    ) -> Future[Answer]:
        """Send a request; return a future that gets the reply, an error or ProcessLost.

        Raises ProcessLost if the request cannot be sent.

        `descriptor` is sent with the request; None: no descriptor. `commands` is called with each command of the
        running script, on the thread that reads replies; None: the request runs no script.
        """
        answer: Future[Answer] = Future()
        with self._sending_lock:
            with self._lock:
                if self._gone:
                    raise ProcessLost(False)
                number = next(self._ids)
                self._waiting[number] = answer
                if commands is not None:
                    self._commands[number] = commands
            try:
                self._send({"id": number, **head}, arrays, descriptor)
            except BaseException:
                with self._lock:
                    self._waiting.pop(number, None)
                    self._commands.pop(number, None)
                raise
        return answer

    def tell(self, head: Head, arrays: Sequence[Array] = ()) -> None:
        """Send a frame without a reply. Raise ProcessLost if it cannot be sent."""
        with self._sending_lock:
            self._send({"id": 0, **head}, arrays)

    def _send(self, head: Head, arrays: Sequence[Array] = (), descriptor: int | None = None) -> None:
        try:
            send(self._sending, head, arrays, descriptor)
        except OSError:
            self.kill()
            raise ProcessLost(False) from None

    def serve(self, on_frame: Callable[[], None]) -> str:
        """Deliver replies until the process ends; return why it ended. `on_frame` is called after each frame."""
        reason = "it closed its connection"
        try:
            while True:
                head, arrays, _ = receive(self._receiving)
                # the timeout is longer before the first frame, because the process imports the runtimes
                self._receiving.settimeout(self._silence)
                self._hand_out(head, arrays)
                on_frame()
        except TimeoutError:
            reason = f"silent for more than {self._receiving.gettimeout():g} s"
        except (ConnectionClosed, OSError):
            pass
        finally:
            reason = self._end(reason)
        return reason

    def kill(self) -> None:
        """Kill the process. `serve` then returns."""
        self._process.kill()

    def _hand_out(self, head: Head, arrays: list[Array]) -> None:
        if "command" in head:
            with self._lock:
                command = self._commands.get(head["id"])
            if command is not None:
                command((head["id"], arrays))
            return
        with self._lock:
            answer = self._waiting.pop(head["id"], None)
            self._commands.pop(head["id"], None)
        if answer is None:
            return
        if "failed" in head:
            answer.set_exception(_error(head["failed"], head["text"]))
        else:
            answer.set_result((head, arrays))

    def _end(self, reason: str) -> str:
        """Reap the process and fail all pending requests; return the reason of the end."""
        if reason.startswith("silent") or not self._ends_alone():
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # for a process that hangs in the kernel
            self._process.wait(_REAP_SECONDS)
        status = self._process.returncode
        if status is not None and status != 0 and not reason.startswith("silent"):
            reason = f"signal {-status}" if status < 0 else f"exit {status}"
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.items())
            self._waiting.clear()
        (last_request,) = LAST_REQUEST.unpack(self._last_request)
        for number, answer in waiting:
            answer.set_exception(ProcessLost(number <= last_request, reason))
        self._last_request.close()
        self._receiving.close()
        self._sending.close()
        return reason

    def _ends_alone(self) -> bool:
        """Return whether a process with a closed connection ends by itself. Then its exit status gives the reason."""
        try:
            self._process.wait(_DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True


def ports(described: Sequence[Sequence[Any]]) -> tuple[Port, ...]:
    """Return the ports of a model from the description that an inference worker has sent: name, type and shape of each
    port.
    """
    return tuple(
        Port(name, None if dtype is None else np.dtype(dtype), None if shape is None else tuple(shape))
        for name, dtype, shape in described
    )


def _started(connection: socket.socket, program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", program], stdin=connection.fileno())


def _error(kind: str, text: str) -> Exception:
    return _ERRORS.get(kind, GearsError)(text)


_ERRORS: dict[str, type[Exception]] = {
    "model": ModelError,
    "too large": TooLarge,
    "inference": InferenceFailed,
    "memory": OutOfMemory,
    "time": RunTimedOut,
}
