"""Removes all documents that a filter admits, or whose ids have a prefix."""

from __future__ import annotations

import asyncio
from time import monotonic

from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.types import DocumentEntry, Removal

from .document_list import MAX_PAGE, Choice, DocumentList
from .document_store import DocumentStore, VersionConflict

# Each removal is a script on a shard; questions share the shards with them.
AT_A_TIME = 16


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
                await store.delete(entry.id, if_version=entry.version, timeout=max(until - monotonic(), 0.1))
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
