"""`qa-cluster documents ..`: lists, counts, shows, updates and deletes stored documents."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.documents.source_map import FIELD, NO_MAP, read_map, shown_metadata
from qa_cluster.documents.stored import MAX_ID_BYTES
from qa_cluster.errors import InvalidInput, NotFound, RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.documents import MAX_PAGE, ChoiceArguments
from qa_cluster.ranking.filters import metadata_of
from qa_cluster.types import DocumentEntry, DocumentPage, MetadataUpdate

from ...terminal import console, tables
from ..shared_options import (
    CollectionOption,
    FilterOption,
    Json,
    YesOption,
    audit_of,
    client_of,
    confirm_deletion,
    refusals_as_usage,
    text_option,
)

Prefix = Annotated[
    str, typer.Option(help=f"Only documents whose ids start with this prefix of at most {MAX_ID_BYTES} bytes.")
]


Ids = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids of the documents; `qa-cluster documents list` lists them.", metavar="ID", show_default=False
    ),
]

_MAX_SHOWN_CHARS = 60
_FAILED = 1
_STEP_SECONDS = 10.0


def list_documents(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    prefix: Prefix = "",
    filter: FilterOption = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only documents that could not be indexed. Not with --filter.")
    ] = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    limit: Annotated[int, typer.Option(help="Maximum number of documents.", min=1)] = 100,
    cursor: Annotated[
        str, typer.Option(help="Continue an earlier list at its cursor.", show_default="the first document")
    ] = "",
    json: Json = False,
) -> None:
    """Show the indexed documents, or with --failed the failed documents. Pending documents are not listed.

    A document fails if two workers ended while they indexed it, or if splitting its text takes too long. The cluster
    retries only after a client has written the document again.

    The list is sorted by partition, then by time of writing (with --failed, by a digest of the name). If there may be
    more documents, the command prints the cursor for the rest of the list.

    Examples:

        qa-cluster documents list --prefix news/

        qa-cluster documents list --filter lang=en --filter "year>=2020"

        qa-cluster documents list --failed

        qa-cluster documents list --limit 1000 --json | jq -r '.data[].id'
    """
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--cursor or --filter"):
        choice: ChoiceArguments = {"prefix": prefix, "filter": filter, "collection": collection, "failed": failed}
        page = _pages(client, cursor, limit, choice)
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
                "indexed": entry.failure or ("yes" if entry.tokenized else "pending"),
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
    """Return up to `limit` documents from `cursor` on (empty: from the first document), with the cursor for the rest.
    One reply of the cluster has at most `MAX_PAGE` documents, so send several requests if needed.
    """
    found: list[DocumentEntry] = []
    following: str | None = cursor
    while following is not None and len(found) < limit:
        page = client.document_page(following, limit=min(MAX_PAGE, limit - len(found)), **choice)
        found += page.documents
        following = page.next_cursor
    return DocumentPage(tuple(found), following)


def _short(text: str) -> str:
    """Return the start of a text, at most `_MAX_SHOWN_CHARS` characters on one line. The output of --json has the whole
    text instead.
    """
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN_CHARS else line[: _MAX_SHOWN_CHARS - 2] + ".."


def count(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    prefix: Prefix = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    waiting: Annotated[
        bool,
        typer.Option(
            "--waiting/--no-waiting",
            help="Also count pending documents, which are stored but not indexed yet. This reads the record of every"
            " document. With --prefix or --filter, pending documents are not counted.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Count the indexed documents and sentences, and the pending documents, which are not indexed yet.

    Examples:

        qa-cluster documents count --json | jq .documents

        qa-cluster documents count --filter lang=en
    """
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--filter"):
        found = client.count_documents(
            waiting=waiting and not (prefix or filter), prefix=prefix, filter=filter, collection=collection
        )
    if json:
        console.say_json(found.to_dict())
        return
    text = f"{console.counted(found.documents, 'document')}, {console.counted(found.sentences, 'sentence')}"
    console.say(text if found.waiting is None else f"{text}; {found.waiting} pending")


