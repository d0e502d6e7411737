"""The interface of a compiled model, which every runtime implements, and the limits of a runtime.

A *token model* has the inputs `input_ids`, `attention_mask` and optionally `token_type_ids`. Their shape is [batch,
length] with two dynamic dimensions: each run may have different sizes. The outputs have the same two dimensions. The
worker can pad requests to a token model and run them in one batch. An encoder is also a token model, but its only
output is one vector for each row (`vector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qa_cluster.errors import InferenceFailed
from qa_cluster.vectors.encoder_manifest import VECTOR_OUTPUT

from ..tensors import Array

TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class RunTimedOut(InferenceFailed):
    """A run took longer than its limit."""


class OutOfMemory(InferenceFailed):
    """A run needed more memory than its process may use."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. In `shape`, a dynamic dimension is None. `shape` itself is None if the rank is dynamic or
    unknown.
    """

    name: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[int | None, ...] | None

    @property
    def is_vector(self) -> bool:
        """Whether this output is one vector for each row. Its size does not depend on the length of the rows."""
        shape = self.shape or ()
        return self.name == VECTOR_OUTPUT and len(shape) == 2 and shape[0] is None and shape[1] is not None


class CompiledModel(Protocol):
    """A model in a runtime."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once with the arrays `arrays`, in the order of `inputs`.

        Returns the outputs in the order of `outputs`. The caller owns the returned arrays.
        """


def is_token_model(model: CompiledModel) -> bool:
    """Return whether requests to this model can be padded and batched together."""
    names = {port.name for port in model.inputs}
    if not {"input_ids", "attention_mask"} <= names <= set(TOKEN_INPUTS):
        return False
    free = all(port.shape == (None, None) for port in model.inputs)
    free = free and (makes_vectors(model) or all(port.shape == (None, None) for port in model.outputs))
    return free and all(port.dtype is not None and port.dtype.kind == "i" for port in model.inputs)


def makes_vectors(model: CompiledModel) -> bool:
    """Return whether this model has the outputs of an encoder."""
    return len(model.outputs) == 1 and model.outputs[0].is_vector


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The limits of a runtime.

    Attributes:
        threads: the number of threads that work on one operator of a model.
        inter_op_threads: the number of operators of a model that may run at the same time.
        run_timeout_ms: the time limit of a run, if the runtime can stop runs; 0: no limit.
        memory_mb: the limit of the memory that all models of ONNX Runtime in the process use together; 0: no limit.
        compiled_folder: the folder for compiled models; empty: compiled models are not stored.
    """

    threads: int = 1
    inter_op_threads: int = 1
    run_timeout_ms: int = 0
    memory_mb: int = 0
    compiled_folder: str = ""


def blank_inputs(inputs: Sequence[Port], rows: int, length: int) -> list[Array]:
    """Return placeholder inputs for a token model. A first run with these inputs makes later runs of the shape fast."""
    return [np.full((rows, length), 1 if port.name == "attention_mask" else 0, dtype=port.dtype) for port in inputs]
