"""Lists the documents of a collection, page by page, and counts them.

A partition's index lists its documents in the order in which they were written. A listing reads one partition after the
other. The shards store no state for a listing: a cursor names the partition and the position in its index. An index
keeps its positions after a restart and after a migration of its slot. So during a listing:

- a document that does not change is listed exactly once
- a new document may be listed or not
- a document that is indexed again, for example because its text has changed, may be listed twice

Failed documents are in no index. A list of failed documents reads the hash of each partition (`failures_key`).

Pending documents are in no index, so they are not listed. To count them, this module reads their names in batches from
the hash of each partition (`pending_key`), and then their records. A partition that was never swept may have older
pending documents that this hash lacks. A scan finds these documents.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import (
    DOCUMENT_PREFIX,
    DocumentName,
    Partitioning,
    decode_id,
    document_key,
    failures_key,
    index_key,
    layout_key,
    parse_tagged,
    pending_key,
)
from qa_cluster.options.documents import DEFAULT_PAGE, EVERYTHING, MAX_PAGE, DocumentChoice, entries_async
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.types import DocumentCounts, DocumentEntry, DocumentPage

from .collections import Collections, index_sums
from .document_fields import DocumentFields

# The maximum number of commands for one page. A page ends early if few ids have the prefix or if partitions are empty.
PAGE_COMMANDS = 100
SCAN_KEYS = 1000
# The maximum number of partitions that are counted at the same time.
COUNTED_AT_ONCE = 4
COUNT_SECONDS = 60.0

_PACKED = Struct(">HHQ")
_CHECK_BYTES = 4
_INDEXED = ("version", "tokenized", "analyzer", "failed")
_FIELDS = ("title", "version", "length", "sentences", "tokenized", "failed", "failure")


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a listing continues.

    Attributes:
        partitions: the number of partitions of the cluster.
        partition: the number of the partition that is listed next.
        position: the cursor of that partition's index.
    """

    partitions: int
    partition: int = 0
    position: int = 0

    def cursor(self, choice: DocumentChoice) -> str:
        """Return the position as an opaque text, which is valid only for listings of the same selection."""
        packed = _PACKED.pack(self.partitions - 1, self.partition, self.position)
        return base64.urlsafe_b64encode(packed + _check(packed, choice)).decode()

    @classmethod
    def of(cls, cursor: str, choice: DocumentChoice, partitions: int) -> _Position:
        """Parse a cursor; an empty cursor is the start of the list.

        InvalidInput if the cursor is malformed, or belongs to a different selection or a different number of
        partitions.
        """
        if not cursor:
            return cls(partitions)
        try:
            raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _invalid_cursor(cursor) from error
        packed, check = raw[: _PACKED.size], raw[_PACKED.size :]
        if len(packed) != _PACKED.size or check != _check(packed, choice):
            raise _invalid_cursor(cursor)
        most, partition, position = _PACKED.unpack(packed)
        if most + 1 != partitions:
            raise InvalidInput(
                f"cursor belongs to a cluster with {most + 1} partitions, but this cluster has {partitions}: start"
                " again without a cursor",
                place="cursor",
            )
        if partition >= partitions:
            raise _invalid_cursor(cursor)
        return cls(partitions, partition, position)

    def after(self, position: int) -> _Position | None:
        """Return the position after this page; None if the list has ended.

        `position` is the cursor that the index returned; 0: the index has no more documents.
        """
        if position:
            return _Position(self.partitions, self.partition, position)
        return _Position(self.partitions, self.partition + 1) if self.partition + 1 < self.partitions else None


def _check(packed: bytes, choice: DocumentChoice) -> bytes:
    return blake2b(packed, digest_size=_CHECK_BYTES, key=blake2b(choice.name, digest_size=16).digest()).digest()


def _invalid_cursor(cursor: str) -> InvalidInput:
    return InvalidInput(
        f"cursor must be the next_cursor of an earlier page of the same listing, got {cursor[:40]!r}: start again"
        " without a cursor",
        place="cursor",
    )


