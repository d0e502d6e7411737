"""`qa-cluster documents show`: prints one stored document."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from qa_cluster.keys import DEFAULT_COLLECTION

from ...terminal import console, tables
from ..shared_options import CollectionOption, Json, client_of


def show(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Its id (`qa-cluster documents list`).", metavar="ID")],
    collection: CollectionOption = DEFAULT_COLLECTION,
    json: Json = False,
) -> None:
    """Show a document: its record and its text. Exits 1 if it does not exist.

    Example: qa-cluster documents show news/today.txt --json | jq -r .text
    """
    with client_of(context) as client:
        found = client.get_document(id, collection=collection)
    if json:
        console.say_json(found.to_dict())
        return
    about = {
        "id": found.id,
        "title": found.title,
        "version": found.version,
        "sentences": found.sentences,
        "answers": "yes" if found.tokenized else "not yet",
        "metadata": json_module.dumps(found.metadata, ensure_ascii=False) if found.metadata else "",
    }
    tables.table([{"": name, "value": value} for name, value in about.items() if value != ""])
    console.say(found.text.rstrip())
