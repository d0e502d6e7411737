"""The audit log: one JSON line per change, with its author, its kind and its origin.

The lines contain no texts of documents, questions or answers, and no secrets.

Each line is appended in one write, so several processes may write to one file. Before each line, the log checks whether
the file was replaced. So log rotation (`logrotate`, by moving or by `copytruncate`) needs no signal.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from qa_cluster.errors import ConfigError

STDERR = "-"
_MODE = 0o600

_log = logging.getLogger(__name__)


class AuditLog:
    """Appends lines to the file at `path`. The path ``-`` is standard error; an empty path turns the log off.

    >>> AuditLog("-").note("key.revoke", {"user": "ada"}, "cli a.example", id="0123456789ab")

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        if path not in ("", STDERR):
            try:
                self._open()
            except OSError as error:
                raise ConfigError(
                    f"cannot write the audit log {path!r}: {error.strerror} (setting audit_log; - is standard error)"
                ) from error

    def __bool__(self) -> bool:
        return bool(self._path)

    def note(self, event: str, who: Mapping[str, object], origin: str, **what: object) -> None:
        """Append a line.

        Args:
            event: the kind of the change.
            who: the author: fields that identify the user or API key.
            origin: where the change came from.
            what: more fields of the line. A field whose value is None is left out.

        If the file cannot be written any more, no error is raised, and the log of the process reports each lost line.
        """
        if not self._path:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        given = {name: value for name, value in what.items() if value is not None}
        line = orjson.dumps({"time": now, "event": event, **who, "from": origin, **given}, default=str) + b"\n"
        if self._path == STDERR:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            return
        try:
            self._follow()
            if os.write(self._file, line) != len(line):
                raise OSError("the disk is full")
        except OSError as error:
            _log.error("a line of the audit log %s is lost (%s): event %s", self._path, error, event)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _follow(self) -> None:
        """Open the file again if it was replaced, removed or closed. Raises OSError if it cannot be opened."""
        if self._file >= 0:
            here = os.fstat(self._file)
            try:
                there = os.stat(self._path)
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
            self.close()
        self._open()
