"""`qa-cluster collections delete`: deletes a collection with all its documents."""

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
        float, typer.Option(help="Stop after this many seconds; repeat the command to continue.", min=1)
    ] = 600.0,
    json: Json = False,
) -> None:
    """Delete a collection with all its documents and cached answers. It accepts no new documents from the start.

    The exit code is 1 if the time is over before everything is deleted. Repeat the command then, or after an
    interruption, to continue.

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
        console.error(
            f"collection {name} was not completely deleted within {timeout:g} s: repeat the command to continue"
        )
        raise typer.Exit(_FAILED)
