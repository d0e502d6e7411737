"""The module `redisAI` of RedisGears scripts: tensors, and models run through the batcher.

>>> import redisAI  # doctest: +SKIP
>>> async def score(record):  # doctest: +SKIP
...     runner = redisAI.createModelRunner("bert-qa{06S}")
...     redisAI.modelRunnerAddInput(runner, "input_ids", redisAI.getTensorFromKey(record["key"]))
...     start, end = await redisAI.modelRunnerRunAsync(runner)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .failures import GearsError
from .link import Reply, raise_on_error
from .runtime import current_runtime
from .tensors import DTYPES, Array, Tensor, dtype_name, from_wire, to_blob

__all__ = [
    "ModelRunner",
    "Tensor",
    "createModelRunner",
    "createTensorFromArray",
    "createTensorFromBlob",
    "createTensorFromValues",
    "getTensorFromKey",
    "mgetTensorsFromKeyspace",
    "modelRunnerAddInput",
    "modelRunnerAddOutput",
    "modelRunnerRun",
    "modelRunnerRunAsync",
    "msetTensorsInKeyspace",
    "setTensorInKey",
    "tensorGetArray",
    "tensorGetDataAsBlob",
    "tensorGetDims",
    "tensorToFlatList",
]


def _dims(dims: Sequence[int]) -> list[int]:
    if any(not isinstance(dim, (int, np.integer)) or dim <= 0 for dim in dims):
        raise GearsError(f"ERR invalid or negative value found in tensor shape: {list(dims)}")
    return [int(dim) for dim in dims]


def createTensorFromValues(type: str, dims: Sequence[int], values: Iterable[float]) -> Tensor:
    """A tensor of numbers."""
    kind = DTYPES.get(type.upper())
    if kind is None:
        raise GearsError(f"ERR invalid data type: {type}")
    listed = list(values)
    if any(not isinstance(value, (int, float, np.number)) for value in listed):
        raise GearsError("values arguments must be double")
    shape = _dims(dims)
    if len(listed) != int(np.prod(shape, dtype=np.int64)):
        raise GearsError("ERR data length does not match tensor shape and type")
    return Tensor(np.array(listed).astype(kind).reshape(shape))


def createTensorFromBlob(type: str, dims: Sequence[int], blob: bytes | bytearray | memoryview) -> Tensor:
    """A tensor over packed bytes."""
    return Tensor(from_wire(type, _dims(dims), bytes(blob)))


def createTensorFromArray(array: Array) -> Tensor:
    """A tensor over a numpy array (not in RedisGears)."""
    dtype_name(array)
    return Tensor(array)


def _set_command(key: str, tensor: Tensor) -> tuple[str | int | bytes, ...]:
    array = tensor.array
    return ("AI.TENSORSET", key, dtype_name(array), *(array.shape or (1,)), "BLOB", to_blob(array))


def setTensorInKey(key: str, tensor: Tensor) -> None:
    """Store a tensor; replicated like any write."""
    _set_reply(key, current_runtime().execute_many([_set_command(key, tensor)])[0])


def msetTensorsInKeyspace(tensors: Mapping[str, Tensor]) -> None:
    """Store several tensors in one round trip."""
    replies = current_runtime().execute_many([_set_command(key, tensor) for key, tensor in tensors.items()])
    for key, reply in zip(tensors, replies, strict=True):
        _set_reply(key, reply)


def _set_reply(key: str, reply: Reply) -> None:
    if isinstance(reply, Exception):
        text = str(reply)
        if text.startswith("WRONGTYPE"):
            raise GearsError(f"ERR Key is already set with non tensor values. ({key})")
        if text.startswith("MOVED"):
            raise GearsError(f"Given key is not in the current shard: {key}")
        raise GearsError(text)


def getTensorFromKey(key: str) -> Tensor:
    """The tensor at a key."""
    return mgetTensorsFromKeyspace([key])[0]


def mgetTensorsFromKeyspace(keys: Sequence[str]) -> list[Tensor]:
    """Tensors of several keys, in one round trip."""
    replies = current_runtime().execute_many([("AI.TENSORGET", key, "META", "BLOB") for key in keys])
    return [_tensor(key, reply) for key, reply in zip(keys, replies, strict=True)]


def _tensor(key: str, reply: Reply) -> Tensor:
    if isinstance(reply, Exception):
        text = str(reply)
        if text.startswith("WRONGTYPE"):
            raise GearsError(f"ERR key is not a tensor: {key}")
        if text.startswith("MOVED"):
            raise GearsError(f"Given key is not in the current shard: {key}")
        if "empty" in text:
            raise GearsError(f"ERR tensor key is empty: {key}")
        raise_on_error(reply)
    _, dtype, _, dims, _, blob = reply
    return Tensor(from_wire(dtype.decode(), dims, blob))


def tensorToFlatList(tensor: Tensor) -> list[Any]:
    """All values, row by row."""
    values: list[Any] = tensor.array.reshape(-1).tolist()
    return values


def tensorGetDataAsBlob(tensor: Tensor) -> bytearray:
    """The packed bytes."""
    return bytearray(to_blob(tensor.array))


def tensorGetDims(tensor: Tensor) -> tuple[int, ...]:
    """The shape."""
    return tuple(tensor.array.shape)


def tensorGetArray(tensor: Tensor) -> Array:
    """The numpy array itself, not copied (not in RedisGears)."""
    return tensor.array


class ModelRunner:
    """One run of a model: inputs and outputs are added, then it is run, once."""

    def __init__(self, key: str, ref: int) -> None:
        self.key = key
        self._ref = ref
        self._inputs: list[Array] | None = []
        self._outputs = 0

    def _open(self) -> list[Array]:
        if self._inputs is None:
            raise GearsError("PyGraphRunner is invalid")
        return self._inputs

    def add_input(self, tensor: Tensor) -> None:
        """Add the next input."""
        self._open().append(tensor.array)

    def add_output(self) -> None:
        """Ask for one more output."""
        self._open()
        self._outputs += 1

    async def run(self) -> list[Tensor]:
        """Run the model; other work of the shard goes on meanwhile."""
        inputs = self._open()
        self._inputs = None
        arrays = await current_runtime().models.run(self._ref, inputs)
        if self._outputs > len(arrays):
            raise GearsError(f"ERR model {self.key} has {len(arrays)} outputs, {self._outputs} were asked for")
        return [Tensor(array) for array in arrays[: self._outputs or len(arrays)]]


def createModelRunner(key: str) -> ModelRunner:
    """Prepare a run of the model at `key`."""
    return ModelRunner(key, current_runtime().models.reference(key))


def modelRunnerAddInput(runner: ModelRunner, name: str | Tensor, tensor: Tensor | str) -> int:
    """Add the next input; the name is ignored (and may come last), the order counts."""
    given = tensor if isinstance(tensor, Tensor) else name
    if not isinstance(given, Tensor):
        raise GearsError(f"ERR a model's input must be a tensor, got {type(tensor).__name__}")
    runner.add_input(given)
    return 1


def modelRunnerAddOutput(runner: ModelRunner, name: str = "") -> int:
    """Ask for the next output; the name is ignored."""
    runner.add_output()
    return 1


def modelRunnerRun(runner: ModelRunner) -> list[Tensor]:
    """Refuse: the worker's loop must not wait for a model."""
    raise GearsError("Cannot execute onnxruntime model synchronously, use async execution instead")


def modelRunnerRunAsync(runner: ModelRunner) -> asyncio.Future[list[Tensor]]:
    """Run the model; await the result."""
    return asyncio.ensure_future(runner.run())
