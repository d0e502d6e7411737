"""Packed vectors keep the encoder's values to the precision of int8."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.vectors.packing import (
    PassageVector,
    pack_passages,
    pack_vectors,
    packed_bytes,
)
from tests.harness.packed_vectors import cosine, unpack_passages, unpack_vector


def some(rows: int, dims: int = 384, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dims)).astype(np.float32)


def test_a_packed_vector_is_a_scale_and_an_int8_for_each_dimension() -> None:
    (packed,) = pack_vectors(np.array([[3.0, -4.0]], np.float32))
    scale, first, second = struct.unpack("<fbb", packed)
    assert (first, second) == (95, -127)
    assert scale == pytest.approx(0.8 / 127)
    assert len(pack_vectors(some(1))[0]) == packed_bytes(384) == 388


def test_the_length_of_a_vector_does_not_count() -> None:
    vectors = some(3)
    assert pack_vectors(vectors) == pack_vectors(vectors * 8)


def test_the_cosine_of_packed_vectors_is_that_of_the_vectors() -> None:
    vectors = some(40)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    packed = pack_vectors(vectors)
    for one in range(0, 40, 7):
        assert cosine(packed[one], packed[one]) == pytest.approx(1, abs=2e-3)
        for other in range(40):
            assert cosine(packed[one], packed[other]) == pytest.approx(float(unit[one] @ unit[other]), abs=5e-3)
        assert np.allclose(unpack_vector(packed[one]), unit[one], atol=1e-3)


@pytest.mark.parametrize("row", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_without_a_direction_is_refused(row: list[float]) -> None:
    with pytest.raises(InvalidInput, match="length 0 or values that are not finite"):
        pack_vectors(np.array([[1.0, 0.0], row], np.float32))


def test_packed_passages_are_read_back() -> None:
    passages = [PassageVector(n * 3, 3, packed) for n, packed in enumerate(pack_vectors(some(4, 8)))]
    blob = pack_passages(passages)
    assert len(blob) == 4 * (8 + 4 + 8)
    assert struct.unpack_from("<II", blob, 20) == (3, 3)
    assert list(unpack_passages(blob, 8)) == passages
    assert list(unpack_passages(b"", 8)) == []
