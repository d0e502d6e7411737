"""ONNX models in OpenVINO on CPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
import openvino

from .backends import Port
from .tensors import Array

_UNSUPPORTED = frozenset({"string", "dynamic", "undefined"})


@cache
def _core() -> openvino.Core:
    return openvino.Core()


def _port(port: openvino.ConstOutput, position: int) -> Port:
    type_name = port.get_element_type().get_type_name()
    if type_name in _UNSUPPORTED:
        raise RuntimeError(f"port {position} has type {type_name}")
    name = port.get_any_name() if port.get_names() else str(position)
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(None if d.is_dynamic else d.get_length() for d in shape)
    return Port(name, np.dtype(port.get_element_type().to_dtype()), dims)


class OpenVinoModel:
    """A compiled model with one request; used by one thread at a time."""

    def __init__(self, blob: bytes, threads: int) -> None:
        model = _core().read_model(io.BytesIO(blob))
        # float32 between the int8 kernels: the default falls to bf16 on newer CPUs, and answers would differ by host
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            # every worker of the host would pin its threads to the same first cores
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled = _core().compile_model(model, "CPU", settings)
        self._request = self._compiled.create_infer_request()
        self.inputs = tuple(_port(port, i) for i, port in enumerate(self._compiled.inputs))
        self.outputs = tuple(_port(port, i) for i, port in enumerate(self._compiled.outputs))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once. Inputs are copied into the request and outputs out of it, so nothing outlives the call."""
        results = self._request.infer(list(arrays), share_inputs=False, share_outputs=False)
        return [np.asarray(results[i]) for i in range(len(self.outputs))]
