"""`qa-cluster documents delete`: removes documents."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.errors import NotFound

from ...terminal import console
from .options import Json, client_of

_FAILED = 1


def delete(
    context: typer.Context,
    ids: Annotated[list[str], typer.Argument(help="Their ids (`qa-cluster documents list`).", metavar="ID..")],
    json: Json = False,
) -> None:
    """Delete documents and everything made from them. Exits 1 if one does not exist; the others are deleted.

    Example: qa-cluster documents delete news/old.txt news/older.txt
    """
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
