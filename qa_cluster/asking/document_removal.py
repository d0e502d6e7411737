"""Removes many documents: all that a filter admits or whose ids have a prefix, or a collection with all it has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic

from qa_cluster.errors import InvalidInput, NotFound, QAError
from qa_cluster.keys import (
    COLLECTION_END,
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    DocumentName,
    epoch_key,
    flight_key,
    parse_answer_key,
    parse_tagged,
    partition_tags,
)
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard, Topology
from qa_cluster.types import DocumentEntry, Removal

from .collections import Collections
from .document_list import MAX_PAGE, Choice, DocumentList
from .document_store import DocumentStore, VersionConflict

# Each removal is a script on a shard; questions share the shards with them.
AT_A_TIME = 16
SCAN_KEYS = 1000


async def remove_all(listing: DocumentList, store: DocumentStore, choice: Choice, *, seconds: float) -> Removal:
    """Remove what the choice has, for `seconds` at most; InvalidInput for a choice that has all documents.

    Each document is removed only at the version that was listed: one that is written meanwhile may no longer be what
    was chosen. It stays, and the removal is not complete; nor is it when the time is up. Removing again goes on.
    """
    if not choice:
        raise InvalidInput("removing many documents takes a prefix or a filter: without one, all would go")
    until = monotonic() + seconds
    slots = asyncio.Semaphore(AT_A_TIME)

    async def remove(entry: DocumentEntry) -> bool:
        async with slots:
            if monotonic() >= until:
                return False
            try:
                await store.delete(
                    entry.id,
                    collection=choice.collection,
                    if_version=entry.version,
                    timeout=max(until - monotonic(), 0.1),
                )
            except (NotFound, VersionConflict):
                return False
            return True

    removed, complete = 0, True
    cursor: str | None = ""
    while cursor is not None:
        if monotonic() >= until:
            return Removal(removed, False)
        page = await listing.page(cursor, limit=MAX_PAGE, choice=choice)
        outcomes = await asyncio.gather(*map(remove, page.documents))
        removed += sum(outcomes)
        complete = complete and all(outcomes)
        cursor = page.next_cursor
    return Removal(removed, complete)


class CollectionRemoval:
    """Removes collections: `run` first closes one to writes and questions, then removes its keys, then its name.

    It looks for keys and not for documents that are listed: documents that still wait for a worker are in no list. A
    removal that ends early leaves a collection that is being deleted, and the next one goes on with it.

    >>> await CollectionRemoval(shards, collections, store).run("books", seconds=600)
    Removal(deleted=210, complete=True)
    """

    def __init__(self, shards: Shards, collections: Collections, store: DocumentStore) -> None:
        self._shards = shards
        self._collections = collections
        self._store = store

    async def run(self, name: str, *, seconds: float) -> Removal:
        """Remove a collection for `seconds` at most; NotFound where there is none, InvalidInput for the default one."""
        until = monotonic() + seconds
        await self._collections.begin_removal(name)
        removed = 0
        while monotonic() < until:
            # A key that moves from a shard still to be looked at to one that was looked at would not be seen.
            before = await self._settled(name)
            shards = (self._remove_on(shard, name, until) for shard in self._shards.all)
            counts = await asyncio.gather(*shards)
            removed += sum(documents for _, documents in counts)
            if any(found for found, _ in counts):
                continue
            settled = monotonic() < until and await self._settled(name) == before
            if settled and await self._collections.end_removal(name):
                return Removal(removed, True)
        return Removal(removed, False)

    async def _settled(self, name: str) -> Topology:
        """The topology once no partition is on its way to another shard."""
        keys = [(epoch_key(tag, name), flight_key(tag)) for tag in partition_tags(self._collections.partitions)]
        await self._shards.execute_many([(first, ("MGET", first, flight)) for first, flight in keys])
        return await self._shards.refresh()

    async def _remove_on(self, shard: Shard, name: str, until: float) -> tuple[int, int]:
        """Remove what a shard has of a collection; the number of keys found, and of documents removed."""
        found = removed = 0
        for pattern in (f"*[:_]{name}{COLLECTION_END}*", f"answer:{name}:*"):
            cursor: bytes | int = 0
            while monotonic() < until:
                cursor, keys = await self._shards.execute_on(
                    shard, "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS
                )
                own = [text for text in _texts(keys) if is_of(text, name)]
                found += len(own)
                removed += await self._remove_keys(own, until)
                if int(cursor) == 0:
                    break
            else:
                return found + 1, removed
        return found, removed

    async def _remove_keys(self, keys: Sequence[str], until: float) -> int:
        """Remove the documents that these keys are of, each in one step, and then what keys are left."""
        slots = asyncio.Semaphore(AT_A_TIME)
        prefixes = (PARAGRAPHS_PREFIX, DOCUMENT_PREFIX, SENTENCE_PREFIX)
        documents = {parsed for key in keys for prefix in prefixes if (parsed := parse_tagged(key, prefix))}

        async def remove(document: DocumentName, tag: str) -> bool:
            async with slots:
                left = until - monotonic()
                try:
                    return left > 0 and await self._store.remove(document, tag, left)
                except TimeoutError:
                    return False

        removed = sum(await asyncio.gather(*(remove(*place) for place in documents)))
        if monotonic() < until:
            await self._shards.execute_many([(key, ("UNLINK", key)) for key in keys])
        return removed


def _texts(keys: Iterable[bytes]) -> Iterator[str]:
    """The keys that are UTF-8: none of ours is not."""
    for key in keys:
        with suppress(UnicodeDecodeError):
            yield key.decode()


def is_of(key: str, collection: str) -> bool:
    """Whether a key holds a part of a collection; a question may only look like it.

    >>> is_of("sentence:books%/moby:{06S}", "books"), is_of("bertqa{06S}_a:{06S}:0_what is :books%/", "books")
    (True, False)
    """
    if key.startswith(f"answer:{collection}:{{"):
        return True
    if re.match(rf"[a-z]+(?::[a-z]+)*:{collection}{COLLECTION_END}", key):
        return True
    try:
        return parse_answer_key(key)[0].document.collection == collection
    except QAError:
        return False