class DocumentList:
    """Lists and counts documents. `partitions` is the number of partitions of the cluster.

    >>> page = await documents.page(limit=2)
    >>> [entry.id for entry in page.documents], page.next_cursor
    (['ada.txt', 'b.txt'], 'AAsAAAAAAAAAAAACqT3o4g==')
    """

    def __init__(
        self, shards: Shards, partitions: Partitioning, collections: Collections, fields: DocumentFields
    ) -> None:
        self._shards = shards
        self._partitions = partitions
        self._collections = collections
        self._fields = fields

    async def check(self, choice: DocumentChoice) -> None:
        """Raise InvalidInput if the filter of a selection names a field that no document of the collection has."""
        await self._fields.check(choice.chosen, choice.collection)

    async def page(
        self,
        cursor: str = "",
        *,
        limit: int = DEFAULT_PAGE,
        choice: DocumentChoice = EVERYTHING,
        checked: bool = True,
    ) -> DocumentPage:
        """Return a page of up to `limit` selected documents.

        Only the last page has no `next_cursor`. Other pages may also have fewer documents than `limit`, or none.

        Args:
            cursor: the `next_cursor` of the previous page; an empty text requests the first page.
            checked: whether to check the fields of the filter.

        Raises:
            NotFound: the collection does not exist.
            InvalidInput: `limit` or `cursor` is invalid, or no document has a field of the filter. The fields are
                checked only for the first page, and only if `checked` is true.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit must be from 1 to {MAX_PAGE}, got {limit}", place="limit")
        await self._collections.check(choice.collection)
        place: _Position | None = _Position.of(cursor, choice, self._partitions.number)
        if checked and not cursor:
            await self.check(choice)
        tags = self._partitions.tags
        found: list[tuple[str, str]] = []
        commands = 0
        while place is not None and len(found) < limit and commands < PAGE_COMMANDS:
            tag = tags[place.partition]
            if choice.failed:
                commands += 1
                following, names = await self._failed_in(tag, place.position, limit - len(found), choice)
                found += [(name, tag) for name in names]
                place = place.after(following)
                continue
            count = MAX_PAGE if choice.prefix else limit - len(found)
            while True:
                commands += 1
                following, rows = await self._rows(tag, place.position, count, choice)
                matching = [i for i, (name, _) in enumerate(rows) if name.startswith(choice.prefix)]
                if len(matching) <= limit - len(found):
                    break
                # The index's cursor points after the returned rows. So request only the rows up to the last row of the
                # page.
                count = matching[limit - len(found) - 1] + 1
            found += [(rows[i][0], tag) for i in matching]
            place = place.after(following)
        entries = await self._entries(found, choice.collection)
        if choice.failed:
            # The hash of failed documents may also name documents that were written again or removed, until the worker
            # updates the hash.
            entries = tuple(entry for entry in entries if entry.failure)
        return DocumentPage(entries, None if place is None else place.cursor(choice))

    def all(self, choice: DocumentChoice = EVERYTHING) -> AsyncIterator[DocumentEntry]:
        """Yield every selected document; pages are read as needed."""
        return entries_async(lambda cursor: self.page(cursor, limit=MAX_PAGE, choice=choice))

    async def count(self, *, waiting: bool = False, choice: DocumentChoice = EVERYTHING) -> DocumentCounts:
        """Count the selected documents and their sentences.

        If `waiting` is true, the result also has the number of pending documents.

        Raises:
            NotFound: the collection does not exist.
            InvalidInput: no document has a field of the filter; or `waiting` is true and `choice` selects only some
                documents of the collection. Pending documents are in no index, so no index can select them.
        """
        await self._collections.check(choice.collection)
        if choice:
            if waiting:
                raise InvalidInput(
                    "waiting counts all pending documents: use it without prefix and filter",
                    place="waiting",
                )
            if choice.failed:
                return DocumentCounts(len([entry async for entry in self.all(choice)]), 0)
            await self.check(choice)
            turns = asyncio.Semaphore(COUNTED_AT_ONCE)
            counts = await asyncio.gather(*(self._count(tag, choice, turns) for tag in self._partitions.tags))
            return DocumentCounts(sum(documents for documents, _ in counts), sum(sentences for _, sentences in counts))
        keys = [index_key(tag, choice.collection) for tag in self._partitions.tags]
        replies = await self._shards.execute_many([(key, ("QA.INDEX.INFO", key)) for key in keys])
        return DocumentCounts(*index_sums(replies), await self._count_pending(choice.collection) if waiting else None)

    async def _count(self, tag: str, choice: DocumentChoice, turns: asyncio.Semaphore) -> tuple[int, int]:
        documents = sentences = position = 0
        async with turns:
            while True:
                position, rows = await self._rows(tag, position, MAX_PAGE, choice)
                matching = [count for name, count in rows if name.startswith(choice.prefix)]
                documents, sentences = documents + len(matching), sentences + sum(matching)
                if not position:
                    return documents, sentences

    async def _rows(
        self, tag: str, position: int, count: int, choice: DocumentChoice
    ) -> tuple[int, list[tuple[str, int]]]:
        """Return the next cursor of the index (0: no more documents), and the next documents that satisfy the filter.

        Each document is returned as its id and its number of sentences. The prefix of the selection is not applied.

        Args:
            tag: the tag of the partition.
            position: the cursor that the index returned for the rows before; 0: the start of the index.
            count: the maximum number of returned documents.
        """
        key = index_key(tag, choice.collection)
        admitted = () if choice.chosen is None else ("FILTER", choice.chosen.packed)
        following, rows = await self._shards.execute(key, "QA.INDEX.LIST", key, position, count, *admitted)
        return int(following), [(decode_id(row[0].decode()), int(row[1])) for row in rows]

    async def _failed_in(self, tag: str, position: int, count: int, choice: DocumentChoice) -> tuple[int, list[str]]:
        """Return the next position (0: no more), and up to `count` ids of a partition's failed documents.

        The documents are sorted by a digest of their names. A position is the digest of the last document that was
        returned, and 0 is the start. So a document that stays failed is listed exactly once.
        """
        key = failures_key(tag)
        names = await self._shards.execute(key, "HKEYS", key)
        chosen = sorted((_digest(name), name) for name in names if _is_chosen(name, choice))
        rest = [(digest, name) for digest, name in chosen if digest > position]
        following = rest[count - 1][0] if len(rest) > count else 0
        return following, [DocumentName(name.decode()).id for _, name in rest[:count]]

    async def _entries(self, found: Iterable[tuple[str, str]], collection: str) -> tuple[DocumentEntry, ...]:
        """Read the records of documents and return their entries. Deleted documents are left out.

        `found` has the id of each document and the tag of its partition.
        """
        wanted = list(found)
        keys = [document_key(DocumentName.of(document_id, collection), tag) for document_id, tag in wanted]
        replies = await self._shards.execute_many([(key, ("HMGET", key, *_FIELDS)) for key in keys])
        return tuple(
            _entry(document_id, reply) for (document_id, _), reply in zip(wanted, replies, strict=True) if reply[1]
        )

    async def _count_pending(self, collection: str) -> int:
        async def attempt() -> int:
            tags, turns = self._partitions.tags, asyncio.Semaphore(COUNTED_AT_ONCE)
            marks = await self._shards.execute_many([(key, ("HGET", key, "analyzer")) for key in map(layout_key, tags)])
            found = await asyncio.gather(*(self._pending_in(tag, collection, turns) for tag in tags))
            if unswept := frozenset(tag for tag, mark in zip(tags, marks, strict=True) if mark is None):
                found += await asyncio.gather(
                    *(self._pending_on(shard, unswept, collection) for shard in self._shards.all)
                )
            return len(frozenset[str]().union(*found))

        return int(await self._shards.retrying(attempt, COUNT_SECONDS))

    async def _pending_in(self, tag: str, collection: str, turns: asyncio.Semaphore) -> set[str]:
        """Return the record keys of a collection's pending documents in a partition, from the partition's hash.

        `turns` limits how many partitions are read at the same time.
        """
        found: set[str] = set()
        key, tags = pending_key(tag), frozenset([tag])
        cursor: bytes | int = 0
        async with turns:
            while True:
                cursor, fields = await self._shards.execute(key, "HSCAN", key, cursor, "COUNT", SCAN_KEYS)
                names = (f"{DOCUMENT_PREFIX}{field.decode(errors='replace')}:{{{tag}}}" for field in fields[::2])
                found |= await self._pending_of([name for name in names if _is_of(name, collection, tags)])
                if int(cursor) == 0:
                    return found

    async def _pending_of(self, names: list[str]) -> set[str]:
        """Return the given record keys whose documents are pending."""
        replies = await self._shards.execute_many([(name, ("HMGET", name, *_INDEXED)) for name in names])
        return {name for name, row in zip(names, replies, strict=True) if _is_pending(*row)}

    async def _pending_on(self, shard: Shard, tags: frozenset[str], collection: str) -> set[str]:
        """Scan a shard and return the record keys of the collection's pending documents in the partitions `tags`."""
        found: set[str] = set()
        cursor: bytes | int = 0
        while True:
            cursor, keys = await self._shards.execute_on(
                shard, "SCAN", cursor, "MATCH", f"{DOCUMENT_PREFIX}*", "COUNT", SCAN_KEYS, "TYPE", "hash"
            )
            texts = (key.decode(errors="replace") for key in keys)
            found |= await self._pending_of([name for name in texts if _is_of(name, collection, tags)])
            if int(cursor) == 0:
                return found


