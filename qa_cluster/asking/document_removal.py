"""Deletes documents that a filter or a prefix of their ids selects, and collections with all their documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from qa_cluster.documents.stored import drop_whole_answers
from qa_cluster.errors import DeadlineExceeded, InvalidInput, NotFound, QAError, VersionConflict
from qa_cluster.keys import (
    COLLECTION_END,
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    WHOLE_ANSWER_PREFIX,
    DocumentName,
    epoch_key,
    feedback_key,
    flight_key,
    parse_answer_key,
    parse_tagged,
    pins_key,
    synonyms_key,
    unanswered_key,
)
from qa_cluster.options.documents import MAX_PAGE, DocumentChoice
from qa_cluster.routing.shards import Shards
from qa_cluster.topology import Shard, Topology
from qa_cluster.types import DocumentEntry, Removal

from .collections import Collections
from .document_list import DocumentList
from .document_store import DocumentStore

# The maximum number of concurrent removals. Each removal runs a script on a shard, which delays the questions on this
# shard.
AT_A_TIME = 16
SCAN_KEYS = 1000


async def remove_all(listing: DocumentList, store: DocumentStore, choice: DocumentChoice, *, seconds: float) -> Removal:
    """Delete the selected documents for at most `seconds`.

    A document is deleted only if it still has the listed version, because a newer version may be outside the selection.
    The result is not complete if a client changes or deletes a selected document during the removal, or if the time is
    up. A repeated call continues the removal.

    Raises:
        InvalidInput: `choice` selects all indexed documents, because it has neither a prefix nor a filter; or no
            document has a field of the filter.
        NotFound: the collection does not exist.
    """
    if not choice:
        raise InvalidInput(
            "removing many documents needs a prefix or a filter: without either, all documents would be removed",
            place="prefix",
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
            except (NotFound, VersionConflict, DeadlineExceeded):
                return False
            return True

    removed, complete = 0, True
    cursor: str | None = ""
    while cursor is not None:
        if monotonic() >= until:
            return Removal(removed, False)
        page = await listing.page(cursor, limit=MAX_PAGE, choice=choice, checked=False)
        if page.documents and not removed:
            # Check that documents have the fields of the filter, because != with a mistyped field would select all
            # documents. If nothing is selected, skip the check: the selected documents may have been the only documents
            # with the field, and a second removal must not fail because they are gone.
            await listing.check(choice)
        outcomes = await asyncio.gather(*map(remove, page.documents))
        removed += sum(outcomes)
        complete = complete and all(outcomes)
        cursor = page.next_cursor
    return Removal(removed, complete)


class CollectionRemoval:
    """Deletes collections. `run` closes a collection to writes and questions, deletes its keys, then its name.

    `run` scans the shards for keys, because no list contains all pending documents. If a deletion ends early, the
    collection stays in the state ``deleting``; the next call of `run` continues the deletion.

    >>> await CollectionRemoval(shards, collections, store).run("books", seconds=600)
    Removal(deleted=210, complete=True)
    """

    def __init__(self, shards: Shards, collections: Collections, store: DocumentStore) -> None:
        self._shards = shards
        self._collections = collections
        self._store = store

    async def run(self, name: str, *, seconds: float) -> Removal:
        """Delete a collection for at most `seconds`.

        After the time limit or an error, a repeated call continues the deletion.

        Raises:
            NotFound: the collection does not exist.
            InvalidInput: the collection is the default collection.
        """
        await self._collections.begin_removal(name)
        progress = _Progress(name)
        try:
            async with asyncio.timeout(seconds):
                while not await self._pass(progress):
                    pass
        except TimeoutError:
            return Removal(progress.deleted, False)
        return Removal(progress.deleted, True)

    async def _pass(self, progress: _Progress) -> bool:
        """Scan all shards once and delete what is found.

        Return true if the scan found no key and the collection's name was deleted.
        """
        # A scan would miss a key that migrates from an unscanned shard to a shard that was already scanned.
        before = await self._wait_for_slots(progress.name)
        found = await asyncio.gather(*(self._remove_on(shard, progress) for shard in self._shards.all))
        if any(found) or await self._wait_for_slots(progress.name) != before:
            return False
        tag = self._collections.partitions.tag_of(progress.name)
        keys = [name_of(tag, progress.name) for name_of in (pins_key, synonyms_key, feedback_key, unanswered_key)]
        await self._shards.execute_many([(key, ("UNLINK", key)) for key in keys])
        return await self._collections.end_removal(progress.name)

    async def _wait_for_slots(self, name: str) -> Topology:
        """Wait until no partition's slot is migrating, and return the topology.

        `name` is the name of the collection. The wait has no time limit of its own: `run` cancels it.
        """

        async def settled(tag: str) -> None:
            epoch = epoch_key(tag, name)
            await self._shards.retrying(lambda: self._shards.execute_once(epoch, "MGET", epoch, flight_key(tag)), inf)

        await asyncio.gather(*map(settled, self._collections.partitions.tags))
        return await self._shards.refresh()

    async def _remove_on(self, shard: Shard, progress: _Progress) -> int:
        """Delete a collection's keys from a shard; return how many keys were found."""
        found = 0
        for pattern in (f"*[:_]{progress.name}{COLLECTION_END}*", f"{WHOLE_ANSWER_PREFIX}{progress.name}:*"):
            cursor: bytes | int = -1
            while int(cursor) != 0:
                cursor, keys = await self._shards.execute_on(
                    shard, "SCAN", max(int(cursor), 0), "MATCH", pattern, "COUNT", SCAN_KEYS
                )
                own = [text for text in _texts(keys) if is_of(text, progress.name)]
                await self._remove_keys(own, progress)
                found += len(own)
        return found

    async def _remove_keys(self, keys: Sequence[str], progress: _Progress) -> None:
        """Delete the documents of these keys, each document atomically, then the remaining keys."""
        prefixes = (PARAGRAPHS_PREFIX, DOCUMENT_PREFIX, SENTENCE_PREFIX)
        documents = {parsed for key in keys for prefix in prefixes if (parsed := parse_tagged(key, prefix))}

        async def remove(document: DocumentName, tag: str) -> None:
            async with progress.slots:
                removed = await self._store.remove(document, tag)
                progress.deleted += removed

        await asyncio.gather(*(remove(*place) for place in documents))
        answers: dict[str, list[str]] = {}
        for key in keys:
            if key.startswith(WHOLE_ANSWER_PREFIX):
                answers.setdefault(key[key.index("{") + 1 : key.index("}")], []).append(key)
        await asyncio.gather(*(self._shards.run(drop_whole_answers(tuple(names))) for names in answers.values()))
        await self._shards.execute_many(
            [(key, ("UNLINK", key)) for key in keys if not key.startswith(WHOLE_ANSWER_PREFIX)]
        )


@dataclass
class _Progress:
    """The progress of deleting one collection.

    Attributes:
        name: the name of the collection.
        deleted: the number of deleted documents.
        slots: limits the number of concurrent deletions of documents to `AT_A_TIME`.
    """

    name: str
    deleted: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))


def _texts(keys: Iterable[bytes]) -> Iterator[str]:
    """Yield the keys that are valid UTF-8. qa-cluster creates no other keys."""
    for key in keys:
        with suppress(UnicodeDecodeError):
            yield key.decode()


def is_of(key: str, collection: str) -> bool:
    """Return whether a key belongs to a collection. The question in an answer's key is ignored.

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
