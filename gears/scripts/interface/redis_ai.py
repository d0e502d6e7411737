"""The module `redisAI` for RedisGears scripts: tensors, and runs of models and scripts in the queues of their devices.

>>> import redisAI  # doctest: +SKIP
>>> async def score(record):  # doctest: +SKIP
...     runner = redisAI.createModelRunner("bert-qa{06S}")
...     redisAI.modelRunnerAddInput(runner, "input_ids", redisAI.getTensorFromKey(record["key"]))
...     start, end = await redisAI.modelRunnerRunAsync(runner)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...inference.tensors import DTYPES, Array, Tensor, dtype_name, from_wire, to_blob
from ...shard.failures import GearsError
from ...shard.link import Reply, raise_on_error
from ..host.script_host import current_host
from .dag_runner import DAGRunner, createDAGRunner
from .model_runners import (
    ModelRunner,
    ScriptRunner,
    createModelRunner,
    createScriptRunner,
    modelRunnerAddInput,
    modelRunnerAddOutput,
    modelRunnerRun,
    modelRunnerRunAsync,
    scriptRunnerAddInput,
    scriptRunnerAddInputList,
    scriptRunnerAddOutput,
    scriptRunnerRun,
    scriptRunnerRunAsync,
)

__all__ = [
    "DAGRunner",
    "ModelRunner",
    "ScriptRunner",
    "Tensor",
    "createDAGRunner",
    "createModelRunner",
    "createScriptRunner",
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
    "scriptRunnerAddInput",
    "scriptRunnerAddInputList",
    "scriptRunnerAddOutput",
    "scriptRunnerRun",
    "scriptRunnerRunAsync",
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


def createTensorFromValues(type: str, dims: Sequence[int], values: Iterable[float | str]) -> Tensor:
    """Return a tensor of numbers or of strings.

    Args:
        type: RedisAI's name of the type of the values, such as ``FLOAT``, ``INT64`` or ``STRING``, in upper or lower
            case.
        dims: the length of each dimension.
        values: all values, row by row.

    Raises:
        GearsError: the type, a dimension or a value is invalid, or the number of values does not match `dims`.
    """
    kind = DTYPES.get(type.upper())
    if kind is None and type.upper() != "STRING":
        raise GearsError(f"ERR invalid data type: {type}")
    listed = list(values)
    shape = _dims(dims)
    if len(listed) != math.prod(shape):
        raise GearsError("ERR data length does not match tensor shape and type")
    if kind is None:
        return Tensor(_texts(listed).reshape(shape))
    if any(not isinstance(value, (int, float, np.number)) for value in listed):
        raise GearsError("values arguments must be double")
    return Tensor(_numbers(listed, kind).reshape(shape))


def _texts(values: list[Any]) -> Array:
    if any(not isinstance(value, str) for value in values):
        raise GearsError("values arguments of a STRING tensor must be str")
    if any("\0" in value for value in values):
        raise GearsError("ERR C-string value contains null character")
    return np.array(values, dtype=object)


def _numbers(values: list[Any], kind: np.dtype[Any]) -> Array:
    try:
        numbers: Array = np.array(values).astype(kind)
    except (OverflowError, ValueError, TypeError) as error:
        raise GearsError(f"ERR invalid value: {error}") from error
    return numbers


def createTensorFromBlob(type: str, dims: Sequence[int], blob: bytes | bytearray | memoryview) -> Tensor:
    """Return a tensor whose values are given as packed bytes, row by row.

    `type` and `dims` are as in `createTensorFromValues`.
    """
    return Tensor(from_wire(type, _dims(dims), bytes(blob)))


def createTensorFromArray(array: Array) -> Tensor:
    """Return a tensor that uses a numpy array. RedisGears does not have this function."""
    dtype_name(array)
    return Tensor(array)


def _set_command(key: str, tensor: Tensor) -> tuple[str | int | bytes, ...]:
    array = tensor.array
    return ("AI.TENSORSET", key, dtype_name(array), *(array.shape or (1,)), "BLOB", to_blob(array))


def setTensorInKey(key: str, tensor: Tensor) -> None:
    """Store a tensor at a key of this shard. The write is replicated.

    Raises GearsError if the key has a value that is not a tensor, or belongs to another shard.
    """
    _set_reply(key, current_host().execute_many([_set_command(key, tensor)])[0])


def msetTensorsInKeyspace(tensors: Mapping[str, Tensor]) -> None:
    """Store several tensors by key, in one round trip.

    If writes fail, raise the GearsError of the first failed key after all writes.
    """
    replies = current_host().execute_many([_set_command(key, tensor) for key, tensor in tensors.items()])
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
    """Return the tensor at a key of this shard. Raise GearsError if the key is missing or has no tensor."""
    return mgetTensorsFromKeyspace([key])[0]


def mgetTensorsFromKeyspace(keys: Sequence[str]) -> list[Tensor]:
    """Return the tensors of several keys in the order of the keys, read in one round trip.

    Raises GearsError if one of the keys is missing or has no tensor.
    """
    replies = current_host().execute_many([("AI.TENSORGET", key, "META", "BLOB") for key in keys])
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
    """Return all values of the tensor in one list, row by row."""
    values: list[Any] = tensor.array.reshape(-1).tolist()
    return values


def tensorGetDataAsBlob(tensor: Tensor) -> bytearray:
    """Return the values of the tensor as packed bytes, row by row."""
    return bytearray(to_blob(tensor.array))


def tensorGetDims(tensor: Tensor) -> tuple[int, ...]:
    """Return the length of each dimension of the tensor."""
    return tuple(tensor.array.shape)


def tensorGetArray(tensor: Tensor) -> Array:
    """Return the numpy array of the tensor itself, not a copy. RedisGears does not have this function."""
    return tensor.array
