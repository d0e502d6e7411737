"""`qa-cluster documents count`: counts the documents."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.errors import InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION

from ...terminal import console
from ..shared_options import CollectionOption, FilterOption, Json, client_of, refusals_as_usage
from .options import Prefix


def count(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    prefix: Prefix = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    waiting: Annotated[
        bool,
        typer.Option(
            "--waiting/--no-waiting",
            help="Also count pending documents, which are stored but not indexed yet. This reads the record of every"
            " document. With --prefix or --filter, pending documents are not counted.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Count the indexed documents and sentences, and the pending documents, which are not indexed yet.

    Examples:

        qa-cluster documents count --json | jq .documents

        qa-cluster documents count --filter lang=en
    """
    with client_of(context) as client, refusals_as_usage(InvalidInput, "--filter"):
        found = client.count_documents(
            waiting=waiting and not (prefix or filter), prefix=prefix, filter=filter, collection=collection
        )
    if json:
        console.say_json(found.to_dict())
        return
    text = f"{console.counted(found.documents, 'document')}, {console.counted(found.sentences, 'sentence')}"
    console.say(text if found.waiting is None else f"{text}; {found.waiting} pending")
