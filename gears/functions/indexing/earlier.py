"""Removes keys that only earlier versions have: tensors of tokens, and an index of sorted sets, one for each term.

It comes after the partition's documents have been indexed as this version does it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection

from qa_cluster.gears.functions.indexing.scanning import pages
from qa_cluster.gears.functions.shard import locks
from qa_cluster.gears.scripting import api as rg

_TENSOR = re.compile(r"tokenized:bert:qa:[^{}]*:\{([^{}]+)\}:\d+\Z", re.DOTALL)
_TERM = re.compile(r"terms:\{([^{}]+)\}:", re.DOTALL)


def statistics_key(tag: str) -> str:
    """A key that every partition with documents had before the module had an index."""
    return f"stats:{{{tag}}}"


async def remove(tags: Collection[str]) -> int:
    """Remove the keys of these partitions; return how many there were."""
    async with locks.held("earlier"):
        removed = 0
        for pattern, parse in (("tokenized:bert:qa:*", _TENSOR), ("terms:{*", _TERM)):
            for page in pages(pattern):
                for tag in tags:
                    found = [key for key in page if (match := parse.match(key)) and match[1] == tag]
                    removed += int(rg.execute("UNLINK", *found)) if found else 0
                await asyncio.sleep(0)
        for tag in tags:
            removed += int(rg.execute("UNLINK", *(f"{name}:{{{tag}}}" for name in ("docs", "garbage", "stats"))))
        return removed
