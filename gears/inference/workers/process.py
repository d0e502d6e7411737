"""One life of an inference worker, from the side of the shard's worker: its process, what it has loaded, its answers.

Threads: any may send requests; the one that made the object is the only reader (`serve`). Whatever ends the process, a
crash, a signal or silence, every request that waits gets `Lost`.
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

from qa_cluster.errors import InferenceFailed, ModelError

from ...shard.failures import GearsError
from ..model_file import kept
from ..tensors import Array
from .frames import TAKEN, Closed, Head, receive, send

Answer = tuple[Head, list[Array]]
_MODULE = "qa_cluster.gears.inference.workers.child"
_REAP_SECONDS = 5.0


class Lost(Exception):
    """The process ended before it answered; `begun` says whether it had taken the request up."""

    def __init__(self, begun: bool) -> None:
        super().__init__("the inference worker is gone")
        self.begun = begun


@dataclass(frozen=True, slots=True)
class Refusal:
    """That a process did not take a model: when it tries again (monotonic seconds), its pause until then, and why."""

    again_at: float
    pause: float
    reason: str


class InferenceProcess:
    """A running process; the pool keeps in it what it knows of the process, under the pool's lock.

    Attributes:
        ready: whether it has begun to take batches.
        over: whether it is known to be gone, before its own thread has noticed.
        busy: runs that it has not answered.
        loaded: numbers of the models that it can run.
        loading: number of the model that it loads.
        refused: the models that it did not take, by number.
        warmed: number of a model, rows and length of the shapes that it has run.
        preparing: whether it loads a model or warms a shape; it does one at a time.
        warming: the shape that it warms on its own.
    """

    def __init__(self, start: Head, start_seconds: float, silence_seconds: float) -> None:
        self.ready = False
        self.over = False
        self.busy = 0
        self.loaded: set[int] = set()
        self.loading: int | None = None
        self.refused: dict[int, Refusal] = {}
        self.warmed: set[tuple[int, int, int]] = set()
        self.preparing = False
        self.warming: tuple[int, int, int] | None = None
        self._silence = silence_seconds
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sending_lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._gone = False
        with contextlib.ExitStack() as undo:  # descriptors may run out at each step
            self._receiving, theirs = socket.socketpair()
            undo.callback(self._receiving.close)
            with theirs:
                # a timeout belongs to a socket object: what is sent has another one than what is received
                self._sending = undo.enter_context(self._receiving.dup())
                self._receiving.settimeout(start_seconds)
                self._sending.settimeout(silence_seconds)
                # what a process has taken can still be seen in this memory when it is dead
                file, size = kept([bytes(TAKEN.size)])
                with file:
                    self._taken = undo.enter_context(mmap.mmap(file.fileno(), size))
                    send(self._sending, start, descriptor=file.fileno())
                self._process = _started(theirs)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def request(self, head: Head, arrays: Sequence[Array] = (), descriptor: int | None = None) -> Future[Answer]:
        """Send a request; its answer, the error it failed with, or Lost. It raises Lost if it cannot be sent."""
        answer: Future[Answer] = Future()
        with self._sending_lock:
            with self._lock:
                if self._gone:
                    raise Lost(False)
                number = next(self._ids)
                self._waiting[number] = answer
            try:
                self._send({"id": number, **head}, arrays, descriptor)
            except BaseException:
                with self._lock:
                    self._waiting.pop(number, None)
                raise
        return answer

    def tell(self, head: Head) -> None:
        """Send what has no answer. It raises Lost if it cannot be sent."""
        with self._sending_lock:
            self._send({"id": 0, **head})

    def _send(self, head: Head, arrays: Sequence[Array] = (), descriptor: int | None = None) -> None:
        try:
            send(self._sending, head, arrays, descriptor)
        except OSError:
            self.kill()
            raise Lost(False) from None

    def serve(self, heard: Callable[[], None]) -> str:
        """Hand out answers until the process is gone, and call `heard` after each; return why it is gone."""
        reason = "it closed its connection"
        try:
            while True:
                head, arrays, _ = receive(self._receiving)
                # before its first frame it has more time: it imports the runtimes
                self._receiving.settimeout(self._silence)
                self._hand_out(head, arrays)
                heard()
        except TimeoutError:
            reason = f"silent for more than {self._receiving.gettimeout():g} s"
        except (Closed, OSError):
            pass
        finally:
            self._end()
        status = self._process.returncode
        if status is not None and status != 0 and not reason.startswith("silent"):
            reason = f"signal {-status}" if status < 0 else f"exit {status}"
        return reason

    def kill(self) -> None:
        """End the process; `serve` returns."""
        self._process.kill()

    def _hand_out(self, head: Head, arrays: list[Array]) -> None:
        with self._lock:
            answer = self._waiting.pop(head["id"], None)
        if answer is None:
            return
        if "failed" in head:
            answer.set_exception(_error(head["failed"], head["text"]))
        else:
            answer.set_result((head, arrays))

    def _end(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel; `Popen` reaps it later
            self._process.wait(_REAP_SECONDS)
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.items())
            self._waiting.clear()
        (taken,) = TAKEN.unpack(self._taken)
        for number, answer in waiting:
            answer.set_exception(Lost(number <= taken))
        self._taken.close()
        self._receiving.close()
        self._sending.close()


def _started(connection: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", _MODULE], stdin=connection.fileno())


def _error(kind: str, text: str) -> Exception:
    if kind == "model":
        return ModelError(text)
    return InferenceFailed(text) if kind == "inference" else GearsError(text)
