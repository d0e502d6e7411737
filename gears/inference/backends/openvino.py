"""ONNX models in OpenVINO on CPU: those whose shapes can be checked before a run.

A run that fails in the middle, because shapes do not fit each other, leaves OpenVINO's graph in a state in which later
runs read memory of others. So only two kinds of models run here: those with fixed shapes throughout, and token models,
whose inputs have one shape, up to a length that is found out when the model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import numpy as np
import openvino
from openvino.frontend import FrontEnd, FrontEndManager

from qa_cluster.errors import InferenceFailed
from qa_cluster.reading.precisions import openvino_settings, precision_of

from ..model_file import ModelFile
from ..tensors import Array
from .base import Port, is_token_model

_UNSUPPORTED = frozenset({"string", "dynamic", "undefined"})
_ANY_LENGTH = 1 << 20
_USUAL_LENGTH = 512


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


def _takes(model: openvino.Model, length: int) -> bool:
    tried = model.clone()
    try:
        tried.reshape({port: openvino.PartialShape([2, length]) for port in tried.inputs})
    except RuntimeError:
        return False
    return True


def _longest(model: openvino.Model) -> int:
    """How many tokens a row of a token model may have: often, it has a table of so many positions."""
    if _takes(model, _ANY_LENGTH):
        return _ANY_LENGTH
    most, too_many = 0, _ANY_LENGTH
    tries = [_USUAL_LENGTH, _USUAL_LENGTH + 1]
    while too_many - most > 1:
        length = tries.pop(0) if tries and most < tries[0] < too_many else (most + too_many) // 2
        if _takes(model, length):
            most = length
        else:
            too_many = length
    return most


def _port(port: openvino.ConstOutput | openvino.Output, position: int) -> Port:
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
        self.inputs = tuple(_port(port, i) for i, port in enumerate(model.inputs))
        self.outputs = tuple(_port(port, i) for i, port in enumerate(model.outputs))
        self._longest = _longest(model) if is_token_model(self) else None
        if self._longest is None and model.is_dynamic():
            raise RuntimeError("only ONNX Runtime checks shapes that are not fixed")
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

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once; it copies inputs and outputs, so that no array refers to the request's memory later.

        It raises InferenceFailed for rows that are too long, and with OpenVINO's reason when a run fails.
        """
        if self._longest is not None and arrays[0].shape[1] > self._longest:
            raise InferenceFailed(f"the model takes rows of up to {self._longest} tokens, got {arrays[0].shape[1]}")
        with self._lock:
            try:
                # `infer` loses every error where INFERENCE_NUM_THREADS is 1: its outputs are then those of the run
                # before, which may have been another client's
                self._request.start_async(list(arrays), share_inputs=False)
                self._request.wait()
            except RuntimeError as error:
                raise InferenceFailed(" ".join(str(error).split())[-400:]) from error
            return [np.array(self._request.get_output_tensor(i).data) for i in range(len(self.outputs))]
