"""Compares the registrations of two shards, and finds the changes that make a shard agree with the other shard.

Every shard uses the same rules, which have the same result on all shards:

- a registration that was unregistered on any shard is removed;
- of two versions of a session, the version with the newest registration is valid;
- of two orders to pause or resume, the later order is valid.

This module sends no messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...shard.messages import sent


@sent
@dataclass(frozen=True, slots=True)
class RegistrationEntry:
    """A registration: the id of its session, its own id, and the number of the last order to pause or resume it.

    The numbers of orders grow with time. The number 0 means that there was no order.
    """

    session: str
    id: str
    order: int = 0


@sent
@dataclass(frozen=True, slots=True)
class RegistrationList:
    """The registrations of a shard: all of them, or only those of one session."""

    entries: tuple[RegistrationEntry, ...]

    @property
    def digest(self) -> bytes:
        """Return a digest of the registrations and the numbers of their orders. The sequence of `entries` does not
        change the digest."""
        lines = sorted(f"{len(entry.session)} {entry.session} {entry.id} {entry.order}" for entry in self.entries)
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogateescape"), digest_size=16).digest()

    @property
    def ids(self) -> set[str]:
        """The ids of the registrations."""
        return {entry.id for entry in self.entries}

    def orders_after(self, other: RegistrationList) -> dict[str, int]:
        """Return the numbers of the orders that are later in this list than in `other`, by registration id.

        Only registrations that are in both lists count.
        """
        known = {entry.id: entry.order for entry in other.entries}
        return {entry.id: entry.order for entry in self.entries if entry.order > known.get(entry.id, entry.order)}

    def orders_of(self, session: str) -> dict[str, int]:
        """Return the numbers of the last orders for the registrations of the session with the id `session`.

        The keys are registration ids. Registrations without an order are left out.
        """
        return {entry.id: entry.order for entry in self.entries if entry.session == session and entry.order}

    def sessions_ahead_of(self, other: RegistrationList, unregistered: Collection[str]) -> list[str]:
        """Return the ids of the sessions in this list that the shard of the list `other` must install.

        A session must be installed if it is missing in `other`, or has an older version there. Ignore the registrations
        of this list whose ids are in `unregistered`.
        """
        here, there = self._by_session(unregistered), other._by_session(())
        return [name for name, ids in here.items() if name not in there or _age(ids) > _age(there[name])]

    def _by_session(self, unregistered: Collection[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.id not in unregistered:
                found.setdefault(entry.session, []).append(entry.id)
        return found


def _age(ids: Iterable[str]) -> tuple[int, int, list[str]]:
    """Return a key that sorts the versions of a session from old to new. `ids` are a version's registration ids.

    The number at the end of an id grows with time. Versions are compared first by the largest of these numbers, then by
    the count of their ids, and then by the ids themselves.
    """
    names = sorted(ids)
    numbers = [name.rpartition("-")[2] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0), len(names), names