def _is_pending(version: bytes | None, tokenized: bytes | None, analyzer: bytes | None, failed: bytes | None) -> bool:
    """Return whether a worker must still index this version of a document.

    The arguments are fields of the document's record; None: the record lacks the field or is missing.
    """
    return version is not None and failed != version and (tokenized != version or analyzer is None)


def _digest(name: bytes) -> int:
    """Return a digest of a name as a number from 1 to 2^63 - 1."""
    return max(int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1, 1)


def _is_chosen(name: bytes, choice: DocumentChoice) -> bool:
    try:
        found = DocumentName.parse(name.decode())
        return found.collection == choice.collection and found.id.startswith(choice.prefix)
    except (InvalidInput, UnicodeDecodeError):
        return False


def _is_of(key: str, collection: str, tags: frozenset[str]) -> bool:
    parsed = parse_tagged(key, DOCUMENT_PREFIX)
    return parsed is not None and parsed[0].collection == collection and parsed[1] in tags


def _entry(document_id: str, row: list[Any]) -> DocumentEntry:
    title, version, length, sentences, tokenized, failed, failure = row
    return DocumentEntry(
        document_id,
        (title or b"").decode(),
        version.decode(),
        int(length or 0),
        int(sentences or 0),
        tokenized == version,
        (failure or b"").decode() if failed == version else "",
    )
