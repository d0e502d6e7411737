"""Postpones work on partitions whose slots are moving; it is done once they have settled, if that is on this shard.

A partition is complete before and after its move, but during the move each shard has only a part of it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import slot

_T = TypeVar("_T")


@dataclass
class _Late:
    """The tags of the partitions that wait, and which of them were on their way: not all changes there were noted."""

    tags: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)


def add(tag: str, *, moved: bool = False) -> None:
    """Note that this partition needs work when its slot has settled; `moved`, that it is or was on its way."""
    state.of(_Late).tags.add(tag)
    if moved:
        state.of(_Late).moved.add(tag)


def is_waiting(tag: str) -> bool:
    """Whether this partition needs work when its slot has settled."""
    return tag in state.of(_Late).tags


def settled(view: View) -> tuple[set[str], set[str]]:
    """The waiting partitions that have settled on this shard, and those of them that were on their way.

    All that have settled anywhere are forgotten.
    """
    late = state.of(_Late)
    resting = {tag for tag in late.tags if slot(tag) not in view.leaving | view.coming}
    moved = resting & late.moved
    late.tags -= resting
    late.moved -= resting
    here = {tag for tag in resting if view.is_primary and view.has(slot(tag))}
    return here, here & moved


def is_moving(tag: str, error: BaseException) -> bool:
    """Whether work failed because its partition's slot is moving; it is then postponed."""
    if not slots.is_redirect(error):
        return False
    # In a cluster that is down, texts expire and are evicted, which the module notes; nothing else changes them.
    add(tag, moved="CLUSTERDOWN" not in str(error))
    return True


async def unless_moving(tag: str, work: Awaitable[_T]) -> _T | str:
    """Do the work of an event; ``moving`` if it is postponed because the partition's slot is moving."""
    try:
        return await work
    except rg.error as error:
        if not is_moving(tag, error):
            raise
        return "moving"
