"""Puts off work on partitions whose slots are on their way until they rest, and does it if that is here.

What moves is complete again on the other side, but work on it in between finds half of it on either.
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
    """The tags of the partitions that wait."""

    tags: set[str] = field(default_factory=set)


def add(tag: str) -> None:
    """Look at this partition again when its slot has come to rest."""
    state.of(_Late).tags.add(tag)


def settled(view: View) -> set[str]:
    """The partitions that had to wait and have come to rest on this shard; they are forgotten here."""
    waiting = state.of(_Late).tags
    resting = {tag for tag in waiting if slot(tag) not in view.leaving | view.coming}
    waiting.difference_update(resting)
    return {tag for tag in resting if view.is_primary and view.has(slot(tag))}


async def unless_moving(tag: str, work: Awaitable[_T]) -> _T | str:
    """Do the work of an event; ``moving`` when the partition's slot is on its way."""
    try:
        return await work
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        add(tag)
        return "moving"
