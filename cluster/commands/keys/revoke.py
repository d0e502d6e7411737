"""`qa-cluster keys revoke`: makes an API key invalid."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.access.records import check_id
from qa_cluster.errors import InvalidInput

from ...terminal import console
from ..shared_options import audit_of, client_of


def revoke(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Its id, 12 hex digits (`qa-cluster keys list`).")],
) -> None:
    """Make an API key invalid in every service, for ever. What it has begun goes on to its end.

    The service stays closed to requests without a key, also after the last one is revoked.

    Example: qa-cluster keys revoke 0123456789ab
    """
    try:
        check_id(id)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    audit = audit_of(context)
    with client_of(context) as client:
        key = client.revoke_api_key(id)
    audit.note("key.revoke", id=key.id, name=key.name)
    console.say(f"key {key.id} ({key.name}) revoked")
