"""`qa-cluster collections delete`: removes a collection with all its documents."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console
from ..shared_options import Json, audit_of, client_of
from .options import Name

_FAILED = 1


def delete(
    context: typer.Context,
    name: Name,
    timeout: Annotated[
        float, typer.Option(help="For how many seconds; what is left then goes when it is repeated.", min=1)
    ] = 600.0,
    json: Json = False,
) -> None:
    """Remove a collection with all its documents and cached answers. From the start it takes no document in.

    Exits 1 if it is not done in time; the same command goes on then, also after an interruption.

    Example: qa-cluster collections delete books
    """
    audit = audit_of(context)
    with client_of(context) as client:
        removal = client.delete_collection(name, timeout=timeout)
    audit.note("collection.delete", collection=name, deleted=removal.deleted, complete=removal.complete)
    if json:
        console.say_json(removal.to_dict())
    else:
        console.say(f"{console.counted(removal.deleted, 'document')} deleted")
    if not removal.complete:
        console.error(f"collection {name} is not gone yet: repeat the command to go on")
        raise typer.Exit(_FAILED)
