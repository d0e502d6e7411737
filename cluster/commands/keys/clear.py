"""`qa-cluster keys clear`: removes all API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from ...terminal import console
from ..shared_options import audit_of, client_of


def clear(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, open the service to whoever reaches it.")] = False,
) -> None:
    """Remove all API keys with their records. From then on the REST service asks for none, as before the first one.

    A service that listens beyond loopback goes on to refuse everybody, unless it was started with --without-keys.

    Example: qa-cluster keys clear --yes
    """
    if not yes:
        raise typer.BadParameter("this opens the service to whoever reaches it: say --yes")
    audit = audit_of(context)
    with client_of(context) as client:
        removed = client.clear_api_keys()
    audit.note("keys.clear", removed=removed)
    console.say(f"{console.counted(removed, 'key')} removed")
