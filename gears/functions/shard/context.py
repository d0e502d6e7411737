"""The objects that all own functions share: the shard's commands, slots, locks, partitions and the names of answers."""

from __future__ import annotations

from dataclasses import dataclass

from qa_cluster.gears.shard.commands import ShardCommands

from .locks import Locks
from .naming import AnswerNames
from .partitions import Partitions
from .slots import Slots


@dataclass(frozen=True, eq=False)
class ShardContext:
    """The shared objects. A worker creates them once."""

    commands: ShardCommands
    slots: Slots
    locks: Locks
    partitions: Partitions
    names: AnswerNames

    @classmethod
    def of(cls, commands: ShardCommands) -> ShardContext:
        """Create the objects for a shard's commands."""
        slots, locks = Slots(commands), Locks()
        return cls(commands, slots, locks, Partitions(commands, slots, locks), AnswerNames(commands))
