"""`qa-cluster collections ..`: lists, creates, counts and deletes collections of documents."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console, tables
from ..shared_options import Json, audit_of, client_of, collection_name

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the collection: a-z, 0-9, _ and -, at most 64 characters; starts with a letter or digit.",
        parser=collection_name,
        metavar="NAME",
    ),
]


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


def create(context: typer.Context, name: Name) -> None:
    """Create a collection. If the collection already exists, nothing changes.

    Example: qa-cluster collections create books && qa-cluster ingest novels/ --collection books
    """
    audit = audit_of(context)
    with client_of(context) as client:
        created = client.create_collection(name)
    audit.note("collection.create", collection=name, created=created)
    console.say(f"collection {name} created" if created else f"collection {name} already exists")


def count(context: typer.Context, name: Name, json: Json = False) -> None:
    """Count the indexed documents and sentences of a collection.

    Example: qa-cluster collections count books --json | jq .documents
    """
    with client_of(context) as client:
        found = client.collection(name)
    if json:
        console.say_json(found.to_dict())
        return
    state = "" if found.state == "ready" else f"; it is {found.state}"
    counts = f"{console.counted(found.documents, 'document')}, {console.counted(found.sentences, 'sentence')}"
    console.say(counts + state)


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
