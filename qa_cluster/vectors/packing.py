"""Packs the vectors of passages and questions, in the form in which indexes store and compare them.

A *packed vector* is a float32 scale, little endian, followed by one int8 value per dimension. The cosine of two vectors
is the product of both scales and the dot product of the int8 values. *Packed passages* contain for each passage: the
number of its first sentence (u32), the number of its sentences (u32) and its packed vector. The functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """The sentences of a passage and its packed vector.

    Attributes:
        first: the number of the passage's first sentence in the document, from 0.
        sentences: the number of sentences in the passage.
        packed: the packed vector of the passage.
    """

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


def pack_passages(passages: Sequence[PassageVector]) -> bytes:
    """Pack passages. They must be in the order of the document and must not overlap."""
    return b"".join([part for each in passages for part in (_PASSAGE.pack(each.first, each.sentences), each.packed)])