def show(
    context: typer.Context,
    id: Annotated[
        str, typer.Argument(help="Id of the document; `qa-cluster documents list` lists the ids.", metavar="ID")
    ],
    collection: CollectionOption = DEFAULT_COLLECTION,
    json: Json = False,
) -> None:
    """Show the record and the text of a document. The exit code is 1 if the document does not exist.

    The source map maps text offsets to positions in the file. The record shows only the sizes of the source map; --json
    prints the whole map.

    Example: qa-cluster documents show news/today.txt --json | jq -r .text
    """
    with client_of(context) as client:
        found = client.get_document(id, collection=collection)
    if json:
        console.say_json(found.to_dict())
        return
    metadata = shown_metadata(found.metadata)
    about = {
        "id": found.id,
        "title": found.title,
        "version": found.version,
        "sentences": found.sentences,
        "indexed": found.failure or ("yes" if found.tokenized else "pending"),
        "file": _file(found.metadata),
        "metadata": json_module.dumps(metadata, ensure_ascii=False) if metadata else "",
    }
    tables.table([{"": name, "value": value} for name, value in about.items() if value != ""])
    console.say(found.text.rstrip())


def _file(metadata: Mapping[str, Any]) -> str:
    """Return the source file of a document and the sizes of its source map, as a text for the user. Return an empty
    text if the metadata has no source map.
    """
    if FIELD not in metadata:
        return ""
    size = f"{len(json_module.dumps(metadata[FIELD], ensure_ascii=False).encode()):,} bytes in metadata.{FIELD}"
    found = read_map(metadata)
    if found is NO_MAP:
        return f"unreadable source map, {size}"
    about = [f"{found.file or 'no name'} ({found.format})" if found.format else found.file or "no name"]
    for number, noun in ((len(found.starts), "section"), (len(found.place_starts), f"{found.unit} number")):
        about += [console.counted(number, noun)] if number else []
    return "; ".join([*about, size])


def update(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    ids: Ids = None,
    prefix: Prefix = "",
    filter: FilterOption = None,
    metadata: Annotated[
        list[str] | None,
        text_option("NAME=VALUE", "Set a metadata field: name=value, or name=one,two for an array. Repeatable."),
    ] = None,
    remove: Annotated[list[str] | None, text_option("NAME", "Remove a metadata field. Repeatable.")] = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    json: Json = False,
) -> None:
    """Change the metadata of documents by id, or of all documents that match a prefix or filter. The texts stay
    unchanged.

    A value such as 5, true or null is a number, boolean or null. In double quotes, it is text. The command does not
    index the texts again. You can repeat it safely.

    The exit code is 1 if a document does not exist, or if a client wrote a matching document meanwhile. The command
    skips such documents and updates all others.

    Examples:

        qa-cluster documents update manual.txt --metadata status=final --remove draft

        qa-cluster documents update --filter status=draft --metadata status=final

        qa-cluster documents update --prefix news/ --filter lang=null --metadata lang=en
    """
    if bool(ids) == bool(prefix or filter):
        raise typer.BadParameter("give either the ids of documents, or --prefix or --filter")
    audit = audit_of(context)
    with refusals_as_usage(RequestError, "--metadata or --remove"):
        fields, removed = metadata_of(metadata or ()), tuple(remove or ())
        MetadataChange.of(fields, removed)
    missing: list[str] = []
    with client_of(context) as client:
        if ids:
            update, missing = _update_by_id(client, ids, fields, removed, collection)
        else:
            choice: ChoiceArguments = {"prefix": prefix, "filter": filter, "collection": collection}
            with refusals_as_usage(InvalidInput, "--filter"):
                update = _update_matching(client, fields, removed, choice)
    audit.note("documents.update", collection=collection, updated=update.updated, skipped=update.skipped)
    if json:
        console.say_json({**update.to_dict(), "missing": missing})
    else:
        console.say(f"{console.counted(update.updated, 'document')} updated, {update.unchanged} unchanged")
    for document_id in missing:
        console.error(f"no such document: {document_id!r}")
    if update.skipped:
        written = "matching document was" if update.skipped == 1 else "matching documents were"
        console.error(f"{update.skipped} {written} written meanwhile: repeat the command to update the rest")
    if missing or update.skipped:
        raise typer.Exit(_FAILED)


