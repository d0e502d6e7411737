"""Aliases of answered query strings: their number and their bytes are limited."""

from __future__ import annotations

import pytest

from qa_cluster.api.http.aliases import MAX_QUERY_BYTES, OVERHEAD_BYTES, Alias, Aliases


def alias(number: int, size: int = 10) -> Alias:
    return Alias(str(number), b"x" * size, "partial", "default")


def query(number: int, size: int = 10) -> bytes:
    return b"%0*d" % (size, number)


def test_the_least_recently_used_aliases_are_evicted() -> None:
    aliases = Aliases(max_entries=3)
    for number in (0, 1, 2, 0, 3):
        aliases.put(query(number), alias(number))
    assert [number for number in range(4) if aliases.get(query(number))] == [0, 2, 3]
    assert aliases.bytes == 3 * (10 + 10 + OVERHEAD_BYTES)


@pytest.mark.hostile
def test_long_questions_do_not_fill_memory() -> None:
    limit = 1 << 20
    aliases = Aliases(max_bytes=limit)
    for number in range(2_000):
        aliases.put(query(number, MAX_QUERY_BYTES), alias(number, 3 * MAX_QUERY_BYTES))
        assert aliases.bytes <= limit
    assert limit * 0.9 < aliases.bytes and aliases.get(query(1_999, MAX_QUERY_BYTES)) == alias(
        1_999, 3 * MAX_QUERY_BYTES
    )
    assert len(aliases) == aliases.bytes // (4 * MAX_QUERY_BYTES + OVERHEAD_BYTES)
    aliases.put(query(1_999, MAX_QUERY_BYTES), alias(7))
    assert aliases.bytes <= limit - 3 * MAX_QUERY_BYTES
    aliases.put(b"x" * (MAX_QUERY_BYTES + 1), alias(0))
    assert aliases.get(b"x" * (MAX_QUERY_BYTES + 1)) is None
