"""Stores compiled models in files of a folder (`qa.model-cache-dir`), so that a restarted worker loads models faster.

The name of a file is a hash of everything that its content depends on, so a file is never outdated. If a file is
damaged, or cannot be read or written, the worker compiles the model. A worker refuses a folder that another user can
write to, because the runtime executes code in the files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from qa_cluster.security.ownership import objection

logger = logging.getLogger(__name__)
SMALLEST_MODEL_BYTES = 1 << 20
"""For smaller models, compiling is faster than reading a file."""
MAX_FOLDER_BYTES = 1 << 30
"""Above this size of the folder, the least recently used files are deleted."""
MAX_FILE_BYTES = MAX_FOLDER_BYTES // 4

_SUFFIX = ".compiled"
_PART = ".part"
_PART_SECONDS = 3600.0  # an older unfinished file is from a dead worker
_HEAD = struct.Struct("<8sII")  # magic, length of the facts, CRC-32 of the rest
_MAGIC = b"qa-comp1"


class CompiledFiles:
    """The files in a folder. Several processes can use the folder at the same time. No method raises OSError.

    A file contains a compiled model and its facts: a JSON object of what the caller has found out about the model.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return the facts that `write` stored and the compiled model; None if there is no file that can be read and
        trusted.
        """
        path = self._path(name)
        try:
            if reason := objection(self._folder):
                logger.warning("models are compiled again: %s %s", self._folder, reason)
                return None
            with path.open("rb") as file:
                found = _content(file)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, MemoryError) as error:
            logger.warning("models are compiled again: %s cannot be read: %s", path, error)
            return None
        if found is None:
            self.remove(name, "the file is damaged")
        return found

    def write(self, name: str, facts: Mapping[str, Any], compiled: bytes | memoryview) -> None:
        """Write a file atomically. Do nothing if it exists or would be too large."""
        packed = json.dumps(facts, separators=(",", ":")).encode()
        size = _HEAD.size + len(packed) + len(compiled)
        if size > MAX_FILE_BYTES or self.has(name):
            return
        part = self._folder / f"{secrets.token_hex(8)}{_PART}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if reason := objection(self._folder):
                logger.warning("compiled models are not stored: %s %s", self._folder, reason)
                return
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_HEAD.pack(_MAGIC, len(packed), zlib.crc32(compiled, zlib.crc32(packed))))
                file.write(packed)
                file.write(compiled)
            part.replace(self._path(name))
        except OSError as error:
            logger.warning("compiled models are not stored: %s: %s", self._folder, error)
            _unlink(part)
            return
        self._delete_oldest()

    def has(self, name: str) -> bool:
        """Return whether the folder has a file with this name. The file may be damaged."""
        return self._path(name).exists()

    def remove(self, name: str, reason: str) -> None:
        """Remove an unusable file, and log `reason`, which says why the file is unusable."""
        logger.warning("%s is removed, and the model is compiled again: %s", self._path(name), reason)
        _unlink(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _delete_oldest(self) -> None:
        """Delete the least recently used files above `MAX_FOLDER_BYTES`, and old unfinished files."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):  # another process may remove the file at the same time
                status = path.stat(follow_symlinks=False)
                if path.suffix == _SUFFIX:
                    found.append((status.st_mtime, status.st_size, path))
                elif path.suffix == _PART and time.time() - status.st_mtime > _PART_SECONDS:
                    _unlink(path)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= MAX_FOLDER_BYTES:
                return
            _unlink(path)
            total -= size


def _content(file: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Return the facts and the compiled model of a file; None if it is damaged."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, length, checked = _HEAD.unpack(head)
    packed, compiled = file.read(length), file.read()
    if magic != _MAGIC or zlib.crc32(compiled, zlib.crc32(packed)) != checked:
        return None
    return json.loads(packed), compiled


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error)
