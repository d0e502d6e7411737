"""`qa-cluster documents delete`: deletes documents."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.asking.document_list import ChoiceArguments
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.keys import DEFAULT_COLLECTION

from ...terminal import console
from ..shared_options import CollectionOption, FilterOption, Json, audit_of, client_of, refusals_as_usage
from .options import Prefix

_FAILED = 1


def delete(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids of the documents; `qa-cluster documents list` lists them.", metavar="ID", show_default=False
        ),
    ] = None,
    prefix: Prefix = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    json: Json = False,
) -> None:
    """Delete documents by id, or all documents that match a prefix or filter.

    The exit code is 1 if a document does not exist, or if a matching document was written meanwhile. Such a document is
    not deleted; all others are.

    Examples:

        qa-cluster documents delete news/old.txt news/older.txt

        qa-cluster documents delete --prefix news/ --filter "year<2020"
    """
    if bool(ids) == bool(prefix or filter):
        raise typer.BadParameter("give either the ids of documents, or --prefix or --filter")
    if ids:
        _delete_by_id(context, ids, collection, json)
    else:
        _delete_matching(context, {"prefix": prefix, "filter": filter, "collection": collection}, json)


def _delete_matching(context: typer.Context, choice: ChoiceArguments, json: bool) -> None:
    audit = audit_of(context)
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--filter"):
        removal = client.delete_documents(**choice)
    audit.note("documents.delete", collection=choice.get("collection"), deleted=removal.deleted)
    if json:
        console.say_json(removal.to_dict())
    else:
        console.say(f"{console.counted(removal.deleted, 'document')} deleted")
    if not removal.complete:
        console.error(
            "some matching documents were not deleted, because they were written meanwhile or the time was over: repeat"
            " the command to delete them"
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
