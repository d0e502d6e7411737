"""Converts tensors between numpy arrays and the wire format (dtype, shape, blob)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..shard.failures import GearsError

Array = NDArray[Any]
DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype("<f4"),
    "DOUBLE": np.dtype("<f8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(array: Array) -> str:
    """Return the wire name of an array's type; raise GearsError if the wire format lacks the type."""
    if array.dtype.kind in "OUS":
        return "STRING"
    name = _NAMES.get(array.dtype.newbyteorder("<") if array.dtype.byteorder == "=" else array.dtype)
    if name is None:
        raise GearsError(f"ERR there is no tensor type for {array.dtype}")
    return name


def from_wire(dtype: str, dims: Sequence[int], blob: bytes) -> Array:
    """Return the array that has the type `dtype` (a name of the wire format), the shape `dims` and the bytes `blob`.

    A numeric array is a read-only view of `blob`. An array of strings is a copy. Raises GearsError if the bytes do not
    match the type and the shape.
    """
    shape = tuple(dims)
    count = math.prod(shape)
    if dtype.upper() == "STRING":
        texts = blob.removesuffix(b"\0").split(b"\0")  # the last NUL may be missing
        if len(texts) != count:
            raise GearsError("ERR Number of string elements in data blob does not match tensor length")
        return np.array([text.decode() for text in texts], dtype=object).reshape(shape)
    kind = DTYPES.get(dtype.upper())
    if kind is None:
        raise GearsError(f"ERR invalid data type: {dtype}")
    if len(blob) != count * kind.itemsize:
        raise GearsError("ERR data length does not match tensor shape and type")
    return np.frombuffer(blob, dtype=kind).reshape(shape)


def parse_values(dtype: str, dims: Sequence[str], values: Sequence[str]) -> Array:
    """Return the array that `AI.TENSORSET key dtype dim.. VALUES value..` stores; if there are no values, zeros or
    empty strings.
    """
    if not dims or any(not dim.isdigit() or int(dim) == 0 for dim in dims):
        raise GearsError("ERR invalid or negative value found in tensor shape")
    shape = tuple(int(dim) for dim in dims)
    kind = DTYPES.get(dtype.upper())
    if kind is None and dtype.upper() != "STRING":
        raise GearsError(f"ERR invalid data type: {dtype}")
    if values and len(values) != math.prod(shape):
        raise GearsError("ERR wrong number of values was given in 'AI.TENSORSET' command")
    if kind is None:
        return np.array(list(values) or [""] * math.prod(shape), dtype=object).reshape(shape)
    try:
        # numpy would convert any non-empty text to true
        parse = _bool if kind.kind == "b" else kind.type
        array: Array = np.array([parse(value) for value in values] or 0, dtype=kind)
    except (ValueError, OverflowError) as error:
        raise GearsError(f"ERR invalid value: {error}") from error
    return array.reshape(shape) if values else np.zeros(shape, kind)


def _bool(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"BOOL {text!r} must be 0 or 1")
    return text == "1"


def to_blob(array: Array) -> bytes:
    """Return the values of an array as bytes of the wire format. Each string ends with a NUL byte."""
    if array.dtype.kind in "OUS":
        return b"".join(str(item).encode() + b"\0" for item in array.reshape(-1).tolist())
    return array.tobytes()


def to_wire(array: Array) -> tuple[str | int | bytes, ...]:
    """Return the array as arguments: dtype, ndim, dims.., blob."""
    return (dtype_name(array), array.ndim, *array.shape, to_blob(array))


def read_wire(arguments: Sequence[Any], count: int) -> Iterator[Array]:
    """Yield the first `count` tensors of a job's arguments (dtype ndim dims.. blob)."""
    position = 0
    for _ in range(count):
        dtype, ndim = arguments[position].decode(), int(arguments[position + 1])
        dims = [int(dim) for dim in arguments[position + 2 : position + 2 + ndim]]
        yield from_wire(dtype, dims, arguments[position + 2 + ndim])
        position += 3 + ndim


def take_wire(words: Iterator[Any]) -> Array:
    """Take the next tensor (dtype ndim dims.. blob) from `words`, which yields the arguments of a job."""
    dtype, ndim = next(words).decode(), int(next(words))
    dims = [int(next(words)) for _ in range(ndim)]
    return from_wire(dtype, dims, next(words))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor in the form for user functions."""

    array: Array

    def __str__(self) -> str:
        return str(self.array.tolist())
