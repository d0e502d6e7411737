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
_FOLDER = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The path at which the file can be read, and its size."""

    path: str
    size: int


@contextmanager
def written(parts: Iterable[bytes]) -> Iterator[ModelFile]:
    """A file of these parts; it exists for the duration of the block."""
    with _in_memory() as file:
        for part in parts:
            file.write(part)
        file.flush()
        size = file.tell()
        file.seek(0)  # opening a name in /dev/fd may share this descriptor's position
        yield ModelFile(f"{_FOLDER}/{file.fileno()}", size)


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
