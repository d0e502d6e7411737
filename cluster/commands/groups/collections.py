"""`qa-cluster collections ..`: lists, creates, counts and deletes collections of documents, and shows their fields."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.asking.document_fields import MAX_SHOWN_VALUES
from qa_cluster.errors import InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.documents import DEFAULT_SHOWN_VALUES
from qa_cluster.types import FieldList, FieldValues

from ...terminal import console, tables
from ..shared_options import (
    CollectionOption,
    FilterOption,
    Json,
    YesOption,
    audit_of,
    client_of,
    collection_name,
    confirm_deletion,
    refusals_as_usage,
)

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


def fields(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    field: Annotated[
        str, typer.Argument(help="Show the values of this field.", metavar="FIELD", show_default=False)
    ] = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    limit: Annotated[
        int, typer.Option(help="Maximum number of values.", min=1, max=MAX_SHOWN_VALUES)
    ] = DEFAULT_SHOWN_VALUES,
    json: Json = False,
) -> None:
    """Show the metadata fields of a collection with their types, or the most frequent values of one field.

    Only indexed documents count. For each value, the command shows the number of documents that have it.

    Examples:

        qa-cluster collections fields --collection books

        qa-cluster collections fields lang --filter "year>=2020" --limit 10
    """
    if not field and filter:
        raise typer.BadParameter("--filter chooses the documents whose field values are shown: name a field")
    with client_of(context) as client, refusals_as_usage(InvalidInput, "FIELD or --filter"):
        if not field:
            listed = client.fields(collection)
        else:
            found = client.field_values(field, collection=collection, filter=filter or (), limit=limit)
    if json:
        console.say_json(found.to_dict() if field else listed.to_dict())
    elif field:
        _show_values(found)
    else:
        _show_fields(listed)


def _show_fields(listed: FieldList) -> None:
    kinds = ("texts", "numbers", "booleans", "times")
    tables.table(
        [
            {"field": entry.name, "documents": entry.documents, **{kind: getattr(entry, kind) for kind in kinds}}
            for entry in listed.fields
        ],
        right=("documents", *kinds),
    )
    console.say(console.counted(len(listed.fields), "field"))
    if not listed.complete:
        console.notice("the list is incomplete: the collection has more fields")


def _show_values(found: FieldValues) -> None:
    tables.table(
        [{found.name: _shown(each.value), "documents": each.documents} for each in found.values], right=("documents",)
    )
    bounds = [f"{low} to {high}" for low, high in _bounds(found)]
    about = [console.counted(found.distinct, "distinct value"), *bounds]
    if not found.exact:
        about[0] = f"at least {about[0]}"
    have = f"{console.counted(found.documents, 'document')} with the field, {found.missing} without it"
    console.say(f"{', '.join(about)}; {have}")
    if found.other:
        console.notice(f"{found.other} more values are not shown: raise --limit or choose documents with --filter")


def _bounds(found: FieldValues) -> list[tuple[object, object]]:
    pairs: list[tuple[object, object]] = [(found.minimum, found.maximum), (found.earliest, found.latest)]
    return [pair for pair in pairs if pair[0] is not None]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())


_FAILED = 1


def delete(
    context: typer.Context,
    name: Name,
    timeout: Annotated[
        float, typer.Option(help="Stop after this many seconds; repeat the command to continue.", min=1)
    ] = 600.0,
    yes: YesOption = False,
    json: Json = False,
) -> None:
    """Delete a collection with all its documents and cached answers. As soon as the deletion starts, the collection
    accepts no documents.

    On a terminal, the command asks first. Elsewhere it needs --yes.

    The exit code is 1 if --timeout ends before everything is deleted. In this case, or after an interruption, repeat
    the command to continue.

    Example: qa-cluster collections delete books
    """
    audit = audit_of(context)
    confirm_deletion(f"collection {name} with all its documents", yes)
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
