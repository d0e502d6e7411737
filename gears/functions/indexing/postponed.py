"""Postpones work on partitions whose slots are migrating, until each slot is stable and on this shard.

During the migration of a partition, each of the two shards has only a part of the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from qa_cluster.gears.functions.shard.slots import View, is_redirect
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import slot

_T = TypeVar("_T")


class PostponedWork:
    """The tags of partitions with postponed work.

    The object also records which of these partitions have slots that are migrating or have migrated, because the module
    cannot write a change note for every change of these partitions.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._moved: set[str] = set()

    def add(self, tag: str, *, moved: bool = False) -> None:
        """Postpone the work on a partition until its slot is stable. `moved`: the slot is migrating or has migrated."""
        self._tags.add(tag)
        if moved:
            self._moved.add(tag)

    def has(self, tag: str) -> bool:
        """Return whether work on this partition is postponed."""
        return tag in self._tags

    def take_due(self, view: View) -> tuple[set[str], set[str]]:
        """Return the partitions on this shard whose work is due, and which of these partitions have migrated.

        Work is due when the slot of the partition is stable. Forget all partitions with stable slots: the returned
        partitions, and the partitions that are now on another shard.
        """
        stable = {tag for tag in self._tags if not view.is_migrating(slot(tag))}
        moved = stable & self._moved
        self._tags -= stable
        self._moved -= stable
        here = {tag for tag in stable if view.is_primary and view.has(slot(tag))}
        return here, here & moved

    def if_migrating(self, tag: str, error: BaseException) -> bool:
        """If `error` means that the slot is migrating, postpone the work and return True; otherwise return False."""
        if not is_redirect(error):
            return False
        # While the cluster is down, texts can only expire or be evicted, and the module notes these changes.
        self.add(tag, moved="CLUSTERDOWN" not in str(error))
        return True

    async def unless_migrating(self, tag: str, work: Awaitable[_T]) -> _T | str:
        """Await `work`, which concerns the partition `tag`, and return its result. If the partition's slot is
        migrating, postpone the work and return ``moving``.
        """
        try:
            return await work
        except GearsError as error:
            if not self.if_migrating(tag, error):
                raise
            return "moving"
