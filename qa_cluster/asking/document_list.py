"""The documents of a collection, page by page, and how many there are.

A partition's index lists its documents in the order in which they were written; a listing goes through the partitions
one after the other. It needs no state on the shards: a cursor names the partition and the place in it, and an index
keeps its places across restarts and moves of its slot. So a document that does not change meanwhile is listed exactly
once. A document that is new meanwhile may be listed or not, and one that gets a new version may be listed twice.

Documents that wait for their shard's worker are in no index: they are not listed, and to count them, the record of
every document has to be read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, TypedDict

import orjson

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    DOCUMENT_PREFIX,
    DocumentName,
    check_collection,
    decode_id,
    document_key,
    index_key,
    parse_tagged,
    partition_tags,
)
from qa_cluster.ranking.filters import Filter, chosen_by
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.types import DocumentCounts, DocumentEntry, DocumentPage

from .collections import Collections, index_sums

MAX_PAGE = 1000
DEFAULT_PAGE = 100
# Most commands for one page: when few ids have the prefix, or partitions are empty, the page ends early.
PAGE_COMMANDS = 100
SCAN_KEYS = 1000
COUNT_SECONDS = 60.0

_PLACE = Struct(">HHQ")
_CHECK_BYTES = 4
_INDEXED = ("version", "tokenized", "analyzer")
_FIELDS = ("title", "version", "length", "sentences", "tokenized")


def entries(page_at: Callable[[str], DocumentPage]) -> Iterator[DocumentEntry]:
    """The documents of all pages; `page_at` reads the page at a cursor."""
    cursor: str | None = ""
    while cursor is not None:
        page = page_at(cursor)
        yield from page.documents
        cursor = page.next_cursor


async def entries_async(page_at: Callable[[str], Awaitable[DocumentPage]]) -> AsyncIterator[DocumentEntry]:
    """The same for a `page_at` that is awaited."""
    cursor: str | None = ""
    while cursor is not None:
        page = await page_at(cursor)
        for entry in page.documents:
            yield entry
        cursor = page.next_cursor


@dataclass(frozen=True, slots=True)
class DocumentChoice:
    """Which documents of a collection: those whose ids begin with `prefix` and that the filter admits.

    It is false if it has all of them, as the default does.
    """

    prefix: str = ""
    chosen: Filter | None = None
    collection: str = DEFAULT_COLLECTION

    @classmethod
    def of(
        cls,
        prefix: str = "",
        filters: Mapping[str, Any] | None = None,
        filter: str | Iterable[str] = (),
        collection: str = DEFAULT_COLLECTION,
    ) -> DocumentChoice:
        """From options as clients give them; InvalidInput or InputTooLong says what is wrong."""
        chosen = chosen_by(filters, (filter,) if isinstance(filter, str) else tuple(filter))
        return cls(prefix, chosen, check_collection(collection))

    def __bool__(self) -> bool:
        return bool(self.prefix) or self.chosen is not None

    @property
    def name(self) -> bytes:
        """The same for equal choices."""
        own = () if self.collection == DEFAULT_COLLECTION else (self.collection,)
        return orjson.dumps((self.prefix, None if self.chosen is None else self.chosen.canonical, *own))


EVERYTHING = DocumentChoice()


class ChoiceArguments(TypedDict, total=False):
    """The arguments of `Choice.of` as the clients take them; None is the default of each."""

    prefix: str | None
    filters: Mapping[str, Any] | None
    filter: str | Iterable[str] | None
    collection: str | None


def choice_of(arguments: ChoiceArguments) -> DocumentChoice:
    """The choice that a client was given.

    >>> choice_of({"prefix": "news/", "filter": None}).prefix
    'news/'
    """
    if unknown := sorted(set(arguments) - set(ChoiceArguments.__annotations__)):
        raise InvalidInput(f"unknown option {unknown[0]!r} of a choice of documents")
    collection = arguments.get("collection")
    return DocumentChoice.of(
        arguments.get("prefix") or "",
        arguments.get("filters"),
        arguments.get("filter") or (),
        DEFAULT_COLLECTION if collection is None else collection,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a listing goes on: how many partitions there are, the number of one, and the cursor of its index."""

    partitions: int
    partition: int = 0
    position: int = 0

    def cursor(self, choice: DocumentChoice) -> str:
        """The place as opaque text, valid for listings of the same choice only."""
        packed = _PLACE.pack(self.partitions - 1, self.partition, self.position)
        return base64.urlsafe_b64encode(packed + _check(packed, choice)).decode()

    @classmethod
    def of(cls, cursor: str, choice: DocumentChoice, partitions: int) -> _Place:
        """The place that a cursor names; an empty one names the beginning. InvalidInput if we did not make it."""
        if not cursor:
            return cls(partitions)
        try:
            raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _wrong(cursor) from error
        packed, check = raw[: _PLACE.size], raw[_PLACE.size :]
        if len(packed) != _PLACE.size or check != _check(packed, choice):
            raise _wrong(cursor)
        most, partition, position = _PLACE.unpack(packed)
        if most + 1 != partitions:
            raise InvalidInput(
                f"cursor is of a cluster with {most + 1} partitions, this one has {partitions}: begin again without it",
                place="cursor",
            )
        if partition >= partitions:
            raise _wrong(cursor)
        return cls(partitions, partition, position)

    def after(self, position: int) -> _Place | None:
        """The place after what an index has listed, given its next cursor; None after the last partition."""
        if position:
            return _Place(self.partitions, self.partition, position)
        return _Place(self.partitions, self.partition + 1) if self.partition + 1 < self.partitions else None


