"""Reads the metadata fields of a collection (names, types and values), and checks that a filter's fields exist.

The index of a partition counts its fields when documents are written, so a list of fields needs no scan. The values of
a field are counted in pages: each call of ``QA.INDEX.VALUES`` returns the counts for the next documents of one index.
This process adds up the pages of all partitions.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from heapq import nsmallest
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, InvalidInput, QAError, ReplyError
from qa_cluster.keys import DEFAULT_COLLECTION, Partitioning, check_collection, index_key, layout_key, pending_key
from qa_cluster.off_loop import off_loop
from qa_cluster.options.documents import DEFAULT_SHOWN_VALUES
from qa_cluster.ranking.filters import MAX_NAME_BYTES, Filter
from qa_cluster.routing.shards import Shards
from qa_cluster.types import FieldEntry, FieldList, FieldValue, FieldValues

from .collections import Collections, index_sums

MAX_LISTED_FIELDS = 10_000
"""The maximum number of fields in a list."""
# The limits of the search for a name similar to a mistyped name: the number of names, and the characters of a name. The
# search takes at most 0.1 s.
MAX_COMPARED = 500
MAX_COMPARED_CHARS = 64
MAX_SHOWN_VALUES = 1000
# The limits (number and bytes) for the distinct values of one field that a process counts. New values beyond these
# limits are not counted.
MAX_DISTINCT = 200_000
MAX_DISTINCT_BYTES = 16 * 1024 * 1024
# The maximum number of partitions that are read at the same time for one field, and the maximum number of fields that
# are counted at the same time.
READ_AT_ONCE = 4
COUNTED_AT_ONCE = 2
FIELDS_IN_REPLY = 1000
KNOWN_SECONDS = 60.0
"""How long a process remembers that a collection has a field."""
MAX_KNOWN = 10_000
CHECK_SECONDS = 1.0
"""How long a request waits for the check of its filter."""
# The approximate size of a field in an index's reply, in bytes.
FIELD_BYTES = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = struct.pack("<cd", b"n", 0.0)
_MAX_EXACT_INTEGER = 2**53

_log = logging.getLogger(__name__)


@contextmanager
def newer_commands() -> Iterator[None]:
    """A context that raises ClusterError if a server's module is too old for a command. The error says what to do."""
    try:
        yield
    except ReplyError as error:
        if "unknown command" not in str(error):
            raise
        raise ClusterError(f"a shard has an earlier version of the module, upgrade it first: {error}"[:300]) from error


