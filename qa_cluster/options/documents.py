"""Selections of a collection's documents, and pages of documents. The module does no I/O and does not import numpy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import orjson

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.ranking.filters import Filter, chosen_by
from qa_cluster.types import DocumentEntry, DocumentPage

MAX_PAGE = 1000
DEFAULT_PAGE = 100
# The default limit of listed values of a field.
DEFAULT_SHOWN_VALUES = 100


def entries(page_at: Callable[[str], DocumentPage]) -> Iterator[DocumentEntry]:
    """Yield the documents of all pages; `page_at` returns the page at a cursor. The empty cursor is the first page."""
    cursor: str | None = ""
    while cursor is not None:
        page = page_at(cursor)
        yield from page.documents
        cursor = page.next_cursor


async def entries_async(page_at: Callable[[str], Awaitable[DocumentPage]]) -> AsyncIterator[DocumentEntry]:
    """Yield the documents of all pages, like `entries`; `page_at` is awaited."""
    cursor: str | None = ""
    while cursor is not None:
        page = await page_at(cursor)
        for entry in page.documents:
            yield entry
        cursor = page.next_cursor


@dataclass(frozen=True, slots=True)
class DocumentChoice:
    """A selection of a collection's documents: ids that start with `prefix`, and metadata that satisfies the filter
    `chosen`.

    With `failed`, it selects failed documents instead of indexed documents. A selection without `prefix`, `chosen` and
    `failed` selects all indexed documents of its collection, and its truth value is false.
    """

    prefix: str = ""
    chosen: Filter | None = None
    collection: str = DEFAULT_COLLECTION
    failed: bool = False

    @classmethod
    def of(
        cls,
        prefix: str = "",
        filters: Mapping[str, Any] | None = None,
        filter: str | Iterable[str] = (),
        collection: str = DEFAULT_COLLECTION,
        failed: bool = False,
    ) -> DocumentChoice:
        """Create a selection from the options of a client; raise InvalidInput or InputTooLong if an option is wrong."""
        chosen = chosen_by(filters, (filter,) if isinstance(filter, str) else tuple(filter))
        if failed and chosen is not None:
            raise InvalidInput(
                "failed documents are in no index, so filters cannot select them: leave the filter out",
                place="failed",
            )
        return cls(prefix, chosen, check_collection(collection), failed)

    def __bool__(self) -> bool:
        return bool(self.prefix) or self.chosen is not None or self.failed

    @property
    def name(self) -> bytes:
        """The name that identifies the selection in cursors. Equal selections have equal names."""
        own: tuple[object, ...] = () if self.collection == DEFAULT_COLLECTION else (self.collection,)
        if self.failed:
            own = (*own, True)
        return orjson.dumps((self.prefix, None if self.chosen is None else self.chosen.canonical, *own))


EVERYTHING = DocumentChoice()


class ChoiceArguments(TypedDict, total=False):
    """The arguments of `DocumentChoice.of` as the clients accept them. None means the default."""

    prefix: str | None
    filters: Mapping[str, Any] | None
    filter: str | Iterable[str] | None
    collection: str | None
    failed: bool | None


def choice_of(arguments: ChoiceArguments) -> DocumentChoice:
    """Create a selection from the arguments of a client.

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
        bool(arguments.get("failed")),
    )