def _check(packed: bytes, choice: DocumentChoice) -> bytes:
    return blake2b(packed, digest_size=_CHECK_BYTES, key=blake2b(choice.name, digest_size=16).digest()).digest()


def _wrong(cursor: str) -> InvalidInput:
    return InvalidInput(
        f"cursor must be the next_cursor of an earlier page of the same listing, got {cursor[:40]!r}: begin again"
        " without it",
        place="cursor",
    )


class DocumentList:
    """Lists and counts documents. `partitions` is the number of partitions of the cluster.

    >>> page = await documents.page(limit=2)
    >>> [entry.id for entry in page.documents], page.next_cursor
    (['ada.txt', 'b.txt'], 'AAsAAAAAAAAAAAACqT3o4g==')
    """

    def __init__(self, shards: Shards, partitions: int, collections: Collections) -> None:
        self._shards = shards
        self.partitions = partitions
        self._collections = collections

    async def page(
        self, cursor: str = "", *, limit: int = DEFAULT_PAGE, choice: DocumentChoice = EVERYTHING
    ) -> DocumentPage:
        """Up to `limit` documents of the choice, from `cursor` on; a short page may not be the last."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit must be from 1 to {MAX_PAGE}, got {limit}", place="limit")
        await self._collections.check(choice.collection)
        place: _Place | None = _Place.of(cursor, choice, self.partitions)
        tags = partition_tags(self.partitions)
        found: list[tuple[str, str]] = []
        commands = 0
        while place is not None and len(found) < limit and commands < PAGE_COMMANDS:
            tag = tags[place.partition]
            count = MAX_PAGE if choice.prefix else limit - len(found)
            while True:
                commands += 1
                following, rows = await self._rows(tag, place.position, count, choice)
                matching = [i for i, (name, _) in enumerate(rows) if name.startswith(choice.prefix)]
                if len(matching) <= limit - len(found):
                    break
                # The index's cursor names only the place after all that it has listed: ask for what fits on the page.
                count = matching[limit - len(found) - 1] + 1
            found += [(rows[i][0], tag) for i in matching]
            place = place.after(following)
        entries = await self._entries(found, choice.collection)
        return DocumentPage(entries, None if place is None else place.cursor(choice))

    def all(self, choice: DocumentChoice = EVERYTHING) -> AsyncIterator[DocumentEntry]:
        """Every document of the choice, page by page."""
        return entries_async(lambda cursor: self.page(cursor, limit=MAX_PAGE, choice=choice))

    async def count(self, *, waiting: bool = False, choice: DocumentChoice = EVERYTHING) -> DocumentCounts:
        """How many documents and sentences answers come from; with `waiting` also how many documents are not ready.

        To count the latter, it reads the record of every document; to count those of a choice, it lists them. Of
        documents that are not ready no index knows which choice they belong to: InvalidInput for both together.
        """
        await self._collections.check(choice.collection)
        if choice:
            if waiting:
                raise InvalidInput(
                    "waiting counts all documents that are not ready: ask for it without prefix and filter",
                    place="waiting",
                )
            counts = await asyncio.gather(*(self._count(tag, choice) for tag in partition_tags(self.partitions)))
            return DocumentCounts(sum(documents for documents, _ in counts), sum(sentences for _, sentences in counts))
        keys = [index_key(tag, choice.collection) for tag in partition_tags(self.partitions)]
        replies = await self._shards.execute_many([(key, ("QA.INDEX.INFO", key)) for key in keys])
        return DocumentCounts(*index_sums(replies), await self._waiting(choice.collection) if waiting else None)

    async def _count(self, tag: str, choice: DocumentChoice) -> tuple[int, int]:
        documents = sentences = position = 0
        while True:
            position, rows = await self._rows(tag, position, MAX_PAGE, choice)
            matching = [count for name, count in rows if name.startswith(choice.prefix)]
            documents, sentences = documents + len(matching), sentences + sum(matching)
            if not position:
                return documents, sentences

    async def _rows(
        self, tag: str, position: int, count: int, choice: DocumentChoice
    ) -> tuple[int, list[tuple[str, int]]]:
        """The next cursor; ids of documents that the filter admits, with the number of their sentences."""
        key = index_key(tag, choice.collection)
        admitted = () if choice.chosen is None else ("FILTER", choice.chosen.packed)
        following, rows = await self._shards.execute(key, "QA.INDEX.LIST", key, position, count, *admitted)
        return int(following), [(decode_id(row[0].decode()), int(row[1])) for row in rows]

    async def _entries(self, found: Iterable[tuple[str, str]], collection: str) -> tuple[DocumentEntry, ...]:
        """The entries of documents, from their records; a document that was removed meanwhile is left out."""
        wanted = list(found)
        keys = [document_key(DocumentName.of(document_id, collection), tag) for document_id, tag in wanted]
        replies = await self._shards.execute_many([(key, ("HMGET", key, *_FIELDS)) for key in keys])
        return tuple(
            _entry(document_id, reply) for (document_id, _), reply in zip(wanted, replies, strict=True) if reply[1]
        )

    async def _waiting(self, collection: str) -> int:
        async def attempt() -> int:
            tags = frozenset(partition_tags(self.partitions))
            found = await asyncio.gather(*(self._waiting_on(shard, tags, collection) for shard in self._shards.all))
            return len(frozenset[str]().union(*found))

        return int(await self._shards.retrying(attempt, COUNT_SECONDS))

    async def _waiting_on(self, shard: Shard, tags: frozenset[str], collection: str) -> set[str]:
        """The keys of a collection's records on a shard whose documents are not indexed at their current version."""
        found: set[str] = set()
        cursor: bytes | int = 0
        while True:
            cursor, keys = await self._shards.execute_on(
                shard, "SCAN", cursor, "MATCH", f"{DOCUMENT_PREFIX}*", "COUNT", SCAN_KEYS, "TYPE", "hash"
            )
            names = [name for key in keys if _is_of(name := key.decode(errors="replace"), collection, tags)]
            replies = await self._shards.execute_many([(name, ("HMGET", name, *_INDEXED)) for name in names])
            found |= {name for name, row in zip(names, replies, strict=True) if _waits(*row)}
            if int(cursor) == 0:
                return found


def _waits(version: bytes | None, tokenized: bytes | None, analyzer: bytes | None) -> bool:
    """Whether no index has this version of a document; before the module had indexes, records had no analyzer."""
    return version is not None and (tokenized != version or analyzer is None)


def _is_of(key: str, collection: str, tags: frozenset[str]) -> bool:
    parsed = parse_tagged(key, DOCUMENT_PREFIX)
    return parsed is not None and parsed[0].collection == collection and parsed[1] in tags


def _entry(document_id: str, row: list[Any]) -> DocumentEntry:
    title, version, length, sentences, tokenized = row
    return DocumentEntry(
        document_id,
        (title or b"").decode(),
        version.decode(),
        int(length or 0),
        int(sentences or 0),
        tokenized == version,
    )
