"""`qa-cluster collections list`: lists the collections."""

from __future__ import annotations

import typer

from ...terminal import console, tables
from ..shared_options import Json, client_of


def list_collections(context: typer.Context, json: Json = False) -> None:
    """Show the collections with their state and their numbers of indexed documents and sentences.

    Example: qa-cluster collections list --json | jq -r '.data[].name'
    """
    with client_of(context) as client:
        found = client.collections()
    if json:
        console.say_json({"object": "list", "data": [entry.to_dict() for entry in found]})
        return
    tables.table(
        [
            {
                "collection": entry.name,
                "state": entry.state,
                "documents": entry.documents,
                "sentences": entry.sentences,
            }
            for entry in found
        ],
        right=("documents", "sentences"),
    )
    for entry in found:
        if entry.state == "incomplete":
            console.notice(f"{entry.name} is incomplete: run `qa-cluster collections create {entry.name}` again")
        elif entry.state == "deleting":
            console.notice(
                f"{entry.name} is being deleted; if the deletion was interrupted, run `qa-cluster collections delete"
                f" {entry.name}` again"
            )
