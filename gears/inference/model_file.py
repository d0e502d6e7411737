"""A temporary file in memory for a model, with a path that the runtimes can read.

A runtime that gets a model as bytes copies them under the interpreter lock, which delays other jobs and the worker's
heartbeat. Such a model could also make the runtime read other files in the worker's folder. A model that the runtime
reads from a path in `/proc/self/fd` cannot do this.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qa_cluster.errors import ModelError

from ..shard.failures import GearsError
from ..shard.link import BlockingLink

PART_BYTES = 1 << 20  # small, because the shard serves other clients between two parts
RUNTIME_COPIES = 3  # a runtime needs memory of up to this multiple of a model's size to read the model
_FOLDER = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The path of a file that contains a model, and the size of the file in bytes."""

    path: str
    size: int


@contextmanager
def temporary_model_file(parts: Iterable[bytes]) -> Iterator[ModelFile]:
    """Write the parts to a file that exists until the end of the `with` block."""
    file, size = memory_file(parts)
    with file:
        yield file_of_descriptor(file.fileno(), size)


def memory_file(parts: Iterable[bytes]) -> tuple[IO[bytes], int]:
    """Write the parts to a file that exists until it is closed. Return the file and its size in bytes."""
    file = _in_memory()
    try:
        for part in parts:
            file.write(part)
        file.flush()
        size = file.tell()
        file.seek(0)  # a reader that opens the path in /dev/fd may start at the position of this descriptor
    except BaseException:
        file.close()
        raise
    return file, size


def file_of_descriptor(descriptor: int, size: int) -> ModelFile:
    """Return the path through which this process can open the file of one of its descriptors, and the given `size`.

    `size` is the size of the file in bytes.
    """
    return ModelFile(f"{_FOLDER}/{descriptor}", size)


def _in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("model"), "r+b")
    return tempfile.TemporaryFile()


def fetch(link: BlockingLink, ref: int, size: int) -> Iterator[bytes]:
    """Fetch the bytes of a model from the shard, in parts of `PART_BYTES`.

    `ref` is the module's number for the bytes, and `size` is their total size. Raises ModelError if the model is
    deleted meanwhile.
    """
    offset = 0
    while offset < size:
        try:
            part: bytes = link.execute("QA.MODELPART", ref, offset, PART_BYTES)
        except GearsError as error:
            if "no such model" in str(error):
                raise ModelError("the model was deleted while it was being loaded") from error
            raise
        offset += len(part)
        yield part
