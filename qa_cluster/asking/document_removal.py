"""Removes many documents: all that a filter admits or whose ids have a prefix, or a collection with all it has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from qa_cluster.documents.stored import drop_answers
from qa_cluster.errors import InvalidInput, NotFound, QAError
from qa_cluster.keys import (
    COLLECTION_END,
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    WHOLE_ANSWER_PREFIX,
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
from .document_list import MAX_PAGE, DocumentChoice, DocumentList
from .document_store import DocumentStore, VersionConflict

# Each removal is a script on a shard; questions share the shards with them.
AT_A_TIME = 16
SCAN_KEYS = 1000


async def remove_all(listing: DocumentList, store: DocumentStore, choice: DocumentChoice, *, seconds: float) -> Removal:
    """Remove what the choice has, for `seconds` at most; InvalidInput for a choice that has all documents.

    Each document is removed only at the version that was listed: one that is written meanwhile may no longer be what
    was chosen. It stays, and the removal is not complete; nor is it when the time is up. Removing again goes on.
    """
    if not choice:
        raise InvalidInput(
            "removing many documents takes a prefix or a filter: without one, all would go", place="prefix"
        )
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
        """Remove a collection for `seconds` at most; NotFound where there is none, InvalidInput for the default one.

        A failure of the cluster is raised; then, too, the next removal goes on.
        """
        await self._collections.begin_removal(name)
        under_way = _UnderWay(name)
        try:
            async with asyncio.timeout(seconds):
                while not await self._pass(under_way):
                    pass
        except TimeoutError:
            return Removal(under_way.deleted, False)
        return Removal(under_way.deleted, True)

    async def _pass(self, under_way: _UnderWay) -> bool:
        """Look at all shards once; whether nothing was found there any more, so that the name could go."""
        # A key that moves from a shard still to be looked at to one that was looked at would not be seen.
        before = await self._settled(under_way.name)
        found = await asyncio.gather(*(self._remove_on(shard, under_way) for shard in self._shards.all))
        if any(found) or await self._settled(under_way.name) != before:
            return False
        return await self._collections.end_removal(under_way.name)

    async def _settled(self, name: str) -> Topology:
        """The topology once no partition is on its way to another shard."""

        async def rests(tag: str) -> None:
            epoch = epoch_key(tag, name)
            await self._shards.retrying(lambda: self._shards.execute_once(epoch, "MGET", epoch, flight_key(tag)), inf)

        await asyncio.gather(*map(rests, partition_tags(self._collections.partitions)))
        return await self._shards.refresh()

    async def _remove_on(self, shard: Shard, under_way: _UnderWay) -> int:
        """Remove what a shard has of a collection; the number of keys found."""
        found = 0
        for pattern in (f"*[:_]{under_way.name}{COLLECTION_END}*", f"{WHOLE_ANSWER_PREFIX}{under_way.name}:*"):
            cursor: bytes | int = -1
            while int(cursor) != 0:
                cursor, keys = await self._shards.execute_on(
                    shard, "SCAN", max(int(cursor), 0), "MATCH", pattern, "COUNT", SCAN_KEYS
                )
                own = [text for text in _texts(keys) if is_of(text, under_way.name)]
                await self._remove_keys(own, under_way)
                found += len(own)
        return found

    async def _remove_keys(self, keys: Sequence[str], under_way: _UnderWay) -> None:
        """Remove the documents that these keys are of, each in one step, and then what keys are left."""
        prefixes = (PARAGRAPHS_PREFIX, DOCUMENT_PREFIX, SENTENCE_PREFIX)
        documents = {parsed for key in keys for prefix in prefixes if (parsed := parse_tagged(key, prefix))}

        async def remove(document: DocumentName, tag: str) -> None:
            async with under_way.slots:
                removed = await self._store.remove(document, tag)
                under_way.deleted += removed

        await asyncio.gather(*(remove(*place) for place in documents))
        answers: dict[str, list[str]] = {}
        for key in keys:
            if key.startswith(WHOLE_ANSWER_PREFIX):
                answers.setdefault(key[key.index("{") + 1 : key.index("}")], []).append(key)
        await asyncio.gather(*(self._shards.run(drop_answers(tag, tuple(names))) for tag, names in answers.items()))
        await self._shards.execute_many(
            [(key, ("UNLINK", key)) for key in keys if not key.startswith(WHOLE_ANSWER_PREFIX)]
        )


@dataclass
class _UnderWay:
    """The removal of one collection: how many documents are removed so far."""

    name: str
    deleted: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))


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
    if key.startswith(f"{WHOLE_ANSWER_PREFIX}{collection}:{{"):
        return True
    if re.match(rf"[a-z]+(?::[a-z]+)*:{collection}{COLLECTION_END}", key):
        return True
    try:
        return parse_answer_key(key)[0].document.collection == collection
    except QAError:
        return False
