"""`qa-cluster keys clear`: deletes all API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console
from ..shared_options import audit_of, client_of


def clear(
    context: typer.Context,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that clients may then use the service without a key.")
    ] = False,
) -> None:
    """Delete all API keys and their records. The REST service then requires no key, as before the first key.

    A service that listens on another address than loopback then refuses all requests, unless it was started with
    --without-keys.

    Example: qa-cluster keys clear --yes
    """
    if not yes:
        raise typer.BadParameter("without keys, every client that reaches the service can use it: confirm with --yes")
    audit = audit_of(context)
    with client_of(context) as client:
        removed = client.clear_api_keys()
    audit.note("keys.clear", removed=removed)
    console.say(f"{console.counted(removed, 'key')} deleted")
