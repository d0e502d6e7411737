"""Changes the metadata of many documents, selected by a filter or a prefix of their ids."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic

from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.errors import DeadlineExceeded, InvalidInput, NotFound, VersionConflict
from qa_cluster.options.documents import DocumentChoice
from qa_cluster.types import DocumentEntry, MetadataUpdate

from .document_list import DocumentList
from .document_store import DocumentStore

# The maximum number of concurrent changes. Each change runs a script on a shard, which delays the questions on this
# shard.
AT_A_TIME = 16
# The number of documents in a page. An update that reached its time limit resumes at its last page, so it repeats at
# most one page.
PAGE = 200


async def update_all(
    listing: DocumentList,
    store: DocumentStore,
    choice: DocumentChoice,
    change: MetadataChange,
    *,
    cursor: str = "",
    seconds: float,
) -> MetadataUpdate:
    """Change the metadata of the selected documents for at most `seconds`.

    A document is changed only if it still has the listed version, because a newer version may be outside the selection.
    A change of metadata keeps the document's position in the list. So each document is listed once, even if the filter
    still selects it.

    Args:
        cursor: the `next_cursor` of an update that reached its time limit; empty: start at the first document.

    Raises:
        InvalidInput: `choice` selects all indexed documents, because it has neither a prefix nor a filter; or no
            document has a field of the filter.
        NotFound: the collection does not exist.
    """
    if not choice:
        raise InvalidInput(
            "updating many documents needs a prefix or a filter: without either, all documents would be changed",
            place="prefix",
        )
    until = monotonic() + seconds
    slots = asyncio.Semaphore(AT_A_TIME)

    async def update(entry: DocumentEntry) -> str:
        async with slots:
            if (left := until - monotonic()) <= 0:
                return "late"
            try:
                written = await store.change_metadata(
                    entry.id, change, collection=choice.collection, if_version=entry.version, timeout=left
                )
            except (NotFound, VersionConflict):
                return "skipped"
            except DeadlineExceeded:
                return "late"
            return "updated" if written.changed else "unchanged"

    counts: Counter[str] = Counter()
    following: str | None = cursor
    while following is not None:
        if monotonic() >= until:
            break
        page = await listing.page(following, limit=PAGE, choice=choice, checked=False)
        if page.documents and not counts and not cursor:
            await listing.check(choice)
        found = Counter(await asyncio.gather(*map(update, page.documents)))
        counts += found
        if found["late"]:
            break
        following = page.next_cursor
    complete = following is None and not counts["skipped"]
    return MetadataUpdate(counts["updated"], counts["unchanged"], counts["skipped"], complete, following)
