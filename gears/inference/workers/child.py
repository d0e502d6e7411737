"""The program of an inference worker and of a model process: ``python -m qa_cluster.gears.inference.workers.child``.

A model process runs one model that is not a reader (`isolated`). The shard's worker starts this program. The standard
input of the program is the connection to the worker. The program loads and runs models, and has no access to the shard,
keys or scripts. The main thread reads frames. One thread loads models, one thread sends heartbeats, and several threads
run models. The process ends when the connection closes or the worker dies.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from qa_cluster.errors import InferenceFailed, ModelError

from ...shard.failures import GearsError, error_line
from ...shard.memory import TooLarge, check_fits, data_bytes, is_exhaustion, limit_memory, too_large
from ..backends.base import CompiledModel, OutOfMemory, Port, RunTimedOut, RuntimeLimits
from ..backends.choose import import_ahead, import_runtimes, load_model
from ..model_file import RUNTIME_COPIES, ModelFile, file_of_descriptor
from ..tensors import Array
from .frames import LAST_REQUEST, ConnectionClosed, Head, receive, send

BEAT_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


class InferenceChild:
    """The models of this process, and its connection to the worker of the shard."""

    def __init__(self, connection: socket.socket, last_request: mmap.mmap, start: Head) -> None:
        self._connection = connection
        self._last_request = last_request
        self._own_memory_mb: int = start.get("own_memory_mb", 0)
        self._spare_mb: int = start["spare_mb"]
        self._sending = threading.Lock()
        self._models: dict[int, CompiledModel] = {}
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._runners = ThreadPoolExecutor(max_workers=start["run_threads"], thread_name_prefix="run")

    def serve(self) -> None:
        """Answer frames until the connection closes, then raise ConnectionClosed or OSError."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        while True:
            head, arrays, descriptors = receive(self._connection, descriptors=True)
            if head["id"]:  # a frame with the id 0 needs no reply
                LAST_REQUEST.pack_into(self._last_request, 0, head["id"])
            if head["op"] == "run":
                self._runners.submit(self._answer, head, partial(self._run, head["model"], arrays))
            elif head["op"] == "load":
                self._loader.submit(self._answer, head, partial(self._load, head, descriptors))
            elif head["op"] == "drop":
                self._models.pop(head["model"], None)
            else:
                self._other(head, arrays)
            # releases the memory of the frame before the next frame arrives
            del head, arrays

    def _other(self, head: Head, arrays: Sequence[Array]) -> None:
        """Handle a frame that does not ask to run, load or drop a model. This class ignores the frame."""

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            self._send({"id": 0})
            pause.wait(BEAT_SECONDS)

    def _answer(self, head: Head, work: Callable[[], tuple[Head, Sequence[Array]]]) -> None:
        try:
            answer, arrays = work()
            self._send({"id": head["id"], **answer}, arrays)
        except BaseException as error:  # runtimes raise errors of any type, and a reply can be too large
            self._send({"id": head["id"], **_failure(error)})

    def _send(self, head: Head, arrays: Sequence[Array] = ()) -> None:
        try:
            with self._sending:
                send(self._connection, head, arrays)
        except OSError:
            os._exit(0)

    def _run(self, number: int, arrays: Sequence[Array]) -> tuple[Head, Sequence[Array]]:
        model = self._models.get(number)
        if model is None:
            raise InferenceFailed(f"the inference worker does not have model {number}")
        try:
            return {}, model.run(arrays)
        except Exception as error:
            if is_exhaustion(error):
                raise OutOfMemory(" ".join(str(error).split())[:500]) from error
            if isinstance(error, (InferenceFailed, GearsError)):
                raise
            # the same error as from a model that runs in the worker (`_as_failure` in batcher.py)
            raise InferenceFailed(" ".join(str(error).split())[:500]) from error

    def _load(self, head: Head, descriptors: Sequence[int]) -> tuple[Head, Sequence[Array]]:
        limits = RuntimeLimits(*head["limits"])
        try:
            if not descriptors:  # the kernel drops descriptors beyond the limit of the process
                raise GearsError("ERR the inference worker has no free file descriptor for the model")
            file = file_of_descriptor(descriptors[0], head["size"])
            if self._own_memory_mb:  # the memory of the runtime itself does not count
                import_runtimes(head["backend"])
                limit_memory((data_bytes() >> 20) + self._own_memory_mb, self._spare_mb)
            check_fits("model", file.size, RUNTIME_COPIES)
            model = self._compiled(head["backend"], head["device"], file, limits)
        except Exception as error:
            if is_exhaustion(error):
                raise too_large("model", head["size"], RUNTIME_COPIES) from error
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._models[head["model"]] = model
        return {"inputs": _described(model.inputs), "outputs": _described(model.outputs)}, ()

    def _compiled(self, backend: str, device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
        return load_model(backend, device, file, limits)


def _described(ports: Sequence[Port]) -> list[list[Any]]:
    return [[port.name, port.dtype.str if port.dtype is not None else None, port.shape] for port in ports]


def _failure(error: BaseException) -> Head:
    kind = next((kind for shown, kind in _KINDS.items() if isinstance(error, shown)), "gears")
    plain = kind != "gears" or isinstance(error, GearsError)
    return {"failed": kind, "text": str(error) if plain else error_line(error)}


_KINDS: dict[type[Exception], str] = {  # a class comes before its base
    TooLarge: "too large",
    ModelError: "model",
    OutOfMemory: "memory",
    RunTimedOut: "time",
    InferenceFailed: "inference",
}


def _prepare_process() -> None:
    if sys.platform == "linux":
        # The kernel sends this signal when the worker's thread that started this process ends. So the worker keeps that
        # thread running until this process ends.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the worker ends this process
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s inference worker: %(message)s")


def main(child: type[InferenceChild] = InferenceChild) -> int:
    """Answer frames until the connection closes, then end the process.

    `child` is the class that answers the frames. The function returns only if the standard input is not a socket. It
    then returns the exit status 2.
    """
    _prepare_process()
    try:
        connection = socket.socket(fileno=os.dup(0))
    except OSError:
        print(
            "the standard input is not a socket: only the worker of a shard starts an inference worker", file=sys.stderr
        )
        return 2
    try:
        start, _, (descriptor,) = receive(connection, descriptors=True)
        last_request = mmap.mmap(descriptor, LAST_REQUEST.size)
        limit_memory(start["memory_mb"], start["spare_mb"])
        os.nice(start.get("niceness", 0))
        if start["ahead"]:
            import_ahead()
        child(connection, last_request, start).serve()
    except (ConnectionClosed, OSError):
        pass
    except BaseException:  # a normal exit would wait for runs, and heartbeats would continue meanwhile
        logging.exception("an inference worker cannot continue")
        logging.shutdown()
        os._exit(1)
    logging.shutdown()
    sys.stderr.flush()
    # a normal exit would wait for running models, whose results are no longer needed
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
