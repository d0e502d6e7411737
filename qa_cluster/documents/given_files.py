"""Files whose contents are in memory: uploads, web pages, and standard input."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from qa_cluster.errors import InputTooLong, InvalidInput

from .files import SourceFile


@dataclass(frozen=True, slots=True)
class GivenFile(SourceFile):
    """A file with its contents. Its path is its name and is not a path on this machine.

    Attributes:
        origin: where the file comes from, for messages. If it is empty, messages use the name.
        metadata: metadata of the file's document. It has priority over `FolderReading.metadata`.
    """

    data: bytes = b""
    origin: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def named(cls, name: str, data: bytes, *, origin: str = "", metadata: Mapping[str, Any] | None = None) -> GivenFile:
        """Create a file. The name must be a path within a folder; InvalidInput for other names."""
        return cls(Path(check_name(name)), name, data=data, origin=origin, metadata=metadata or {})

    @property
    def shown(self) -> str:
        """The file's origin; if it is empty, the file's name."""
        return self.origin or self.name

    @property
    def size(self) -> int:
        """The size of the contents in bytes."""
        return len(self.data)

    def read(self, limit: int, spare: int = 0) -> bytes:
        """Return the contents; InputTooLong if the contents have more than `limit` + `spare` bytes."""
        if len(self.data) > limit + spare:
            raise InputTooLong(f"{self.shown}: has {len(self.data)} bytes, the limit is {limit}")
        return self.data

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the contents."""
        yield io.BytesIO(self.data)


def check_name(name: str) -> str:
    """Return a name that is a path within a folder, with slashes; InvalidInput for any other name.

    >>> check_name("guide/first steps.md")
    'guide/first steps.md'
    """
    parts = name.split("/")
    if not name or not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(
            f"{name[:100]!r} is not the name of a file: it must be printable, without an empty part, '.', '..' or a"
            " backslash"
        )
    return name
