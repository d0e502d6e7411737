"""`qa-cluster keys list`: lists the API keys."""

from __future__ import annotations

from datetime import UTC, datetime
from time import time
from typing import Any

import typer

from qa_cluster.access.records import ApiKey

from ...terminal import console, tables
from ..shared_options import Json, client_of


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
