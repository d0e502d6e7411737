"""The frames between a shard's worker and its inference workers or model processes: a JSON head, and raw tensors.

Frames never contain code.

A frame starts with 12 bytes: the length of the rest (8 bytes) and the length of the head (4 bytes). The head and the
bytes of the tensors follow. In the head, `tensors` lists the types and shapes of the tensors. The file of a model is
sent as a descriptor with a frame, so all processes share the memory of the file.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_cluster.errors import InferenceFailed

from ...shard.memory import begin_receiving, end_receiving
from ..tensors import Array

Head = dict[str, Any]
LAST_REQUEST = struct.Struct("<Q")
"""The number of the last request that an inference worker has received, in memory that both processes share."""

_PREFIX = struct.Struct("<QI")
_MAX_HEAD_BYTES = 1 << 20
_BIG_FRAME = 1 << 20
_STRING = "STRING"


class ConnectionClosed(Exception):
    """The other process has ended, or has sent an invalid frame."""


def send(connection: socket.socket, head: Head, arrays: Sequence[Array] = (), descriptor: int | None = None) -> None:
    """Send a frame. Raise OSError if it cannot be sent within the connection's timeout.

    `descriptor` is sent with the frame; None: no descriptor.
    """
    blobs = [_bytes_of(array) for array in arrays]
    described = [[_type_of(array), list(array.shape), len(blob)] for array, blob in zip(arrays, blobs, strict=True)]
    packed = json.dumps({**head, "tensors": described}, separators=(",", ":")).encode()
    if len(packed) > _MAX_HEAD_BYTES:
        raise InferenceFailed(f"the head of a frame has {len(packed)} bytes, limit {_MAX_HEAD_BYTES}")
    first = _PREFIX.pack(len(packed) + sum(map(len, blobs)), len(packed)) + packed
    if descriptor is not None:
        sent = socket.send_fds(connection, [first], [descriptor])
        first = first[sent:]
    small = [blob for blob in blobs if len(blob)]
    if sum(map(len, small)) < 1 << 16:
        connection.sendall(first + b"".join(small))
        return
    connection.sendall(first)
    for blob in small:
        connection.sendall(blob)


def receive(connection: socket.socket, *, descriptors: bool = False) -> tuple[Head, list[Array], list[int]]:
    """Receive the next frame; return its head, its tensors (the caller owns them) and its descriptors.

    Descriptors are received only if `descriptors` is set.

    Raises:
        ConnectionClosed: the connection is closed, or the frame is invalid.
        TimeoutError: no data arrived within the timeout of the connection.
    """
    prefix, passed = _receive_prefix(connection, descriptors)
    whole, head_bytes = _PREFIX.unpack(prefix)
    if not 0 < head_bytes <= min(whole, _MAX_HEAD_BYTES):
        raise ConnectionClosed(f"a frame has {whole} bytes with a head of {head_bytes}")
    if whole <= _BIG_FRAME:
        return *_receive_rest(connection, whole, head_bytes), passed
    # gives more memory while a frame arrives: without memory for a frame, the process would end
    begin_receiving()
    try:
        return *_receive_rest(connection, whole, head_bytes), passed
    finally:
        end_receiving()


def _receive_rest(connection: socket.socket, whole: int, head_bytes: int) -> tuple[Head, list[Array]]:
    try:
        head: Head = json.loads(_receive_bytes(connection, head_bytes))
        described = [(str(dtype), tuple(map(int, shape)), int(size)) for dtype, shape, size in head.pop("tensors")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConnectionClosed(f"the head of a frame cannot be read: {error}") from error
    sizes = [size for _, _, size in described]
    if sum(sizes) != whole - head_bytes or min(sizes, default=0) < 0:
        raise ConnectionClosed(f"a frame of {whole} bytes does not have the tensors of its head")
    return head, [_receive_array(connection, *tensor) for tensor in described]


def _type_of(array: Array) -> str:
    return _STRING if array.dtype.kind in "OUS" else array.dtype.str


def _bytes_of(array: Array) -> memoryview | bytes:
    if array.dtype.kind in "OUS":
        return json.dumps([str(item) for item in array.reshape(-1).tolist()]).encode()
    # views of scalars and of empty arrays cannot be cast
    return np.ascontiguousarray(array).data.cast("B") if array.size and array.ndim else array.tobytes()


def _receive_array(connection: socket.socket, dtype: str, shape: tuple[int, ...], size: int) -> Array:
    data = _receive_bytes(connection, size)
    try:
        if dtype == _STRING:
            return np.array(json.loads(data), dtype=object).reshape(shape)
        kind = np.dtype(dtype)
        if not size and not math.prod(shape):
            return np.empty(shape, kind)
        return np.frombuffer(data, kind).reshape(shape)
    except (TypeError, ValueError) as error:
        raise ConnectionClosed(
            f"a tensor of type {dtype!r} and shape {list(shape)} has {size} bytes: {error}"
        ) from error


def _receive_bytes(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionClosed("the connection has been closed")
        got += count
    return data


def _receive_prefix(connection: socket.socket, descriptors: bool) -> tuple[bytes, list[int]]:
    if not descriptors:
        return bytes(_receive_bytes(connection, _PREFIX.size)), []
    data, passed = b"", []
    while len(data) < _PREFIX.size:
        part, fresh, _, _ = socket.recv_fds(connection, _PREFIX.size - len(data), 1)
        if not part:
            raise ConnectionClosed("the connection has been closed")
        data += part
        passed += fresh
    return data, passed
