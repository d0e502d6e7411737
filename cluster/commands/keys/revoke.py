"""`qa-cluster keys revoke`: revokes an API key."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.access.records import check_id

from ...terminal import console
from ..shared_options import audit_of, client_of, refusals_as_usage


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
