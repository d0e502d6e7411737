"""Runs an exported model in this process: with OpenVINO on the CPU, or with ONNX Runtime on the CPU or on CUDA.

A *runner* is a function that runs a model once. It takes padded int64 arrays, and returns the start and end logits of a
reader or the vectors of an encoder. Only one thread at a time may use a runner. The local pipeline and the measurements
use runners. The shards run models with other code (`gears/inference/backends`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import InvalidInput, ModelError

from .precisions import openvino_settings, precision_of
from .windows import Arrays

Outputs = list[NDArray[np.float32]]
Logits = tuple[NDArray[np.float32], NDArray[np.float32]]
Runner = Callable[[Arrays], Logits]
VectorRunner = Callable[[Arrays], NDArray[np.float32]]
RUNTIMES = ("openvino", "onnxruntime")
MAX_THREADS = 1024

_CUDA = re.compile(r"cuda(?::(\d{1,4}))?\Z")


def open_runner(model: Path, runtime: str, *, threads: int, device: str = "cpu") -> Runner:
    """Load an ONNX file into `runtime` and return its runner.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``; CUDA needs the runtime ``onnxruntime`` from the package
            onnxruntime-gpu.
    """
    run = _opened(model, runtime, threads, device)

    def logits(arrays: Arrays) -> Logits:
        start, end = run(arrays)[:2]
        return start, end

    return logits


def open_vectors(model: Path, runtime: str, *, threads: int, device: str = "cpu") -> VectorRunner:
    """Load the ONNX file of an encoder, as `open_runner` does. The runner returns a vector for each row."""
    run = _opened(model, runtime, threads, device)
    return lambda arrays: run(arrays)[0]


def _opened(model: Path, runtime: str, threads: int, device: str) -> Callable[[Arrays], Outputs]:
    if runtime not in RUNTIMES:
        raise InvalidInput(f"unknown runtime {runtime!r}, must be one of {', '.join(RUNTIMES)}")
    if not 1 <= threads <= MAX_THREADS:
        raise InvalidInput(f"threads is {threads}, must be from 1 to {MAX_THREADS}")
    gpu = _gpu(device, runtime)
    if not model.is_file():
        raise ModelError(f"no model file {str(model)!r}")
    try:
        return _openvino(model, threads) if runtime == "openvino" else _onnxruntime(model, threads, gpu)
    except (ImportError, ModelError):
        raise
    except Exception as error:  # both runtimes raise bare RuntimeError or their own unrelated types
        raise ModelError(f"{runtime} cannot load {str(model)!r}: {error}") from error


def _gpu(device: str, runtime: str) -> int | None:
    """Return the number of the GPU; None for the CPU."""
    if device == "cpu":
        return None
    named = _CUDA.match(device)
    if named is None:
        raise InvalidInput(f"unknown device {device!r}, must be cpu, cuda or cuda:N")
    if runtime != "onnxruntime":
        raise InvalidInput(f"device {device!r} needs the runtime onnxruntime, got {runtime!r}")
    return int(named[1] or 0)


def _openvino(model: Path, threads: int) -> Callable[[Arrays], Outputs]:
    from .lean_openvino import openvino

    core = openvino.Core()
    network = core.read_model(str(model))
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        **openvino_settings(precision_of(network)),
    }
    compiled = core.compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()

    def run(arrays: Arrays) -> Outputs:
        # With one thread, `infer` loses every error and returns the outputs of the previous run.
        request.start_async(arrays)
        request.wait()
        return [np.array(request.get_output_tensor(number).data) for number in range(len(compiled.outputs))]

    return run


def _onnxruntime(model: Path, threads: int, gpu: int | None) -> Callable[[Arrays], Outputs]:
    import onnxruntime

    from .cuda import open_on_gpu

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if gpu is None:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    else:
        try:
            session = open_on_gpu(model, options, gpu)
        except ModelError as error:
            raise ModelError(f"device 'cuda:{gpu}' cannot be used: {error}") from error

    def run(arrays: Arrays) -> Outputs:
        return list(session.run(None, arrays))

    return run
