"""Reads the state of this server in the cluster: its role, its slots, and its migrating slots.

All of this is in the reply to `CLUSTER NODES`. A replica has the slots of its primary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import SLOTS, slot

MAX_AGE_SECONDS = 0.1
_REDIRECTS = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "not permitted")

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """The state of the cluster on this server.

    Attributes:
        is_primary: whether this server is a primary, not a replica.
        ranges: the slots of this shard, as pairs of the first and the last slot of each range.
        leaving: slots of this shard that are migrating to another shard.
        coming: slots that are migrating to this shard.
        others: the node id and the slots of every other primary that has slots.
    """

    is_primary: bool
    ranges: Ranges
    leaving: frozenset[int]
    coming: frozenset[int]
    others: tuple[tuple[str, Ranges], ...]

    @property
    def tag(self) -> str | None:
        """The shard's hash tag: the tag of its lowest slot. None while it has no slot."""
        return shard_tag(list(self.ranges)) if self.ranges else None

    def has(self, slot: int) -> bool:
        """Return whether the shard has this slot."""
        return _within(slot, self.ranges)

    def is_migrating(self, slot: int) -> bool:
        """Return whether this slot is migrating to or from this shard."""
        return slot in self.leaving or slot in self.coming

    def owner(self, slot: int) -> str | None:
        """Return the id of another primary that has the slot; None if no other primary has it."""
        return next((node for node, ranges in self.others if _within(slot, ranges)), None)


_ALONE = View(True, ((0, SLOTS - 1),), frozenset(), frozenset(), ())


class Slots:
    """The last view of the cluster."""

    def __init__(self, shard: ShardCommands) -> None:
        self._shard = shard
        self._read_at = -MAX_AGE_SECONDS
        self._view = _ALONE

    def current(self, max_age_seconds: float = MAX_AGE_SECONDS) -> View:
        """Return a view that is at most `max_age_seconds` old."""
        now = time.monotonic()
        if now - self._read_at >= max_age_seconds:
            self._view, self._read_at = self._read(), now
        return self._view

    def forget(self) -> None:
        """Make the next use read the view again. Call this when the server refuses a command because of its slot."""
        self._read_at = -MAX_AGE_SECONDS

    def is_leaving(self, tag: str) -> bool:
        """Return whether this tag is no longer the shard's own tag, or its slot is migrating to another shard."""
        view = self.current(0)
        return view.tag != tag or slot(tag) in view.leaving

    def read(self, commands: Sequence[Sequence[object]]) -> list[Any]:
        """Run commands that only read keys, and return their replies. This also works on a replica."""
        return self._shard.execute_many([("READONLY",), *commands, ("READWRITE",)])[1:-1]

    def _read(self) -> View:
        try:
            return parse(str(self._shard.execute("CLUSTER", "NODES")))
        except GearsError as error:
            if "cluster support disabled" not in str(error):
                raise
        role = str(self._shard.execute("INFO", "replication"))
        return _ALONE if "role:master" in role else View(False, _ALONE.ranges, frozenset(), frozenset(), ())


def is_redirect(error: BaseException) -> bool:
    """Return whether a command failed because this server does not serve its slot now: the slot is on another shard or
    is migrating, or the cluster is down.
    """
    return isinstance(error, GearsError) and any(word in str(error) for word in _REDIRECTS)


def parse(nodes: str) -> View:
    """Read the reply to `CLUSTER NODES`.

    >>> parse("a :1@2 myself,master - 0 0 1 connected 0-5 9 [9->-b]\\nb :3@4 master - 0 0 2 connected 10-16383").tag
    '06S'
    """
    ranges: dict[str, Ranges] = {}
    own = primary = ""
    leaving: set[int] = set()
    coming: set[int] = set()
    for line in nodes.splitlines():
        words = line.split()
        ranges[words[0]] = tuple(_range(word) for word in words[8:] if not word.startswith("["))
        if "myself" in words[2].split(","):
            own, primary = words[0], words[0] if words[3] == "-" else words[3]
            for word in words[8:]:
                if word.startswith("["):
                    (leaving if "->-" in word else coming).add(int(word[1:].partition("-")[0]))
    others = tuple((node, found) for node, found in ranges.items() if node not in (own, primary) and found)
    return View(primary == own, ranges.get(primary, ()), frozenset(leaving), frozenset(coming), others)


def _range(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def _within(slot: int, ranges: Ranges) -> bool:
    return any(first <= slot <= last for first, last in ranges)
