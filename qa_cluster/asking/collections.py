"""Lists, creates and deletes collections of documents.

Every partition has a list of all collections: a hash of names and states (`READY` or `DELETING`). The script that
writes a document reads the list of its own partition. So no document can be written to a collection after the deletion
has started. The list migrates with the partition, is replicated and fails over like the documents of the partition. A
collection exists while any partition lists it, so an interrupted operation loses no stored document. A collection that
only some partitions list is `INCOMPLETE`. The default collection always exists and is in no list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from qa_cluster.errors import CollectionBusy, InvalidInput, NotFound
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    Partitioning,
    check_collection,
    collections_key,
    index_key,
)
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard
from qa_cluster.types import CollectionEntry

from .freshness import Freshness

MAX_COLLECTIONS = 1000
READY, INCOMPLETE, DELETING = "ready", "incomplete", "deleting"


class Collections:
    """The collections of one cluster. `partitions` is the number of partitions of the cluster.

    >>> await collections.create("books")
    True
    >>> await collections.names()
    ('default', 'books')
    """

    def __init__(self, shards: Shards, freshness: Freshness, partitions: Partitioning) -> None:
        self._shards = shards
        self._freshness = freshness
        self.partitions = partitions
        self._states: Mapping[str, str] = {}
        self._generation = -1

    async def check(self, name: str, without: Collection[Shard] = ()) -> None:
        """Raise NotFound if the collection is missing or being deleted. The error says what to do.

        The shards are asked only if a shard has reported a change since this process last asked, or if this process may
        have missed such a report. The shards in `without` are not asked.
        """
        if name == DEFAULT_COLLECTION:
            return
        check_collection(name)
        state = (await self._current(without)).get(name)
        if state is None:
            raise missing(name)
        if state == DELETING:
            raise NotFound(f"collection {name!r} is being deleted: delete it again if the deletion was interrupted")

    async def searchable(self, without: Collection[Shard] = ()) -> tuple[str, ...]:
        """Return the names of all collections that are not being deleted, the default collection first.

        As in `check`, the shards are asked only if the states that this process knows may be outdated, and the shards
        in `without` are not asked.
        """
        states = await self._current(without)
        return (DEFAULT_COLLECTION, *(name for name, state in states.items() if state != DELETING))

    async def _current(self, without: Collection[Shard]) -> Mapping[str, str]:
        fresh = await self._freshness.drain()
        generation = self._freshness.generation
        if not fresh or generation != self._generation:
            self._states = await self._read(without)
            self._generation = generation if fresh else -1
        return self._states

    async def names(self) -> tuple[str, ...]:
        """Return the names of all collections, the default collection first."""
        return (DEFAULT_COLLECTION, *await self._read())

    async def entries(self) -> tuple[CollectionEntry, ...]:
        """Return all collections with their numbers of documents and sentences, the default collection first."""
        return await self._counted({DEFAULT_COLLECTION: READY, **await self._read()})

    async def entry(self, name: str) -> CollectionEntry:
        """Return one collection with its numbers of documents and sentences; NotFound if it does not exist."""
        state = READY if check_collection(name) == DEFAULT_COLLECTION else (await self._read()).get(name)
        if state is None:
            raise missing(name)
        (found,) = await self._counted({name: state})
        return found

    async def _counted(self, states: Mapping[str, str]) -> tuple[CollectionEntry, ...]:
        tags = self.partitions.tags
        keys = [index_key(tag, name) for name in states for tag in tags]
        replies = await self._shards.execute_many([(key, ("QA.INDEX.INFO", key)) for key in keys])
        return tuple(
            CollectionEntry(name, state, *index_sums(replies[place * len(tags) : (place + 1) * len(tags)]))
            for place, (name, state) in enumerate(states.items())
        )

    async def create(self, name: str) -> bool:
        """Create a collection and return whether it is new.

        If only some partitions list the collection, it is added to the other lists.

        Raises:
            CollectionBusy: the collection is still being deleted.
            InvalidInput: the name is invalid, or there are `MAX_COLLECTIONS` collections.
        """
        if check_collection(name) == DEFAULT_COLLECTION:
            return False
        states = await self._read()
        if name not in states and len(states) >= MAX_COLLECTIONS:
            raise InvalidInput(
                f"there are {len(states)} collections, the limit is {MAX_COLLECTIONS}: delete one before {name!r} is"
                " created"
            )
        if states.get(name) != DELETING:
            await self._everywhere("HSETNX", name, READY)
            found = await self._everywhere("HGET", name)
            if DELETING.encode() not in found:
                return name not in states
        raise CollectionBusy(f"collection {name!r} is being deleted: delete it again if the deletion was interrupted")

    async def begin_removal(self, name: str) -> None:
        """Mark a collection as being deleted, so that it refuses documents and questions.

        Raises:
            NotFound: the collection does not exist.
            InvalidInput: the collection is the default collection.
        """
        if check_collection(name) == DEFAULT_COLLECTION:
            raise InvalidInput(f"collection {name!r} always exists: delete its documents instead", place="collection")
        if name not in await self._read():
            shown = "GET /collections and `qa-cluster collections list` show all collections"
            raise NotFound(f"no such collection: {name!r}; {shown}")
        await self._everywhere("HSET", name, DELETING)

    async def end_removal(self, name: str) -> bool:
        """Remove the name of a collection from the lists of all partitions, after its documents were deleted.

        A partition whose index still has documents of the collection does not remove the name. Return true if all
        partitions have removed the name.
        """
        keys = map(collections_key, self.partitions.tags)
        replies = await self._shards.execute_many([(key, ("QA.DELCOLLECTION", key, name)) for key in keys])
        return all(replies)

    async def _everywhere(self, command: str, name: str, *value: str) -> list[Any]:
        keys = map(collections_key, self.partitions.tags)
        return await self._shards.execute_many([(key, (command, key, name, *value)) for key in keys])

    async def _read(self, without: Collection[Shard] = ()) -> dict[str, str]:
        """Return the states of all collections, sorted by name. Lists on the shards in `without` are not read."""
        keys = list(map(collections_key, self.partitions.tags))
        if without:
            keys = [key for key in keys if self._shards.shard_of_key(key) not in without]
        replies = await self._shards.execute_many([(key, ("HGETALL", key)) for key in keys])
        found: dict[str, list[str]] = {}
        for reply in replies:
            for name, state in _pairs(reply):
                found.setdefault(name, []).append(state)
        return {name: _state(found[name], len(keys)) for name in sorted(found)}


def missing(name: str) -> NotFound:
    """Return the error for a collection that does not exist."""
    return NotFound(
        f"no such collection: {name!r}; create it with POST /collections or `qa-cluster collections create {name}`"
    )


def index_sums(replies: Iterable[Any]) -> tuple[int, int]:
    """Return the total numbers of documents and sentences in indexes, from the replies to ``QA.INDEX.INFO``."""
    indexes = [dict(zip(reply[::2], reply[1::2], strict=True)) for reply in replies if reply]
    documents, sentences = (sum(int(index[name]) for index in indexes) for name in (b"documents", b"sentences"))
    return documents, sentences


def _state(states: list[str], partitions: int) -> str:
    if DELETING in states:
        return DELETING
    return READY if states.count(READY) == partitions else INCOMPLETE


def _pairs(reply: Any) -> list[tuple[str, str]]:
    flat = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
    texts = [part.decode("utf-8", "replace") for part in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
