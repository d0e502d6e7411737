"""Fetching the file of a model from the shard."""

from __future__ import annotations

from typing import Any

import pytest

from qa_cluster.errors import ModelError
from qa_cluster.gears.inference.model_file import PART_BYTES, fetch, temporary_model_file
from qa_cluster.gears.shard.failures import GearsError


class Shard:
    """A shard with one model, whose reads fail after `parts` parts."""

    def __init__(self, file: bytes, parts: int, error: str = "") -> None:
        self.file, self.parts, self.error = file, parts, error

    def execute(self, *words: Any) -> bytes:
        name, ref, offset, length = words
        assert (name, ref) == ("QA.MODELPART", 7)
        if not self.parts:
            raise GearsError(self.error)
        self.parts -= 1
        return self.file[offset : offset + length]


def test_the_parts_are_joined_to_the_file() -> None:
    file = bytes(range(256)) * (PART_BYTES // 100)
    shard: Any = Shard(file, 3)
    with temporary_model_file(fetch(shard, 7, len(file))) as made:
        assert made.size == len(file)
        with open(made.path, "rb") as stream:
            assert stream.read() == file
    assert shard.parts == 0
    with pytest.raises(OSError, match="No such file"):
        open(made.path, "rb").close()


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        ("ERR no such model: 7", ModelError, "the model was deleted while it was being loaded"),
        ("WORKERLOST the link to the shard broke", GearsError, "the link to the shard broke"),
    ],
)
def test_a_model_that_is_deleted_meanwhile(error: str, kind: type[Exception], told: str) -> None:
    shard: Any = Shard(bytes(3 * PART_BYTES), 2, error)
    with pytest.raises(kind, match=told), temporary_model_file(fetch(shard, 7, 3 * PART_BYTES)):
        raise AssertionError("an incomplete file was returned")
