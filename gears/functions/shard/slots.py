"""Finds what this shard serves: whether it is a primary, which slots it has, and which slots are moving.

All of it is read from one reply, to `CLUSTER NODES`. A replica's slots are those of its primary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import SLOTS, slot

MAX_AGE_SECONDS = 0.1
_REDIRECTS = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "not permitted")

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as this server sees it."""

    is_primary: bool
    ranges: Ranges
    leaving: frozenset[int]
    coming: frozenset[int]
    others: tuple[tuple[str, Ranges], ...]

    @property
    def tag(self) -> str | None:
        """The shard's hash tag, that of its lowest slot; None while it has no slot."""
        return shard_tag(list(self.ranges)) if self.ranges else None

    def has(self, slot: int) -> bool:
        """Whether the shard has this slot."""
        return _within(slot, self.ranges)

    def owner(self, slot: int) -> str | None:
        """The id of the other primary that has a slot, None if there is none."""
        return next((node for node, ranges in self.others if _within(slot, ranges)), None)


_ALONE = View(True, ((0, SLOTS - 1),), frozenset(), frozenset(), ())


@dataclass
class _LastView:
    at: float = -MAX_AGE_SECONDS
    view: View = _ALONE


def current(max_age_seconds: float = MAX_AGE_SECONDS) -> View:
    """The current view, at most `max_age_seconds` old."""
    now = time.monotonic()
    last = state.of(_LastView)
    if now - last.at >= max_age_seconds:
        last.view, last.at = _read(), now
    return last.view


def forget() -> None:
    """Read the view again at its next use: the server refused a command because of its slot."""
    state.of(_LastView).at = -MAX_AGE_SECONDS


def is_redirect(error: BaseException) -> bool:
    """Whether a command failed because its slot is on another shard, or is moving."""
    return isinstance(error, rg.error) and any(word in str(error) for word in _REDIRECTS)


def is_leaving(tag: str) -> bool:
    """Whether this is no longer the shard's own tag, or its slot is leaving."""
    view = current(0)
    return view.tag != tag or slot(tag) in view.leaving


def read(commands: Sequence[Sequence[object]]) -> list[Any]:
    """Run commands that only read; this also works on a replica."""
    return rg.execute_many([("READONLY",), *commands, ("READWRITE",)])[1:-1]


def _read() -> View:
    try:
        return parse(str(rg.execute("CLUSTER", "NODES")))
    except rg.error as error:
        if "cluster support disabled" not in str(error):
            raise
    role = str(rg.execute("INFO", "replication"))
    return _ALONE if "role:master" in role else View(False, _ALONE.ranges, frozenset(), frozenset(), ())


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
