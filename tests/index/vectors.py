"""Vectors of passages in binary form, and their cosine."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

DIGEST = b"encoder1"


def single(number: float) -> float:
    """The number as float32."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


@dataclass(frozen=True)
class Vector:
    """Integers of 8 bits, and a scale that float32 can represent."""

    scale: float
    values: tuple[int, ...]

    def packed(self) -> bytes:
        """The vector in the binary form of the commands."""
        return struct.pack(f"<f{len(self.values)}b", self.scale, *self.values)


@dataclass(frozen=True)
class Passage:
    """Some sentences of a document with one vector."""

    first: int
    count: int
    vector: Vector


def cosine(a: Vector, b: Vector) -> float:
    """The cosine of two vectors, multiplied in the same order as in the index."""
    return a.scale * b.scale * sum(x * y for x, y in zip(a.values, b.values, strict=True))


def pack_passages(passages: Sequence[Passage]) -> bytes:
    """The passages as QA.INDEX.EMBED takes them."""
    return b"".join(struct.pack("<II", each.first, each.count) + each.vector.packed() for each in passages)


def some_vector(chance: random.Random, dims: int, most: int = 127) -> Vector:
    """A vector with about the length 1."""
    values = tuple(chance.randint(-most, most) for _ in range(dims))
    return Vector(single(1 / max(1, sum(value * value for value in values)) ** 0.5), values)


def some_passages(chance: random.Random, sentences: int, dims: int, gaps: bool = True) -> list[Passage]:
    """Passages of one to five sentences, sometimes with sentences that are in no passage."""
    made, at = [], 0
    while at < sentences:
        if gaps and chance.random() < 0.1:
            at += 1
            continue
        count = min(chance.randint(1, 5), sentences - at)
        made.append(Passage(at, count, some_vector(chance, dims)))
        at += count
    return made
