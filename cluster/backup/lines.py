"""Files of JSON lines, compressed with gzip and hashed. Only one line at a time is in memory."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from .manifest import DamagedBackup, FileEntry

# The limit for a line, in bytes. It is enough for a document of 5,000,000 escaped code points with title and metadata.
MAX_LINE_BYTES = 64 << 20
FILE_MODE = 0o600
_LEVEL = 6


class HashedFile:
    """A new file that only its owner can read. The object counts and hashes the bytes that are written to the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb")
        self._hash = sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes and return their number."""
        self._hash.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Pass the written bytes to the operating system."""
        self._file.flush()

    def finish(self, lines: int = 0) -> FileEntry:
        """Write everything to the disk, close the file, and return its entry for the manifest. `lines` is the number of
        lines that the entry states.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return FileEntry(self._bytes, self._hash.hexdigest(), lines)

    def abandon(self) -> None:
        """Close the file without completing it, after an error. Written data may be lost."""
        with suppress(OSError):
            self._file.close()


class LinesWriter:
    """Writes a compressed file of JSON lines. `lines` is the number of lines so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self._file = HashedFile(path)
        # The gzip header has no file name and no time, so that the same lines always give the same file.
        self._gzip = gzip.GzipFile("", "wb", _LEVEL, self._file, mtime=0)

    def add(self, value: Any) -> int:
        """Append a value as a line of JSON. Return the number of the line, from 0."""
        self.add_raw(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        return self.lines - 1

    def add_raw(self, line: bytes) -> None:
        """Append a line of bytes that ends with a line feed."""
        self._gzip.write(line)
        self.lines += 1

    def finish(self) -> FileEntry:
        """Write everything to the disk, close the file, and return its entry for the manifest."""
        self._gzip.close()
        return self._file.finish(self.lines)

    def abandon(self) -> None:
        """Close the file without completing it, after an error. Written data may be lost."""
        with suppress(OSError, ValueError):
            self._gzip.close()
        self._file.abandon()


def without(path: Path, dead: Collection[int]) -> FileEntry:
    """Rewrite a completed file without the lines whose numbers (from 0) are in `dead`. Return the new entry of the
    file.
    """
    written = path.with_suffix(".new")
    writer = LinesWriter(written)
    try:
        for number, line in enumerate(raw_lines(path)):
            if number not in dead:
                writer.add_raw(line)
        entry = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    written.replace(path)
    return entry


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the uncompressed lines of a file, each with its line feed. Raises DamagedBackup if the file cannot be read,
    or if a line is incomplete or longer than `MAX_LINE_BYTES`.
    """
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES or not line.endswith(b"\n"):
                    raise DamagedBackup(path, f"damaged, a line is incomplete or longer than {MAX_LINE_BYTES} bytes")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedBackup(path, f"cannot be read: {error}") from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the lines of a file. Raises DamagedBackup with the number of the first line that is not
    an object.
    """
    for number, line in enumerate(raw_lines(path), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamagedBackup(path, f"damaged, line {number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise DamagedBackup(path, f"damaged, line {number} is not an object")
        yield value
