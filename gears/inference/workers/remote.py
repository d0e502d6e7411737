"""A model in the inference workers, with the interface of a compiled model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..backends.base import Port
from ..tensors import Array


class RemoteRunner(Protocol):
    """Runs models by their numbers."""

    def run(self, number: int, arrays: Sequence[Array]) -> list[Array]:
        """Run a model once. `number` is the model's number in the pool."""

    def warm(self, number: int, rows: int, length: int) -> None:
        """Run a token model once in a shape, in every process that has loaded it."""


class RemoteModel:
    """A model in all inference workers. The workers drop the model when this object has no references any more."""

    def __init__(self, workers: RemoteRunner, number: int, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        self._workers = workers
        self._number = number
        self.inputs = inputs
        self.outputs = outputs

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once, in one inference worker."""
        return self._workers.run(self._number, arrays)

    def warm(self, rows: int, length: int) -> None:
        """Run a token model once in this shape, in all inference workers."""
        self._workers.warm(self._number, rows, length)


def ports(described: Sequence[Sequence[Any]]) -> tuple[Port, ...]:
    """Return the ports of a model from the description of an inference worker."""
    return tuple(
        Port(name, None if dtype is None else np.dtype(dtype), None if shape is None else tuple(shape))
        for name, dtype, shape in described
    )
