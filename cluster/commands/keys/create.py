"""`qa-cluster keys create`: makes an API key and prints it, once."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.access.records import MAX_LIMIT, SCOPES, KeyLimits
from qa_cluster.errors import InvalidInput

from ...terminal import console
from ..shared_options import Json, audit_of, client_of, collection_name

_DAY_SECONDS = 86_400


def scope_name(text: str) -> str:
    """A scope; anything else is wrong usage."""
    if text not in SCOPES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(SCOPES)}")
    return text


def _limit(help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=help, min=1, max=MAX_LIMIT, show_default=False)
    return option


def create(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What you know it by, such as who gets it.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do: ask (questions), search (sentences and documents), write (documents), admin"
            " (collections, metrics); can be repeated.",
            parser=scope_name,
            metavar="|".join(SCOPES),
        ),
    ],
    collection: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this collection; can be repeated. Without it all of them.",
            parser=collection_name,
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    requests_per_second: Annotated[int | None, _limit("Most requests a second.")] = None,
    concurrent: Annotated[int | None, _limit("Most requests at the same time.")] = None,
    sentences_per_day: Annotated[int | None, _limit("Most sentences written a day (UTC).")] = None,
    expires_days: Annotated[
        int | None, typer.Option(help="Days after which it is not valid any more.", min=1, max=36_500)
    ] = None,
    json: Json = False,
) -> None:
    """Make an API key and print it. It is stored nowhere: the cluster keeps a hash of it only.

    From the first key on, the REST service takes no request without one.

    Example: qa-cluster keys create shop --scope ask --collection books --requests-per-second 20
    """
    audit = audit_of(context)
    try:
        limits = KeyLimits(requests_per_second, concurrent, sentences_per_day)
        with client_of(context) as client:
            key, text = client.create_api_key(
                name,
                scope,
                collections=collection or (),
                limits=limits,
                expires_in_seconds=None if expires_days is None else expires_days * _DAY_SECONDS,
            )
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    audit.note("key.create", id=key.id, name=key.name, scopes=key.scopes, collections=key.collections)
    if json:
        console.say_json({"key": text, **key.to_dict()})
        return
    console.say(text)
    console.notice(f"this is key {key.id}; it cannot be shown again. `qa-cluster keys revoke {key.id}` ends it")
