"""ONNX models in ONNX Runtime: on a GPU, and on CPU those that OpenVINO does not take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime

from qa_cluster.errors import InferenceFailed, ModelError

from .backends import Port
from .tensors import Array

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
    shape = None if argument.shape is None else tuple(d if isinstance(d, int) else None for d in argument.shape)
    return Port(argument.name, np.dtype(dtype) if dtype else None, shape)


def _providers(device: str) -> list[object]:
    kind, _, number = device.upper().partition(":")
    if kind == "CPU":
        return ["CPUExecutionProvider"]
    if kind == "GPU" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return [("CUDAExecutionProvider", {"device_id": int(number or 0)})]
    raise ModelError(f"unsupported device {device}: the worker's environment has no runtime for it, use CPU")


class OnnxModel:
    """A session of ONNX Runtime."""

    def __init__(self, blob: bytes, device: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        providers = _providers(device)
        try:
            self._session = onnxruntime.InferenceSession(blob, options, providers=providers)
        except Exception as error:  # ONNX Runtime has one exception class per cause, all private
            raise ModelError(f"not a model that ONNX Runtime can load: {' '.join(str(error).split())[:500]}") from error
        self.inputs = tuple(_port(argument) for argument in self._session.get_inputs())
        self.outputs = tuple(_port(argument) for argument in self._session.get_outputs())

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once."""
        feeds = {port.name: array for port, array in zip(self.inputs, arrays, strict=True)}
        try:
            results: list[Array] = self._session.run(None, feeds)
        except Exception as error:
            raise InferenceFailed(" ".join(str(error).split())[:500]) from error
        return results
