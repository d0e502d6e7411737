"""Ways to run a reader offline: OpenVINO and ONNX Runtime on the exported file, PyTorch on the checkpoint.

All take padded int64 arrays and return start and end logits. Serving has its own backends; these are for measuring.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput, ModelError
from .windows import Arrays

Logits = tuple[NDArray[np.float32], NDArray[np.float32]]
Runner = Callable[[Arrays], Logits]
RUNTIMES = ("openvino", "onnxruntime")
MAX_THREADS = 1024


def open_runner(model: Path, runtime: str, *, threads: int) -> Runner:
    """Load an ONNX file into `runtime` and return what runs it."""
    if runtime not in RUNTIMES:
        raise InvalidInput(f"unknown runtime {runtime!r}, must be one of {', '.join(RUNTIMES)}")
    if not 1 <= threads <= MAX_THREADS:
        raise InvalidInput(f"threads is {threads}, must be from 1 to {MAX_THREADS}")
    if not model.is_file():
        raise ModelError(f"no model file {str(model)!r}")
    try:
        return _openvino(model, threads) if runtime == "openvino" else _onnxruntime(model, threads)
    except ImportError:
        raise
    except Exception as error:  # both runtimes raise bare RuntimeError or their own unrelated types
        raise ModelError(f"{runtime} cannot load {str(model)!r}: {error}") from error


def _openvino(model: Path, threads: int) -> Runner:
    import openvino

    # float32 between the int8 kernels: the default would let newer CPUs fall to bf16, and figures would differ by host
    compiled = openvino.Core().compile_model(
        str(model),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()

    def run(arrays: Arrays) -> Logits:
        outputs = request.infer(arrays)
        return np.array(outputs[0]), np.array(outputs[1])

    return run


def _onnxruntime(model: Path, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def run(arrays: Arrays) -> Logits:
        start, end = session.run(["start_logits", "end_logits"], arrays)
        return start, end

    return run