class DocumentFields:
    """The fields of the collections of one cluster."""

    def __init__(self, shards: Shards, partitions: Partitioning, collections: Collections) -> None:
        self._shards = shards
        self._partitions = partitions
        self._collections = collections
        self._known: dict[tuple[str, str], float] = {}
        self._counting = asyncio.Semaphore(COUNTED_AT_ONCE)
        self._comparing = asyncio.Semaphore(1)

    async def entries(self, collection: str = DEFAULT_COLLECTION) -> FieldList:
        """Return the fields of a collection's indexed documents; NotFound if the collection does not exist."""
        await self._collections.check(check_collection(collection))
        with newer_commands():
            return await self._entries(collection)

    async def values(
        self,
        name: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        chosen: Filter | None = None,
        limit: int = DEFAULT_SHOWN_VALUES,
    ) -> FieldValues:
        """Return the `limit` most frequent values of a field, each with its number of documents.

        Only indexed documents that satisfy the filter `chosen` are counted.

        Raises:
            NotFound: the collection does not exist.
            InvalidInput: no document of the collection has the field, or a field of the filter; or `limit` is invalid.
        """
        if not 1 <= limit <= MAX_SHOWN_VALUES:
            raise InvalidInput(f"limit must be from 1 to {MAX_SHOWN_VALUES}, got {limit}", place="limit")
        if not 1 <= len(name.encode("utf-8", "replace")) <= MAX_NAME_BYTES:
            raise InvalidInput(
                f"the name of a field must have 1 to {MAX_NAME_BYTES} bytes, got {name[:100]!r}", place="field"
            )
        name = name.removeprefix("meta.")
        await self._collections.check(check_collection(collection))
        await self._check({name: False}, collection, "field")
        await self.check(chosen, collection)
        tally, turns = _Tally(), asyncio.Semaphore(READ_AT_ONCE)
        arguments = (name.encode("utf-8", "replace"), *(() if chosen is None else ("FILTER", chosen.packed)))

        async def count(tag: str) -> None:
            key, cursor = index_key(tag, collection), 0
            async with turns:
                while True:
                    reply = await self._shards.execute(key, "QA.INDEX.VALUES", key, cursor, *arguments)
                    cursor = int(reply[0])
                    await off_loop(len(reply[3]) * FIELD_BYTES, tally.add, int(reply[1]), int(reply[2]), reply[3])
                    if not cursor:
                        return

        async with self._counting:
            with newer_commands():
                await asyncio.gather(*map(count, self._partitions.tags))
            return await asyncio.to_thread(tally.result, name, limit)

    async def check(self, chosen: Filter | None, collection: str) -> None:
        """Raise InvalidInput if a filter names a field that no document of the collection has.

        The shards are asked only about fields that this process does not know yet. The check raises nothing if:

        - the collection has no documents
        - documents are pending, or the first sweep of a partition has not ended
        - a shard is down, replies with an error, or does not reply within `CHECK_SECONDS`
        """
        if chosen is not None:
            await self._check(chosen.fields(), collection, chosen.place)

    async def check_some(self, chosen: Filter | None, collections: Sequence[str]) -> None:
        """Raise InvalidInput if `check` raises InvalidInput for each of these collections.

        The raised error is the error for the first collection. If `check` accepts the filter for one of the
        collections, no error is raised.
        """
        first: InvalidInput | None = None
        for name in collections:
            try:
                await self.check(chosen, name)
            except InvalidInput as error:
                first = first or error
            else:
                return
        if first is not None:
            raise first

    async def _check(self, fields: Mapping[str, bool], collection: str, place: str) -> None:
        now = monotonic()
        unsure = [name for name in fields if self._known.get((collection, name), 0.0) < now]
        if not unsure:
            return
        # A request may continue without a shard that is down or hangs, so the check does not wait for such a shard.
        if len(self._shards.up) < len(self._shards.all):
            return
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                unknown = await self._unknown(unsure, fields, collection, now + KNOWN_SECONDS)
        except (QAError, ReplyError, TimeoutError) as error:
            _log.debug("the fields of a filter were not checked: %r", error)
            return
        if unknown is None:
            return
        name, names = unknown
        async with self._comparing:
            near = await asyncio.to_thread(_nearest, name[:MAX_COMPARED_CHARS], names[:MAX_COMPARED])
        hint = f": did you mean {near[:100]!r}?" if near else ""
        raise InvalidInput(
            f"{place}: no document of collection {collection} has the field {name[:100]!r}{hint}", place=place
        )

    async def _unknown(
        self, names: list[str], fields: Mapping[str, bool], collection: str, until: float
    ) -> tuple[str, list[str]] | None:
        """Return the first name in `names` that is certainly not a field of any document, and the names of all fields.

        Return None if there is no such name, or if this is not certain (for example, while documents are pending).

        Args:
            names: the fields to check. `fields` has all fields of the filter, with the flags of `Filter.fields`. If the
                flag of a field is true, the name of an object that has fields is also accepted.
            until: the time until which this process remembers the fields that exist, on the clock of `time.monotonic`.
        """
        tags = self._partitions.tags
        # Ask for pending documents before the index: a document that is indexed in between is then found in the index.
        waiting = await self._shards.execute_many(
            [
                command
                for tag in tags
                for command in (
                    (pending_key(tag), ("HGET", pending_key(tag), "")),
                    (layout_key(tag), ("HGET", layout_key(tag), "analyzer")),
                )
            ]
        )
        keys = [index_key(tag, collection) for tag in tags]
        replies = await self._shards.execute_many(
            [
                (key, ("QA.INDEX.FIELDS", key, "NAMES", *(name.encode("utf-8", "replace") for name in names)))
                for key in keys
            ]
        )
        counts = [sum(map(int, column)) for column in zip(*replies, strict=True)]
        self._remember(collection, [name for name, count in zip(names, counts, strict=True) if count], until)
        lacking = [name for name, count in zip(names, counts, strict=True) if not count]
        if not lacking or any(pending is not None for pending in waiting[::2]) or None in waiting[1::2]:
            return None
        infos = await self._shards.execute_many([(key, ("QA.INDEX.INFO", key)) for key in keys])
        if not index_sums(infos)[0]:
            return None
        found = await self._entries(collection)
        known = [entry.name for entry in found.fields]
        for name in lacking:
            if not fields[name] or (found.complete and not any(other.startswith(f"{name}.") for other in known)):
                return None if name in known else (name, known)
        return None

    def _remember(self, collection: str, names: Iterable[str], until: float) -> None:
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        self._known.update({(collection, name): until for name in names})

    async def _entries(self, collection: str) -> FieldList:
        sums: dict[bytes, list[int]] = {}
        complete = True
        for tag in self._partitions.tags:
            key, cursor = index_key(tag, collection), 0
            while True:
                reply = await self._shards.execute(key, "QA.INDEX.FIELDS", key, "SCAN", cursor, FIELDS_IN_REPLY)
                cursor, rows = int(reply[0]), reply[1]
                complete = await off_loop(len(rows) * FIELD_BYTES, _add, sums, rows) and complete
                if not cursor or not complete:
                    break
        entries = await off_loop(len(sums) * FIELD_BYTES, _field_entries, sums)
        return FieldList(entries, complete)


