"""`qa-cluster collections count`: counts the documents and sentences of a collection."""

from __future__ import annotations

import typer

from ...terminal import console
from ..shared_options import Json, client_of
from .options import Name


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
