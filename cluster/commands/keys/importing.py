"""`qa-cluster keys import`: stores API keys that were created elsewhere."""

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
    """Store API keys that were created elsewhere, for example the keys of a Kubernetes Secret.

    Each JSON object has key (the text of the key), name and scopes. It may have collections, limits and expires, as
    printed by `qa-cluster keys create --json`. You can repeat the command: existing keys stay unchanged, and revoked
    keys stay revoked. If the cluster has one of the keys with other rights, nothing is stored.

    Example: qa-cluster keys import keys.json
    """
    audit = audit_of(context)
    try:
        keys = given_keys(file.read(MAX_BYTES + 1), time())
        with client_of(context) as client:
            created, revoked = client.ensure_api_keys(keys)
    except InvalidInput as error:
        raise typer.BadParameter(f"{file.name}: {error}") from error
    for key in created:
        audit.note("key.create", id=key.id, name=key.name, scopes=key.scopes, collections=key.collections)
    for key in revoked:
        console.notice(f"key {key.id} ({key.name}) is revoked in the cluster and stays revoked")
    console.say(f"{console.counted(len(created), 'key')} stored, {len(keys) - len(created)} already in the cluster")