def _add(sums: dict[bytes, list[int]], rows: list[Any]) -> bool:
    """Add the fields of a reply to `sums`; return false if a field was left out because of `MAX_LISTED_FIELDS`.

    Each row of the reply is the name of a field with its counts (``QA.INDEX.FIELDS .. SCAN``). `sums` has the sums of
    these counts by name.
    """
    complete = True
    for name, *counts in rows:
        known = sums.get(name)
        if known is None:
            if len(sums) >= MAX_LISTED_FIELDS:
                complete = False
                continue
            known = sums[name] = [0] * len(counts)
        for place, count in enumerate(counts):
            known[place] += int(count)
    return complete


def _field_entries(sums: Mapping[bytes, list[int]]) -> tuple[FieldEntry, ...]:
    entries = (
        FieldEntry(name.decode("utf-8", "replace"), documents, texts, numbers, booleans, times)
        for name, (documents, booleans, numbers, texts, times) in sums.items()
    )
    return tuple(sorted(entries, key=lambda entry: (-entry.documents, entry.name)))


def _nearest(name: str, names: list[str]) -> str:
    """Return the first of `names` that is a field inside the object `name`, or else the most similar of `names`.

    The result is empty if `names` has no such field and no similar name.
    """
    folded = {other[:MAX_COMPARED_CHARS].lower(): other for other in reversed(names)}
    close = get_close_matches(name.lower(), folded, n=1)
    inner = next((other for other in names if other.startswith(f"{name}.")), "")
    return inner or (folded[close[0]] if close else "")


