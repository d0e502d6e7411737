"""ONNX models in OpenVINO on CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import numpy as np
import openvino
from openvino.frontend import FrontEnd, FrontEndManager

from qa_cluster.reading.precisions import openvino_settings, precision_of

from ..model_file import ModelFile
from ..tensors import Array
from .base import Port

_UNSUPPORTED = frozenset({"string", "dynamic", "undefined"})


@cache
def _core() -> openvino.Core:
    return openvino.Core()


@cache
def _onnx() -> FrontEnd:
    return FrontEndManager().load_by_framework("onnx")


def _read(file: ModelFile) -> openvino.Model:
    # frontends of other formats must not try it: TensorFlow's accepts text, slowly, and prints its complaints
    if not _onnx().supported(file.path):
        raise RuntimeError("no ONNX file")
    return _core().read_model(file.path)


def _port(port: openvino.ConstOutput, position: int) -> Port:
    type_name = port.get_element_type().get_type_name()
    if type_name in _UNSUPPORTED:
        raise RuntimeError(f"port {position} has type {type_name}")
    name = port.get_any_name() if port.get_names() else str(position)
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(None if d.is_dynamic else d.get_length() for d in shape)
    return Port(name, np.dtype(port.get_element_type().to_dtype()), dims)


class OpenVinoModel:
    """A compiled model with one request, which one thread uses at a time."""

    def __init__(self, file: ModelFile, threads: int) -> None:
        model = _read(file)
        if any(op.get_type_name() == "Loop" for op in model.get_ops()):
            raise RuntimeError("a loop may never end, and only runs of ONNX Runtime can be stopped")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": threads,
            **openvino_settings(precision_of(model)),
            # with pinning, every worker of the host would use the same first cores
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled = _core().compile_model(model, "CPU", settings)
        self._request = self._compiled.create_infer_request()
        self._lock = threading.Lock()
        self.inputs = tuple(_port(port, i) for i, port in enumerate(self._compiled.inputs))
        self.outputs = tuple(_port(port, i) for i, port in enumerate(self._compiled.outputs))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once; it copies inputs and outputs, so that no array refers to the request's memory later."""
        with self._lock:
            results = self._request.infer(list(arrays), share_inputs=False, share_outputs=False)
            return [np.asarray(results[i]) for i in range(len(self.outputs))]
