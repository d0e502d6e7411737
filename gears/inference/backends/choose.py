"""Model backends: what a compiled model must offer, and which runtime takes a model.

ONNX files run in OpenVINO on CPU, in ONNX Runtime where OpenVINO cannot take them, a memory limit is set or a GPU is
asked for; TorchScript runs in torch, if the worker's environment has it. A *token model* is one whose inputs are
`input_ids`, `attention_mask` and perhaps `token_type_ids`, all [batch, length] with both dimensions free, and whose
outputs have the same two dimensions: its requests may be padded and batched together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qa_cluster.errors import ModelError

from ..model_file import ModelFile
from ..tensors import Array

logger = logging.getLogger(__name__)
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output; a free dimension of `shape` is None, and so is `shape` when even the rank is free."""

    name: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[int | None, ...] | None


class CompiledModel(Protocol):
    """A model in a runtime."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once; the arrays that come back are the caller's."""


def is_token_model(model: CompiledModel) -> bool:
    """Whether requests to this model may be padded and batched together."""
    names = {port.name for port in model.inputs}
    if not {"input_ids", "attention_mask"} <= names <= set(TOKEN_INPUTS):
        return False
    free = all(port.shape == (None, None) for port in (*model.inputs, *model.outputs))
    return free and all(port.dtype is not None and port.dtype.kind == "i" for port in model.inputs)


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """What a runtime may use, and how long a run may take where it can be stopped (0: no limit)."""

    threads: int = 1
    inter_op_threads: int = 1
    run_timeout_ms: int = 0
    memory_mb: int = 0


def load_model(backend: str, device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
    """Compile a model; ModelError tells in one line why it cannot be."""
    if backend.upper() == "TORCH":
        return _load_torch(device, file, limits)
    if backend.upper() != "ONNX":
        raise ModelError(f"unsupported backend {backend}: convert the model to ONNX and store it with backend ONNX")
    # only ONNX Runtime can be held to a memory limit
    if device.upper().startswith("CPU") and not limits.memory_mb:
        try:
            from .openvino import OpenVinoModel

            return OpenVinoModel(file, limits.threads)
        except Exception as error:  # OpenVINO raises bare RuntimeError; ONNX Runtime decides whether the model is bad
            logger.info("OpenVINO does not take the model, trying ONNX Runtime: %s", _one_line(error))
    from .onnx import OnnxModel

    return OnnxModel(file, device, limits)


def _load_torch(device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
    try:
        from .torch import TorchModel
    except ImportError as error:
        raise torch_missing(error) from error
    return TorchModel(file, device, limits)


def torch_missing(error: ImportError) -> ModelError:
    """The error for a worker whose environment has no usable torch."""
    reason = "" if getattr(error, "name", None) == "torch" else f" ({_one_line(error)})"
    return ModelError(
        f"the worker's environment has no torch{reason}: install qa-cluster with its extra torch there, "
        "or export the model to ONNX"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
