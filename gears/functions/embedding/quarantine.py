"""Puts documents whose embedding has failed into quarantine, so that the worker does not retry them at once.

The quarantine ends after a pause, or when the document has a new version. The pause doubles with each failure. The
quarantine is only in memory, so a new worker retries the documents.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from qa_cluster.gears.shard.commands import ShardCommands

from .passages import Name

FIRST_SECONDS = 60.0
MAX_SECONDS = 6 * 3600.0
# Above this number, the oldest entries are discarded, and their documents are retried earlier.
MAX_DOCUMENTS = 10_000


class Quarantine:
    """The failed documents, each with the number of its failures and the time of its next try."""

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands
        self._entries: OrderedDict[Name, tuple[int, float]] = OrderedDict()

    def allows(self, name: Name) -> bool:
        """Return whether a document may be tried now."""
        entry = self._entries.get(_plain(name))
        return entry is None or time.monotonic() >= entry[1]

    def add(self, name: Name, error: Exception) -> None:
        """Record and log that a document could not be embedded, and start its next quarantine."""
        failures = self._entries.pop(_plain(name), (0, 0.0))[0] + 1
        pause = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 20), MAX_SECONDS)
        self._entries[_plain(name)] = (failures, time.monotonic() + pause)
        while len(self._entries) > MAX_DOCUMENTS:
            self._entries.popitem(last=False)
        self._commands.log(
            f"document {name[0][:100]!r} gets no vectors: {error}. The next try is in {pause:.0f} s, or when the"
            " document is written again",
            "warning",
        )

    def forget(self, names: Iterable[Name]) -> None:
        """End the quarantine of documents that have vectors now, or a new version."""
        if self._entries:
            for name in names:
                self._entries.pop(_plain(name), None)


def _plain(name: Name) -> tuple[str, str]:
    return str(name[0]), name[1]
