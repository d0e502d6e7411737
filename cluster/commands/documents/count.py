"""`qa-cluster documents count`: counts the documents."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console
from .options import Json, client_of


def count(
    context: typer.Context,
    waiting: Annotated[
        bool,
        typer.Option(
            "--waiting/--no-waiting",
            help="Count the documents that are stored but not ready too; this reads the record of every document.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Count the documents and sentences that questions are answered from, and the documents that wait for a worker.

    Example: qa-cluster documents count --json | jq .documents
    """
    with client_of(context) as client:
        found = client.count_documents(waiting=waiting)
    if json:
        console.say_json(found.to_dict())
        return
    text = f"{console.counted(found.documents, 'document')}, {console.counted(found.sentences, 'sentence')}"
    console.say(text if found.waiting is None else f"{text}; {found.waiting} waiting to be split and tokenized")
