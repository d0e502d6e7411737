"""Finds the shard's keys that match a pattern."""

from __future__ import annotations

from collections.abc import Iterator

from qa_cluster.gears.scripting import api as rg

SCAN_COUNT = 500


def pages(pattern: str) -> Iterator[list[str]]:
    """The keys page by page; those that are not UTF-8 are left out, because none of ours is."""
    cursor = "0"
    while True:
        cursor, found = rg.execute("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        if found:
            yield [key for key in found if isinstance(key, str)]
        if str(cursor) == "0":
            return


def scan(pattern: str) -> Iterator[str]:
    """The keys one by one."""
    for page in pages(pattern):
        yield from page