class _Tally:
    """Counts the values of a field in their binary form. Several threads may add pages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[bytes] = Counter()
        self._bytes = 0
        self._exact = True
        self._chosen = self._with_field = 0
        self._numbers: list[float] = []
        self._times: list[tuple[int, int]] = []

    def add(self, chosen: int, with_field: int, pairs: list[Any]) -> None:
        """Add a page.

        Args:
            chosen: the number of selected documents in the page.
            with_field: the number of these documents that have the field.
            pairs: each value, followed by its number of documents.
        """
        with self._lock:
            self._chosen += chosen
            self._with_field += with_field
            numbers, times = self._numbers, self._times
            for value, count in zip(pairs[::2], pairs[1::2], strict=True):
                kind = value[:1]
                if kind == b"n":
                    numbers.append(struct.unpack_from("<d", value, 1)[0])
                    if not numbers[-1]:
                        value = _ZERO  # noqa: PLW2901 - the index also stores -0, which is the same value as 0
                elif kind in (b"t", b"m"):
                    times.append(_moment(value))
                if value not in self._counts:
                    if len(self._counts) >= MAX_DISTINCT or self._bytes + len(value) > MAX_DISTINCT_BYTES:
                        self._exact = False
                        continue
                    self._bytes += len(value)
                self._counts[value] += int(count)
            self._numbers = [min(numbers), max(numbers)] if numbers else []
            self._times = [min(times), max(times)] if times else []

    def result(self, name: str, limit: int) -> FieldValues:
        """Return the counts of the field `name`, with its `limit` most frequent values.

        Values with equal counts are sorted by type and value.
        """
        best = nsmallest(limit, self._counts.items(), key=lambda item: (-item[1], *_order(item[0])))
        distinct = len(self._counts)
        return FieldValues(
            name=name,
            documents=self._with_field,
            missing=self._chosen - self._with_field,
            distinct=distinct,
            other=distinct - len(best),
            values=tuple(FieldValue(_value(value), count) for value, count in best),
            minimum=_number(self._numbers[0]) if self._numbers else None,
            maximum=_number(self._numbers[-1]) if self._numbers else None,
            earliest=_time(*self._times[0]) if self._times else None,
            latest=_time(*self._times[-1]) if self._times else None,
            exact=self._exact,
        )


def _order(packed: bytes) -> tuple[bytes, Any]:
    """Return the sort key of a value among values with equal counts: its type, then its value."""
    kind = packed[:1]
    if kind == b"n":
        return kind, struct.unpack_from("<d", packed, 1)[0]
    return (b"t", _moment(packed)) if kind in (b"t", b"m") else (kind, packed[1:] if kind == b"b" else packed[3:])


def _value(packed: bytes) -> str | int | float | bool:
    """Decode a value from the binary form of the index (`ranking.filters`)."""
    kind = packed[:1]
    if kind == b"b":
        return packed[1] == 1
    if kind == b"n":
        return _number(struct.unpack_from("<d", packed, 1)[0])
    if kind == b"s":
        return packed[3:].decode("utf-8", "replace")
    return _time(*_moment(packed))


def _moment(packed: bytes) -> tuple[int, int]:
    seconds, nanoseconds = (
        struct.unpack("<qI", packed[1:]) if packed[:1] == b"m" else (*struct.unpack("<q", packed[1:]), 0)
    )
    return seconds, nanoseconds


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT_INTEGER else value


def _time(seconds: int, nanoseconds: int) -> str:
    """Return a time as text in UTC that a filter parses to the same time. A date without a time means midnight.

    The arguments are the whole seconds since 1970 and the nanoseconds within the second. For a time outside the years 1
    to 9999, the text says the seconds since 1970, and a filter cannot parse it.

    >>> _time(86400, 0), _time(86400, 250000000)
    ('1970-01-02', '1970-01-02T00:00:00.25Z')
    """
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:  # a time zone can move a time out of the years 1 to 9999
        return f"{seconds} s since 1970"
    if not nanoseconds and not seconds % 86400:
        return moment.date().isoformat()
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return (
        f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
        if moment.year > 999
        else f"{moment.replace(tzinfo=None).isoformat()}{fraction}Z"
    )
