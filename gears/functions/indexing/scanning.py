"""Finds the shard's keys that match a pattern."""

from __future__ import annotations

from collections.abc import Iterator

from qa_cluster.gears.shard.commands import ShardCommands

SCAN_COUNT = 500


def pages(shard: ShardCommands, pattern: str) -> Iterator[list[str]]:
    """Yield the shard's keys that match `pattern`, in one list for each reply to ``SCAN``. A key may occur twice.

    Keys that are not UTF-8 are skipped, because qa-cluster writes no such keys.
    """
    cursor = "0"
    while True:
        cursor, found = shard.execute("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        if found:
            yield [key for key in found if isinstance(key, str)]
        if str(cursor) == "0":
            return


def scan(shard: ShardCommands, pattern: str) -> Iterator[str]:
    """Yield the shard's keys that match `pattern`, one by one. A key may occur twice."""
    for page in pages(shard, pattern):
        yield from page
