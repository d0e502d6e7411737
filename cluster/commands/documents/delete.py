"""`qa-cluster documents delete`: removes documents."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.errors import NotFound

from ...terminal import console
from ..shared_options import FilterOption
from .options import Json, Prefix, client_of, usage

_FAILED = 1


def delete(
    context: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Their ids (`qa-cluster documents list`).", metavar="[ID..]", show_default=False),
    ] = None,
    prefix: Prefix = "",
    filter: FilterOption = None,
    json: Json = False,
) -> None:
    """Delete documents and everything made from them: those with these ids, or all that a prefix or filter chooses.

    Exits 1 if one does not exist (the others are deleted), or if one that was chosen was written meanwhile and stays.

    Examples:

        qa-cluster documents delete news/old.txt news/older.txt

        qa-cluster documents delete --prefix news/ --filter "year<2020"
    """
    if bool(ids) == bool(prefix or filter):
        raise typer.BadParameter("name documents by their ids, or choose them by --prefix and --filter")
    if ids:
        _delete_named(context, ids, json)
    else:
        _delete_chosen(context, prefix, filter or [], json)


def _delete_chosen(context: typer.Context, prefix: str, filter: list[str], json: bool) -> None:
    with client_of(context) as client, usage("--filter"):
        removal = client.delete_documents(prefix=prefix, filter=filter)
    if json:
        console.say_json(removal.to_dict())
    else:
        console.say(f"{console.counted(removal.deleted, 'document')} deleted")
    if not removal.complete:
        console.error("some that were chosen are still there: they were written meanwhile, or the time was up")
        raise typer.Exit(_FAILED)


def _delete_named(context: typer.Context, ids: list[str], json: bool) -> None:
    deleted: list[str] = []
    missing: list[str] = []
    with client_of(context) as client:
        for document_id in dict.fromkeys(ids):
            try:
                client.delete_document(document_id)
                deleted.append(document_id)
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
