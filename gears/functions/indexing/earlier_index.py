"""Removes the index that earlier versions kept in keys of the server's own types: one sorted set a term.

The same sweep indexes its documents anew, because their terms are from another analyzer version; until then they are
not ranked.
"""

from __future__ import annotations

import asyncio

from qa_cluster.gears.functions.shard import locks
from qa_cluster.gears.scripting import api as rg

_SCAN_COUNT = 500


async def remove(tag: str) -> int:
    """Remove what is left of a partition's earlier index; return how many keys were removed.

    The keys by which such an index is recognised go last: if the worker dies in between, the next one begins again.
    """
    marks = [f"{name}:{{{tag}}}" for name in ("docs", "garbage", "stats")]
    async with locks.held(f"earlier:{tag}"):
        if not rg.execute("EXISTS", *marks):
            return 0
        rg.log(f"partition {tag}: its index is from an earlier version and is being rebuilt")
        removed, cursor = 0, "0"
        while True:
            cursor, found = rg.execute("SCAN", cursor, "MATCH", f"terms:{{{tag}}}:*", "COUNT", _SCAN_COUNT)
            if found:
                removed += int(rg.execute("UNLINK", *found))
            await asyncio.sleep(0)
            if str(cursor) == "0":
                break
        removed += int(rg.execute("UNLINK", *marks))
        rg.log(f"partition {tag}: {removed} keys of its earlier index are removed")
        return removed
