"""Packs the vectors of passages and questions, in the form in which indexes store and compare them.

A *packed vector* is a float32 scale, little endian, followed by one int8 value per dimension. The cosine of two vectors
is the product of both scales and the dot product of the int8 values. *Packed passages* contain for each passage: the
number of its first sentence (u32), the number of its sentences (u32) and its packed vector. The functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InvalidInput

FloatArray = npt.NDArray[np.float32]

_SCALE = Struct("<f")
_PASSAGE = Struct("<II")
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class PassageVector:
    """The sentences of a passage and its packed vector. Sentences are counted from 0 in the document."""

    first: int
    sentences: int
    packed: bytes


def packed_bytes(dims: int) -> int:
    """Return the size of a packed vector in bytes.

    >>> packed_bytes(384)
    388
    """
    return _SCALE.size + dims


def pack_vectors(vectors: FloatArray) -> list[bytes]:
    """Normalise the rows of `vectors` [rows, dims] to length 1 and pack them.

    The largest absolute value of a row becomes 127 or -127. InvalidInput if a row has the length 0 or is not finite.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise InvalidInput("a vector has the length 0 or values that are not finite")
    unit = vectors / lengths
    scales = (np.abs(unit).max(axis=1) / _LARGEST).astype("<f4")
    codes = np.rint(unit / scales[:, None]).astype(np.int8)
    return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, codes, strict=True)]


def unpack_vector(packed: bytes) -> FloatArray:
    """Return the values of a packed vector as float32."""
    if len(packed) <= _SCALE.size:
        raise InvalidInput(f"a packed vector has {len(packed)} bytes, at least {_SCALE.size + 1} are needed")
    (scale,) = _SCALE.unpack_from(packed)
    values: FloatArray = np.frombuffer(packed, np.int8, offset=_SCALE.size) * np.float32(scale)
    return values


def cosine(one: bytes, other: bytes) -> float:
    """Return the cosine of two packed vectors of the same encoder, as indexes compute it."""
    if len(one) != len(other):
        raise InvalidInput(f"packed vectors of {len(one)} and {len(other)} bytes cannot be compared")
    scale = _SCALE.unpack_from(one)[0] * _SCALE.unpack_from(other)[0]
    codes = (np.frombuffer(each, np.int8, offset=_SCALE.size).astype(np.int32) for each in (one, other))
    return float(scale * np.dot(*codes))


def pack_passages(passages: Sequence[PassageVector]) -> bytes:
    """Pack passages. They must be in the order of the document and must not overlap."""
    return b"".join([part for each in passages for part in (_PASSAGE.pack(each.first, each.sentences), each.packed)])


def unpack_passages(blob: bytes, dims: int) -> Iterator[PassageVector]:
    """Yield the passages of `pack_passages`."""
    size = _PASSAGE.size + packed_bytes(dims)
    if len(blob) % size:
        raise InvalidInput(f"packed passages have {len(blob)} bytes, which are not passages of {size} bytes")
    for at in range(0, len(blob), size):
        first, sentences = _PASSAGE.unpack_from(blob, at)
        yield PassageVector(first, sentences, blob[at + _PASSAGE.size : at + size])
