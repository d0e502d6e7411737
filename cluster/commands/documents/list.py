"""`qa-cluster documents list`: lists the documents."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.asking.document_list import MAX_PAGE, ChoiceArguments
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.errors import InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import DocumentEntry, DocumentPage

from ...terminal import console, tables
from ..shared_options import CollectionOption, FilterOption, Json, client_of, refusals_as_usage
from .options import Prefix

_MAX_SHOWN_CHARS = 60


def list_documents(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    prefix: Prefix = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    limit: Annotated[int, typer.Option(help="Maximum number of documents.", min=1)] = 100,
    cursor: Annotated[
        str, typer.Option(help="Continue an earlier list at its cursor.", show_default="the first document")
    ] = "",
    json: Json = False,
) -> None:
    """Show the indexed documents. Pending documents, which are not indexed yet, are not listed.

    The list is sorted by partition, then by time of writing. If there may be more documents, the command prints the
    cursor for the rest of the list.

    Examples:

        qa-cluster documents list --prefix news/

        qa-cluster documents list --filter lang=en --filter "year>=2020"

        qa-cluster documents list --limit 1000 --json | jq -r '.data[].id'
    """
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--cursor or --filter"):
        page = _pages(client, cursor, limit, {"prefix": prefix, "filter": filter, "collection": collection})
    if json:
        console.say_json(page.to_dict())
        return
    tables.table(
        [
            {
                "id": _short(entry.id),
                "title": _short(entry.title),
                "sentences": entry.sentences,
                "characters": entry.length,
                "version": entry.version,
                "answers": "yes" if entry.tokenized else "not yet",
            }
            for entry in page.documents
        ],
        right=("sentences", "characters"),
        minor=("version", "title", "characters"),
    )
    console.say(f"{console.counted(len(page.documents), 'document')}")
    if page.next_cursor is not None:
        console.notice(f"there may be more documents: list them with --cursor {page.next_cursor}")


def _pages(client: ClusterClient, cursor: str, limit: int, choice: ChoiceArguments) -> DocumentPage:
    """Up to `limit` documents, from as many pages of the cluster as needed."""
    found: list[DocumentEntry] = []
    following: str | None = cursor
    while following is not None and len(found) < limit:
        page = client.document_page(following, limit=min(MAX_PAGE, limit - len(found)), **choice)
        found += page.documents
        following = page.next_cursor
    return DocumentPage(tuple(found), following)


def _short(text: str) -> str:
    """The beginning of a text, in one line; the JSON has the whole text."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN_CHARS else line[: _MAX_SHOWN_CHARS - 2] + ".."
