"""Remembers query strings whose answers may be in the near cache, so that a repeated query string is not parsed
again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MAX_QUERY_BYTES = 2048
# The memory of an entry in addition to its bytes: the objects, the digest, the dictionary entry.
OVERHEAD_BYTES = 512


class Alias(NamedTuple):
    """The parsed form of a query string, as far as it is necessary to send the answer from the near cache.

    Attributes:
        digest: names the cached answer.
        head: the JSON fields of the question in the response.
        coverage, collection: the options of the question.
    """

    digest: str
    head: bytes
    coverage: str
    collection: str


class Aliases:
    """The aliases that were stored most recently, limited in number and bytes.

    Above a limit, the alias that was stored first is removed. `bytes` is the approximate memory of all aliases.

    >>> aliases = Aliases()
    >>> aliases.put(b"question=Why%3F", Alias("9f..", b'"question":"Why?"', "partial", "default"))
    >>> aliases.get(b"question=Why%3F").digest
    '9f..'
    """

    def __init__(self, max_entries: int = 20_000, max_bytes: int = 16 << 20) -> None:
        self._entries: OrderedDict[bytes, Alias] = OrderedDict()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, query: bytes) -> Alias | None:
        """Return the alias of a query string; None if it is unknown."""
        return self._entries.get(query)

    def put(self, query: bytes, alias: Alias) -> None:
        """Store the alias of a query string. Query strings of more than `MAX_QUERY_BYTES` are not stored."""
        if len(query) > MAX_QUERY_BYTES:
            return
        if (known := self._entries.pop(query, None)) is not None:
            self.bytes -= _size(query, known)
        self._entries[query] = alias
        self.bytes += _size(query, alias)
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.bytes -= _size(*self._entries.popitem(last=False))


def _size(query: bytes, alias: Alias) -> int:
    return len(query) + len(alias.head) + OVERHEAD_BYTES
