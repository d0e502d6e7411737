"""Removes the postings of dropped document versions, in small steps between other work."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from qa_cluster.gears.functions.indexing import late
from qa_cluster.gears.functions.shard import locks, partitions
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import garbage_key
from qa_cluster.ranking.postings import removals

COMMANDS_PER_STEP = 100
_PREFIX = "garbage:{"


async def on_garbage(record: dict[str, Any]) -> None:
    """A version was dropped."""
    key = record["key"]
    if isinstance(key, str) and key.startswith(_PREFIX) and key.endswith("}") and record["event"] != "del":
        tag = key[len(_PREFIX) : -1]
        await late.unless_moving(tag, collect(tag))


async def collect(tag: str) -> int:
    """Work off the garbage list of a partition; how many versions were removed.

    An entry leaves the list when all its postings are gone: a worker that dies in between begins it again. Numbers are
    never used twice, so a removal that comes late, or twice, removes nothing else.
    """
    partitions.saw(tag)
    removed = 0
    async with locks.held(f"garbage:{tag}"):
        while (entry := rg.execute("LINDEX", garbage_key(tag), 0)) is not None:
            commands = removals(tag, entry)
            while step := list(islice(commands, COMMANDS_PER_STEP)):
                await asyncio.to_thread(rg.execute_many, step)
            rg.execute("LREM", garbage_key(tag), 1, entry)
            removed += 1
    return removed
