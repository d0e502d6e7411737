"""`qa-cluster keys import`: stores API keys that were made elsewhere."""

from __future__ import annotations

from time import time
from typing import Annotated

import typer

from qa_cluster.access.given_keys import MAX_BYTES, given_keys
from qa_cluster.errors import InvalidInput

from ...terminal import console
from ..shared_options import audit_of, client_of


def import_keys(
    context: typer.Context,
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="JSON objects, one for each key; - is standard input.")],
) -> None:
    """Store API keys that were made elsewhere, as far as they are not there: those of a Kubernetes Secret, for example.

    Each has key (its text), name and scopes, and may have collections, limits and expires, as `qa-cluster keys create
    --json` prints them. The command may be repeated: a key that is there stays as it is, and one that was revoked stays
    revoked. Where one is there with other rights, nothing is stored.

    Example: qa-cluster keys import keys.json
    """
    audit = audit_of(context)
    try:
        keys = given_keys(file.read(MAX_BYTES + 1), time())
        with client_of(context) as client:
            made, revoked = client.ensure_api_keys(keys)
    except InvalidInput as error:
        raise typer.BadParameter(f"{file.name}: {error}") from error
    for key in made:
        audit.note("key.create", id=key.id, name=key.name, scopes=key.scopes, collections=key.collections)
    for key in revoked:
        console.notice(f"key {key.id} ({key.name}) has been revoked in the cluster, and stays so")
    console.say(f"{console.counted(len(made), 'key')} made, {len(keys) - len(made)} there already")
