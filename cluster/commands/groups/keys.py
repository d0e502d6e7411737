"""`qa-cluster keys ..`: creates, imports, lists and revokes the API keys of the REST service."""

from __future__ import annotations

from datetime import UTC, datetime
from time import time
from typing import Annotated, Any

import typer

from qa_cluster.access.given_keys import MAX_BYTES, given_keys
from qa_cluster.access.records import MAX_LIMIT, SCOPES, ApiKey, KeyLimits, check_id
from qa_cluster.errors import InvalidInput

from ...terminal import console, tables
from ..shared_options import Json, audit_of, choice_option, client_of, collections_option, refusals_as_usage

_DAY_SECONDS = 86_400


def _limit(help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=help, min=1, max=MAX_LIMIT, show_default=False)
    return option


def create(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Your name for the key, such as the name of the client.")],
    scope: Annotated[
        list[str],
        choice_option(
            SCOPES,
            "What the key allows: ask (questions), search (sentences and documents), write (documents), admin"
            " (collections and metrics); repeatable.",
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


def import_keys(
    context: typer.Context,
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="JSON objects, one for each key; - is standard input.")],
) -> None:
    """Store API keys that were created elsewhere, for example the keys of a Kubernetes Secret.

    Each JSON object has key (the text of the key), name and scopes. It may have collections, limits and expires, as
    printed by `qa-cluster keys create --json`. You can repeat the command: existing keys stay unchanged, and revoked
    keys stay revoked. If a key in the cluster has the same id but a different secret or different rights, the command
    stores nothing.

    Example: qa-cluster keys import keys.json
    """
    audit = audit_of(context)
    try:
        keys = given_keys(file.read(MAX_BYTES + 1), time())
        with client_of(context) as client:
            created, revoked = client.ensure_api_keys(keys)
    except InvalidInput as error:
        raise typer.BadParameter(f"{file.name}: {error}") from error
    for key in created:
        audit.note("key.create", id=key.id, name=key.name, scopes=key.scopes, collections=key.collections)
    for key in revoked:
        console.notice(f"key {key.id} ({key.name}) is revoked in the cluster and stays revoked")
    console.say(f"{console.counted(len(created), 'key')} stored, {len(keys) - len(created)} already in the cluster")


def list_keys(context: typer.Context, json: Json = False) -> None:
    """Show the API keys with their scopes and limits. The texts of the keys are not stored and cannot be shown.

    Example: qa-cluster keys list --json | jq -r '.data[] | select(.state == "valid") | .id'
    """
    with client_of(context) as client:
        found = client.api_keys()
    now = time()
    if json:
        console.say_json({"object": "list", "data": [{**key.to_dict(), "state": key.state(now)} for key in found]})
        return
    if not found:
        console.say("no keys: the REST service requires no key")
        return
    tables.table([_row(key, now) for key in found], minor=("created", "expires"))


def _row(key: ApiKey, now: float) -> dict[str, Any]:
    limits = key.limits
    shown = (
        (limits.requests_per_second, "requests/s"),
        (limits.concurrent, "concurrent"),
        (limits.sentences_per_day, "sentences/day"),
    )
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(now),
        "scopes": ", ".join(key.scopes),
        "collections": ", ".join(key.collections) or "all",
        "limits": ", ".join(f"{number} {what}" for number, what in shown if number is not None),
        "created": _day(key.created),
        "expires": "" if key.expires is None else _day(key.expires),
    }


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def revoke(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Id of the key, 12 hex digits; `qa-cluster keys list` lists the ids.")],
) -> None:
    """Make an API key invalid in every service, permanently. Requests that are in progress are completed.

    Even after you revoke the last key, the service refuses requests without a key.

    Example: qa-cluster keys revoke 0123456789ab
    """
    with refusals_as_usage():
        check_id(id)
    audit = audit_of(context)
    with client_of(context) as client:
        key = client.revoke_api_key(id)
    audit.note("key.revoke", id=key.id, name=key.name)
    console.say(f"key {key.id} ({key.name}) revoked")


def clear(
    context: typer.Context,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that clients may then use the service without a key.")
    ] = False,
) -> None:
    """Delete all API keys and their records. The REST service then requires no key, as before the first key.

    A service that listens on an address other than loopback then refuses all requests, except with --without-keys.

    Example: qa-cluster keys clear --yes
    """
    if not yes:
        raise typer.BadParameter("without keys, every client that reaches the service can use it: confirm with --yes")
    audit = audit_of(context)
    with client_of(context) as client:
        removed = client.clear_api_keys()
    audit.note("keys.clear", removed=removed)
    console.say(f"{console.counted(removed, 'key')} deleted")
