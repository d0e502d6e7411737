"""The limits of the near cache: entries, bytes, lifetime, and generation."""

from __future__ import annotations

from qa_cluster.asking.answers.answer_cache import StoredAnswer
from qa_cluster.asking.answers.near_cache import ENTRY_OVERHEAD_BYTES, NearCache


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fill(cache: NearCache, name: str, size: int = 10, *, generation: int = 1, ttl: float = 100) -> None:
    cache.put(name, StoredAnswer(b"x" * size, 0, ttl, True, frozenset()), etag="e", generation=generation)


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache = NearCache(max_entries=2, max_bytes=1 << 20, ttl_seconds=60)
    fill(cache, "a")
    fill(cache, "b")
    assert cache.get("a", 1) is not None
    fill(cache, "c")
    assert [cache.get(name, 1) is not None for name in "abc"] == [True, False, True]
    assert cache.evictions == 1


def test_bytes_are_limited_and_released() -> None:
    cache = NearCache(max_entries=100, max_bytes=3 * (ENTRY_OVERHEAD_BYTES + 100), ttl_seconds=60)
    for number in range(50):
        fill(cache, str(number), 100)
        assert cache.bytes <= 3 * (ENTRY_OVERHEAD_BYTES + 100)
    assert len(cache) == 3
    fill(cache, "49", 50)
    cache.discard("48")
    assert cache.bytes == 2 * ENTRY_OVERHEAD_BYTES + 150
    for name in ("47", "49"):
        cache.discard(name)
    assert cache.bytes == 0


def test_an_answer_larger_than_the_cache_is_not_cached() -> None:
    cache = NearCache(max_entries=10, max_bytes=1000, ttl_seconds=60)
    fill(cache, "a")
    fill(cache, "big", 2000)
    assert len(cache) == 1


def test_the_shorter_lifetime_applies() -> None:
    clock = Clock()
    cache = NearCache(max_entries=10, max_bytes=1 << 20, ttl_seconds=60, clock=clock)
    fill(cache, "a")
    fill(cache, "b", ttl=10)
    clock.now = 10
    assert cache.get("b", 1) is None
    entry = cache.get("a", 1)
    assert entry is not None and (cache.age(entry), cache.ttl(entry)) == (10, 50)
    clock.now = 60
    assert cache.get("a", 1) is None
    assert len(cache) == 0


def test_an_entry_of_another_generation_is_never_used() -> None:
    cache = NearCache(max_entries=10, max_bytes=1 << 20, ttl_seconds=60)
    fill(cache, "a", generation=1)
    assert cache.get("a", 2) is None
    assert cache.get("a", 1) is None


def test_a_limit_of_zero_turns_the_cache_off() -> None:
    cache = NearCache(max_entries=0, max_bytes=1 << 20, ttl_seconds=60)
    fill(cache, "a")
    assert cache.get("a", 1) is None
