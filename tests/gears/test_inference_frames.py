"""Frames between the shard's worker and an inference worker arrive unchanged. Other bytes are refused."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.gears.inference.tensors import Array
from qa_cluster.gears.inference.workers.frames import ConnectionClosed, receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        theirs.settimeout(30)
        yield ours, theirs


ARRAYS = [
    *[np.arange(6).astype(dtype).reshape(2, 3) for dtype in ("<f4", "<f8", "<f2", "i1", "<i2", "<i4", "<i8", "u1")],
    np.array([[True, False]]),
    np.array(7, "<i8"),
    np.zeros((0, 3), "<f4"),
    np.arange(12, dtype="<i4").reshape(3, 4).T,
    np.array([["é", ""], ["a\0b", "😀"]], dtype=object),
    np.array([], dtype=object).reshape(0, 2),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_an_array_arrives_unchanged_and_belongs_to_the_receiver(pair: Pair, array: Array) -> None:
    send(pair[0], {"id": 3}, [array, array])
    head, arrays, _ = receive(pair[1])
    assert head == {"id": 3}
    for got in arrays:
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tolist() == array.tolist()
        assert got.flags.writeable


def test_a_large_frame_arrives_whole(pair: Pair) -> None:
    large = np.arange(3_000_000, dtype="<i8")
    sender = threading.Thread(target=send, args=(pair[0], {"id": 1}, [large, large[:1]]))
    sender.start()
    _, (first, second), _ = receive(pair[1])
    sender.join()
    assert np.array_equal(first, large) and second.tolist() == [0]


def test_a_file_is_sent_with_a_frame(pair: Pair) -> None:
    reading, writing = os.pipe()
    send(pair[0], {"id": 1}, descriptor=writing)
    os.close(writing)
    _, _, (passed,) = receive(pair[1], descriptors=True)
    os.write(passed, b"x")
    assert os.read(reading, 1) == b"x"
    os.close(passed)
    os.close(reading)


def frame(head: bytes, rest: bytes = b"", whole: int | None = None) -> bytes:
    return struct.pack("<QI", len(head) + len(rest) if whole is None else whole, len(head)) + head + rest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has been closed"),
        (b"\1\2\3", "has been closed"),
        (frame(b'{"tensors":[]}')[:-1], "has been closed"),
        (struct.pack("<QI", 4, 0), "with a head of 0"),
        (struct.pack("<QI", 4, 5) + b"abcde", "with a head of 5"),
        (struct.pack("<QI", 1 << 40, 1 << 30), "with a head of 1073741824"),
        (frame(b"nonsense"), "head of a frame cannot be read"),
        (frame(b'{"id":1}'), "head of a frame cannot be read"),
        (frame(b"[1]"), "head of a frame cannot be read"),
        (frame(b'{"tensors":[["<i4",[2],8]]}'), "does not have the tensors of its head"),
        (frame(b'{"tensors":[["<i4",[1],-4],["<i4",[3],12]]}', bytes(8)), "does not have the tensors of its head"),
        (frame(b'{"tensors":[["<i4",[3],8]]}', bytes(8)), r"type '<i4' and shape \[3\] has 8 bytes"),
        (frame(b'{"tensors":[["|O",[1],8]]}', bytes(8)), "type '|O'"),
        (frame(b'{"tensors":[["what",[1],8]]}', bytes(8)), "type 'what'"),
        (frame(b'{"tensors":[["STRING",[1],2]]}', b"no"), "type 'STRING'"),
    ],
)
def test_invalid_frames_are_refused(pair: Pair, data: bytes, message: str) -> None:
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionClosed, match=message):
        receive(pair[1])


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_a_damaged_frame_is_read_or_ends_the_connection(head: bytes, at: int, damage: bytes) -> None:
    """The worker either reads the damaged frame, or replaces the inference worker that sent it."""
    good = frame(b'{"id":1,"tensors":[["<i4",[2,3],24],["STRING",[1],5]]}', bytes(24) + b'["a"]')
    damaged = (good[:at] + damage + good[at + len(damage) :])[: len(good)] if at < len(good) else frame(head)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0.05)
        ours.sendall(damaged)
        ours.shutdown(socket.SHUT_WR)
        try:
            taken, arrays, _ = receive(theirs)
        except (ConnectionClosed, TimeoutError, MemoryError):
            return
        assert isinstance(taken, dict) and all(isinstance(array, np.ndarray) for array in arrays)
