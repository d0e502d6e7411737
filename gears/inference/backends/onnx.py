"""Runs ONNX models in ONNX Runtime: on a GPU, and on a CPU if `choose.py` does not choose OpenVINO.

One thread watches all runs with a time limit, and stops a run that exceeds its limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import onnxruntime

from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.reading.cuda import open_on_gpu

from ..model_file import ModelFile
from ..tensors import Array
from .base import Port, RunTimedOut, RuntimeLimits

_WATCH_SECONDS = 0.1
_NO_MEMORY = "Onnxruntime memory limit exceeded, memory allocation failed."
_DTYPES = {
    "tensor(float)": "<f4",
    "tensor(double)": "<f8",
    "tensor(int8)": "i1",
    "tensor(int16)": "<i2",
    "tensor(int32)": "<i4",
    "tensor(int64)": "<i8",
    "tensor(uint8)": "u1",
    "tensor(uint16)": "<u2",
    "tensor(bool)": "?",
}


def _port(argument: onnxruntime.NodeArg) -> Port:
    dtype = _DTYPES.get(argument.type)
    # ONNX Runtime lists no dimensions for a scalar and for an unknown rank; it checks both in a run
    shape = tuple(d if isinstance(d, int) else None for d in argument.shape) if argument.shape else None
    return Port(argument.name, np.dtype(dtype) if dtype else None, shape)


def _open(path: str, device: str, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    kind, _, number = device.upper().partition(":")
    try:
        if kind == "CPU":
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return open_on_gpu(path, options, int(number or 0))
    except ModelError as error:
        raise ModelError(f"unsupported device {device}: {error}, use CPU") from error
    except Exception as error:  # ONNX Runtime has a private exception class for each cause
        raise ModelError(f"not a model that ONNX Runtime can load: {_error_text(error)}") from error


class _RunWatch:
    """Stops runs that exceed their time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[float, onnxruntime.RunOptions]] = {}
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, timeout_ms: int) -> onnxruntime.RunOptions:
        """Start to watch a run; return the options with which the caller must start the run.

        The time limit of the run starts now. When `timeout_ms` milliseconds have passed, the watching thread sets
        `terminate` in the options, and ONNX Runtime stops the run.
        """
        options = onnxruntime.RunOptions()
        with self._lock:
            self._runs[id(options)] = (time.monotonic() + timeout_ms / 1000, options)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="run-watch", daemon=True)
                self._thread.start()
        self._busy.set()
        return options

    def end(self, options: onnxruntime.RunOptions) -> None:
        """Stop watching the run that was started with these options."""
        with self._lock:
            self._runs.pop(id(options), None)

    def _watch(self) -> None:
        while self._busy.wait():
            with self._lock:
                if not self._runs:
                    self._busy.clear()
                now = time.monotonic()
                for deadline, options in self._runs.values():
                    if now >= deadline:
                        options.terminate = True
            time.sleep(_WATCH_SECONDS)


_watch = _RunWatch()
_arena: list[int] = []


def _limit_arena(options: onnxruntime.SessionOptions, memory_mb: int) -> None:
    """Set `options` so that a session with them uses the memory arena that all sessions of this process share.

    The first call creates the arena with a limit of `memory_mb` MB. Later calls do not change the limit.
    """
    if not _arena:
        info = onnxruntime.OrtMemoryInfo(
            "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
        )
        config = onnxruntime.OrtArenaCfg({"max_mem": memory_mb << 20, "arena_extend_strategy": 1})
        onnxruntime.create_and_register_allocator(info, config)
        _arena.append(memory_mb)
    options.add_session_config_entry("session.use_env_allocators", "1")


def _error_text(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    if "Failed to allocate memory" in text or "is smaller than requested bytes" in text:
        return f"{_NO_MEMORY} ({text})"
    return text


class OnnxModel:
    """A session of ONNX Runtime; any thread may use it."""

    def __init__(self, file: ModelFile, device: str, limits: RuntimeLimits) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = limits.threads
        if limits.inter_op_threads > 1:
            # the default execution mode ignores `inter_op_num_threads`
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = limits.inter_op_threads
        options.log_severity_level = 3
        self._timeout_ms = limits.run_timeout_ms
        if limits.memory_mb:
            # the arena does not include the memory of the model's file
            if file.size > limits.memory_mb << 20:
                raise ModelError(
                    f"{_NO_MEMORY} (the model has {file.size} bytes, qa.backend-memory-mb is {limits.memory_mb})"
                )
            _limit_arena(options, limits.memory_mb)
        self._session = _open(file.path, device, options)
        self.inputs = tuple(_port(argument) for argument in self._session.get_inputs())
        # skips outputs that are sequences or maps, because the worker sends only tensors
        tensors = [argument for argument in self._session.get_outputs() if argument.type.startswith("tensor(")]
        if not tensors:
            kinds = ", ".join(f"{argument.name} {argument.type}" for argument in self._session.get_outputs())
            raise ModelError(f"the model has no tensor among its outputs: {kinds}")
        self.outputs = tuple(_port(argument) for argument in tensors)
        self._asked = [port.name for port in self.outputs]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once."""
        feeds = {port.name: array for port, array in zip(self.inputs, arrays, strict=True)}
        options = _watch.begin(self._timeout_ms) if self._timeout_ms else None
        try:
            results: list[Array] = self._session.run(self._asked, feeds, options)
        except Exception as error:
            if options is not None and options.terminate:
                raise RunTimedOut(_error_text(error)) from error
            raise InferenceFailed(_error_text(error)) from error
        finally:
            if options is not None:
                _watch.end(options)
        return results
