"""The near cache: answers in the memory of this process, limited in number, bytes and time.

If a limit is exceeded, the cache evicts the least recently used entry. An answer is discarded when `freshness` reports
a write that invalidates the answer. An entry also belongs to a *generation* (`Freshness.generation`), which changes,
for example, with the shards and readers. An entry is returned only while its generation is the current one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .answer_cache import StoredAnswer

ENTRY_OVERHEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class NearEntry:
    """An answer in the near cache. All times are in seconds of the cache's clock.

    Attributes:
        generation: the value of `Freshness.generation` for which the answer is valid.
        made: when the shards computed the answer.
        expires: when the entry expires.
    """

    answer: StoredAnswer
    etag: str
    generation: int
    made: float
    expires: float


class NearCache:
    """The cached answers of one process, by digest.

    >>> cache = NearCache(max_entries=1000, max_bytes=64 << 20, ttl_seconds=300)
    >>> cache.get("9f..", generation=7) is None
    True
    """

    def __init__(
        self, *, max_entries: int, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entries: OrderedDict[str, NearEntry] = OrderedDict()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._ttl = ttl_seconds
        self._clock = clock
        self.bytes = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: str, generation: int) -> NearEntry | None:
        """Return the entry; None if it is missing, has expired or belongs to a different generation."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        if entry.generation != generation or entry.expires <= self._clock():
            self.discard(digest)
            return None
        self._entries.move_to_end(digest)
        return entry

    def put(self, digest: str, answer: StoredAnswer, *, etag: str, generation: int) -> None:
        """Cache an answer until it expires, but at most for the `ttl_seconds` of this cache.

        An answer larger than the cache is ignored. The cache returns the answer only while `Freshness.generation` is
        equal to `generation`.
        """
        size = len(answer.body) + ENTRY_OVERHEAD_BYTES
        if size > self._max_bytes or self._max_entries == 0:
            return
        self.discard(digest)
        now = self._clock()
        expires = now + min(self._ttl, answer.ttl_seconds)
        self._entries[digest] = NearEntry(answer, etag, generation, now - answer.age_seconds, expires)
        self.bytes += size
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.discard(next(iter(self._entries)))
            self.evictions += 1

    def discard(self, digest: str) -> None:
        """Discard the answer with this digest, if the cache has one."""
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self.bytes -= len(entry.answer.body) + ENTRY_OVERHEAD_BYTES

    def age(self, entry: NearEntry) -> int:
        """Return the age of the answer in seconds."""
        return int(self._clock() - entry.made)

    def ttl(self, entry: NearEntry) -> int:
        """Return the time until the entry expires, in seconds."""
        return max(0, int(entry.expires - self._clock()))
