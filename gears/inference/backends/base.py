"""Declares the interface of a compiled model, which is the same for all runtimes, and the limits of a runtime.

A *token model* is one whose inputs are `input_ids`, `attention_mask` and perhaps `token_type_ids`, all [batch, length]
with both dimensions free, and whose outputs have the same two dimensions: its requests may be padded and batched
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..tensors import Array

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
        """Run the model once; the caller owns the arrays that it returns."""


def is_token_model(model: CompiledModel) -> bool:
    """Whether requests to this model may be padded and batched together."""
    names = {port.name for port in model.inputs}
    if not {"input_ids", "attention_mask"} <= names <= set(TOKEN_INPUTS):
        return False
    free = all(port.shape == (None, None) for port in (*model.inputs, *model.outputs))
    return free and all(port.dtype is not None and port.dtype.kind == "i" for port in model.inputs)


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The limits of a runtime: its threads, its memory, and the time of a run if runs can be stopped (0: no limit).

    `compiled_folder` is where it keeps models that it has compiled; empty: nowhere.
    """

    threads: int = 1
    inter_op_threads: int = 1
    run_timeout_ms: int = 0
    memory_mb: int = 0
    compiled_folder: str = ""


def blank_inputs(inputs: Sequence[Port], rows: int, length: int) -> list[Array]:
    """Inputs of a token model in this shape, of no meaning: to run it once before a question needs the shape."""
    return [np.full((rows, length), 1 if port.name == "attention_mask" else 0, dtype=port.dtype) for port in inputs]
