"""Reads the packed vectors and passages that `qa_cluster.vectors.packing` writes."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from

import numpy as np

from qa_cluster.vectors.packing import FloatArray, PassageVector, packed_bytes

_SCALE_BYTES = 4
_HEAD_BYTES = 8


def unpack_vector(packed: bytes) -> FloatArray:
    """The values of a packed vector."""
    (scale,) = unpack_from("<f", packed)
    values: FloatArray = np.frombuffer(packed, np.int8, offset=_SCALE_BYTES) * np.float32(scale)
    return values


def cosine(one: bytes, other: bytes) -> float:
    """The cosine of two packed vectors of the same encoder, as indexes compute it."""
    scale = unpack_from("<f", one)[0] * unpack_from("<f", other)[0]
    codes = (np.frombuffer(each, np.int8, offset=_SCALE_BYTES).astype(np.int32) for each in (one, other))
    return float(scale * np.dot(*codes))


def unpack_passages(blob: bytes, dims: int) -> Iterator[PassageVector]:
    """The passages of `pack_passages`."""
    size = _HEAD_BYTES + packed_bytes(dims)
    assert len(blob) % size == 0
    for at in range(0, len(blob), size):
        first, sentences = unpack_from("<II", blob, at)
        yield PassageVector(first, sentences, blob[at + _HEAD_BYTES : at + size])
