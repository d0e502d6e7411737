"""A model's file while it is being compiled: in memory, under a name by which the runtimes can read it.

A runtime that gets bytes copies them under the interpreter lock, and the worker's other jobs and its heartbeat wait.
Besides, a model given as bytes may make the runtime read further files in the worker's directory; a model in
`/proc/self/fd` cannot.
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

PART_BYTES = 1 << 20  # between two parts the shard serves other clients
RUNTIME_COPIES = 3  # while a runtime reads a model, it may need this many times the model's size in memory
_FOLDER = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The path at which the file can be read, and its size."""

    path: str
    size: int


@contextmanager
def written(parts: Iterable[bytes]) -> Iterator[ModelFile]:
    """A file of these parts; it exists for the duration of the block."""
    file, size = kept(parts)
    with file:
        yield opened(file.fileno(), size)


def kept(parts: Iterable[bytes]) -> tuple[IO[bytes], int]:
    """A file of these parts that exists until it is closed, and its size."""
    file = _in_memory()
    try:
        for part in parts:
            file.write(part)
        file.flush()
        size = file.tell()
        file.seek(0)  # opening a name in /dev/fd may share this descriptor's position
    except BaseException:
        file.close()
        raise
    return file, size


def opened(descriptor: int, size: int) -> ModelFile:
    """The file behind a descriptor of this process."""
    return ModelFile(f"{_FOLDER}/{descriptor}", size)


def _in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("model"), "r+b")
    return tempfile.TemporaryFile()


def fetch(link: BlockingLink, ref: int, size: int) -> Iterator[bytes]:
    """The parts of a model, fetched from the shard."""
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
