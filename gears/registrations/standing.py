"""What shards have registered, and what one has to change when another has something else.

Every shard decides for itself, by rules that lead all to the same: what has been unregistered anywhere goes; of two
versions of a session the one with the newest registration stays; of two orders to pause or go on, the later one holds.
No messages here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A registration: its session, its id, and the number of the last order to pause it or let it go on."""

    session: str
    id: str
    order: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """All registrations of a shard."""

    entries: tuple[Entry, ...]

    @property
    def digest(self) -> bytes:
        """Equal where the registrations and their orders are, whatever order they came in."""
        lines = sorted(f"{len(entry.session)} {entry.session} {entry.id} {entry.order}" for entry in self.entries)
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogateescape"), digest_size=16).digest()

    @property
    def ids(self) -> set[str]:
        """Ids of the registrations."""
        return {entry.id for entry in self.entries}

    def orders_after(self, other: Standing) -> dict[str, int]:
        """The orders here that are later than what `other` has for the same registration."""
        known = {entry.id: entry.order for entry in other.entries}
        return {entry.id: entry.order for entry in self.entries if entry.order > known.get(entry.id, entry.order)}

    def orders_of(self, session: str) -> dict[str, int]:
        """The orders for registrations of a session."""
        return {entry.id: entry.order for entry in self.entries if entry.session == session and entry.order}

    def sessions_ahead_of(self, other: Standing, buried: Collection[str]) -> list[str]:
        """The sessions that `other` has to take from here; it knows that the `buried` registrations are no more."""
        here, there = self._by_session(buried), other._by_session(())
        return [name for name, ids in here.items() if name not in there or _age(ids) > _age(there[name])]

    def _by_session(self, buried: Collection[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.id not in buried:
                found.setdefault(entry.session, []).append(entry.id)
        return found


def _age(ids: Iterable[str]) -> tuple[int, int, list[str]]:
    """A key that orders the versions of a session: ids end with a number that grows with time."""
    names = sorted(ids)
    numbers = [name.rpartition("-")[2] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0), len(names), names