def _update_by_id(
    client: ClusterClient, ids: list[str], fields: dict[str, Any], remove: tuple[str, ...], collection: str
) -> tuple[MetadataUpdate, list[str]]:
    client.collection(collection)
    missing: list[str] = []
    updated = unchanged = 0
    for document_id in dict.fromkeys(ids):
        try:
            written = client.update_document(document_id, fields, remove=remove, collection=collection)
        except NotFound:
            missing.append(document_id)
            continue
        updated, unchanged = updated + written.changed, unchanged + (not written.changed)
    return MetadataUpdate(updated, unchanged, 0, not missing), missing


def _update_matching(
    client: ClusterClient, fields: dict[str, Any], remove: tuple[str, ...], choice: ChoiceArguments
) -> MetadataUpdate:
    """Update the documents that match `choice` with several requests, each of at most `_STEP_SECONDS`. Show the number
    of documents after each request. Return the sum of all replies.
    """
    found = MetadataUpdate(0, 0, 0, False, "")
    with console.progress("updating", None) as advance:
        while found.next_cursor is not None:
            step = client.update_documents(
                fields, remove=remove, cursor=found.next_cursor, timeout=_STEP_SECONDS, **choice
            )
            found = MetadataUpdate(
                found.updated + step.updated,
                found.unchanged + step.unchanged,
                found.skipped + step.skipped,
                False,
                step.next_cursor,
            )
            advance(found.updated + found.unchanged)
    return replace(found, complete=not found.skipped)


def delete(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    ids: Ids = None,
    prefix: Prefix = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    yes: YesOption = False,
    json: Json = False,
) -> None:
    """Delete documents by id, or all documents that match a prefix or filter.

    The exit code is 1 if a document does not exist, or if a client wrote a matching document meanwhile. The command
    keeps such a document and deletes all others.

    On a terminal, the command asks first. Elsewhere it needs --yes.

    Examples:

        qa-cluster documents delete news/old.txt news/older.txt

        qa-cluster documents delete --prefix news/ --filter "year<2020"
    """
    if bool(ids) == bool(prefix or filter):
        raise typer.BadParameter("give either the ids of documents, or --prefix or --filter")
    if ids:
        what = repr(ids[0]) if len(ids) == 1 else console.counted(len(ids), "document")
        confirm_deletion(f"{what} from collection {collection}", yes)
        _delete_by_id(context, ids, collection, json)
    else:
        _delete_matching(context, {"prefix": prefix, "filter": filter, "collection": collection}, yes, json)


def _delete_matching(context: typer.Context, choice: ChoiceArguments, yes: bool, json: bool) -> None:
    audit = audit_of(context)
    if not yes and not console.is_answered():
        confirm_deletion("all matching documents", yes)
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--filter"):
        if not yes:
            number = client.count_documents(**choice).documents
            confirm_deletion(f"{console.counted(number, 'document')} from collection {choice['collection']}", yes)
        removal = client.delete_documents(**choice)
    audit.note("documents.delete", collection=choice.get("collection"), deleted=removal.deleted)
    if json:
        console.say_json(removal.to_dict())
    else:
        console.say(f"{console.counted(removal.deleted, 'document')} deleted")
    if not removal.complete:
        console.error(
            "some matching documents were not deleted, because a client wrote them meanwhile or the time limit ended:"
            " repeat the command to delete them"
        )
        raise typer.Exit(_FAILED)


def _delete_by_id(context: typer.Context, ids: list[str], collection: str, json: bool) -> None:
    audit = audit_of(context)
    deleted: list[str] = []
    missing: list[str] = []
    with client_of(context) as client:
        client.collection(collection)
        for document_id in dict.fromkeys(ids):
            try:
                client.delete_document(document_id, collection=collection)
                deleted.append(document_id)
                audit.note("document.delete", collection=collection, document=document_id)
            except NotFound:
                missing.append(document_id)
    if json:
        console.say_json({"deleted": deleted, "missing": missing})
    else:
        console.say(f"{console.counted(len(deleted), 'document')} deleted")
    for document_id in missing:
        console.error(f"no such document: {document_id!r}")
    if missing:
        raise typer.Exit(_FAILED)
