"""`qa-cluster pins ..` and `qa-cluster synonyms ..`: answers that editors pin, and words with the same meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import Pin, Synonyms

from ...terminal import console, tables
from ..shared_options import CollectionOption, Json, audit_of, client_of, refusals_as_usage

Question = Annotated[
    str, typer.Argument(help="The question. Upper and lower case, spaces and a final ?, ! or . do not matter.")
]


def list_pins(context: typer.Context, collection: CollectionOption = DEFAULT_COLLECTION, json: Json = False) -> None:
    """Show the pinned answers of a collection.

    Example: qa-cluster pins list --json | jq -r '.data[].question'
    """
    with client_of(context) as client:
        found = client.pins(collection)
    if json:
        console.say_json({"object": "list", "data": [pin.to_dict() for pin in found]})
        return
    tables.table([{"question": pin.question, "answer": pin.answer, "document": pin.document_id} for pin in found])


def set_pin(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    question: Question,
    answer: Annotated[str, typer.Argument(help="The answer.")],
    document_id: Annotated[str, typer.Option(help="Document that the answer refers to.", metavar="ID")] = "",
    title: Annotated[str, typer.Option(help="Title of that document.", metavar="TEXT")] = "",
    url: Annotated[str, typer.Option(help="Web address of the document's page.", metavar="URL")] = "",
    collection: CollectionOption = DEFAULT_COLLECTION,
) -> None:
    """Pin an answer to a question. Every service then shows this answer first.

    Example: qa-cluster pins set "How do I reset my password?" "Use the link on the login page." --document-id faq
    """
    audit = audit_of(context)
    with client_of(context) as client, refusals_as_usage():
        client.put_pin(Pin(question, answer, document_id, title, url), collection=collection)
    audit.note("pin.put", collection=collection)
    console.say("pinned")


def delete_pin(context: typer.Context, question: Question, collection: CollectionOption = DEFAULT_COLLECTION) -> None:
    """Delete the pinned answer of a question.

    Example: qa-cluster pins delete "How do I reset my password?"
    """
    audit = audit_of(context)
    with client_of(context) as client:
        client.delete_pin(question, collection=collection)
    audit.note("pin.delete", collection=collection)
    console.say("deleted")


def show_synonyms(
    context: typer.Context, collection: CollectionOption = DEFAULT_COLLECTION, json: Json = False
) -> None:
    """Show the synonyms of a collection, one group on each line.

    Example: qa-cluster synonyms show
    """
    with client_of(context) as client:
        found = client.synonyms(collection)
    if json:
        console.say_json(found.to_dict())
        return
    for group in found.groups:
        console.say(group)


def set_synonyms(
    context: typer.Context,
    groups: Annotated[list[str], typer.Argument(help="Words or phrases with the same meaning: 'vm, virtual machine'.")],
    weight: Annotated[
        float,
        typer.Option(
            help="Factor for the weight of a synonym; words of the question have the factor 1.", min=0.01, max=1
        ),
    ] = 0.5,
    collection: CollectionOption = DEFAULT_COLLECTION,
) -> None:
    """Replace the synonyms of a collection.

    Example: qa-cluster synonyms set "vm, virtual machine" "car, automobile" --weight 0.7
    """
    audit = audit_of(context)
    with client_of(context) as client, refusals_as_usage():
        client.set_synonyms(Synonyms(tuple(groups), weight), collection=collection)
    audit.note("synonyms.put", collection=collection)
    console.say(f"{console.counted(len(groups), 'group')} stored")


def delete_synonyms(context: typer.Context, collection: CollectionOption = DEFAULT_COLLECTION) -> None:
    """Delete all synonyms of a collection.

    Example: qa-cluster synonyms delete --collection books
    """
    audit = audit_of(context)
    with client_of(context) as client:
        client.set_synonyms(Synonyms(), collection=collection)
    audit.note("synonyms.delete", collection=collection)
    console.say("deleted")
