"""`qa-cluster keys create`: creates an API key and prints it once."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.access.records import MAX_LIMIT, SCOPES, KeyLimits
from qa_cluster.errors import InvalidInput

from ...terminal import console
from ..shared_options import Json, audit_of, client_of, collections_option, one_of, refusals_as_usage

_DAY_SECONDS = 86_400


def _limit(help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=help, min=1, max=MAX_LIMIT, show_default=False)
    return option


def create(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Your name for the key, such as the name of the client.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What the key allows: ask (questions), search (sentences and documents), write (documents), admin"
            " (collections and metrics); repeatable.",
            parser=one_of(SCOPES),
            metavar="|".join(SCOPES),
        ),
    ],
    collection: Annotated[
        list[str] | None,
        collections_option("The key allows only this collection; repeatable. By default, all collections."),
    ] = None,
    requests_per_second: Annotated[int | None, _limit("Maximum number of requests per second.")] = None,
    concurrent: Annotated[int | None, _limit("Maximum number of concurrent requests.")] = None,
    sentences_per_day: Annotated[int | None, _limit("Maximum number of sentences written per day (UTC).")] = None,
    expires_days: Annotated[
        int | None, typer.Option(help="Number of days after which the key expires.", min=1, max=36_500)
    ] = None,
    json: Json = False,
) -> None:
    """Create an API key and print it. The key itself is not stored: the cluster keeps only its hash.

    As soon as the first key exists, the REST service refuses requests without a key.

    Example: qa-cluster keys create shop --scope ask --collection books --requests-per-second 20
    """
    audit = audit_of(context)
    with refusals_as_usage(InvalidInput):
        limits = KeyLimits(requests_per_second, concurrent, sentences_per_day)
        with client_of(context) as client:
            key, text = client.create_api_key(
                name,
                scope,
                collections=collection or (),
                limits=limits,
                expires_in_seconds=None if expires_days is None else expires_days * _DAY_SECONDS,
            )
    audit.note("key.create", id=key.id, name=key.name, scopes=key.scopes, collections=key.collections)
    if json:
        console.say_json({"key": text, **key.to_dict()})
        return
    console.say(text)
    console.notice(
        f"this is key {key.id}; it cannot be shown again. To revoke it, run `qa-cluster keys revoke {key.id}`"
    )
