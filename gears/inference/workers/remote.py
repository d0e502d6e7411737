"""A model that inference workers hold, as the rest of the worker sees it: a compiled model like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..backends.base import Port
from ..tensors import Array


class Runs(Protocol):
    """Runs models by number."""

    def run(self, number: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model once."""

    def warm(self, number: int, rows: int, length: int) -> None:
        """Run a token model once in a shape, wherever it is loaded."""


class RemoteModel:
    """A model in all inference workers; they forget it when nothing refers to this object any more."""

    def __init__(self, workers: Runs, number: int, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        self._workers = workers
        self._number = number
        self.inputs = inputs
        self.outputs = outputs

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once, in one of them."""
        return self._workers.run(self._number, arrays)

    def warm(self, rows: int, length: int) -> None:
        """Run a token model once in this shape, in all of them."""
        self._workers.warm(self._number, rows, length)


def ports(described: Sequence[Sequence[Any]]) -> tuple[Port, ...]:
    """Ports as an inference worker describes them."""
    return tuple(
        Port(name, None if dtype is None else np.dtype(dtype), None if shape is None else tuple(shape))
        for name, dtype, shape in described
    )
