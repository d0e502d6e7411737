"""Writes changes, and refused changes, to the audit log, without the changed contents."""

from __future__ import annotations

from qa_cluster.access.audit import AuditLog
from qa_cluster.access.records import ApiKey

from ..http.messages import Scope, raw_path
from .resources import Resource

MAX_PATH = 2048
# The limit of characters of the client's address. The address can come from `X-Forwarded-For`, which can be any text.
MAX_CLIENT = 100


def note(log: AuditLog, scope: Scope, resource: Resource, status: int, request_id: str) -> None:
    """Write a request about `resource` to the audit log if the method of the request changes the resource.

    `status` is the status of the response. It is 499 if the client has left before its request was complete, and 0 if
    no response was started.
    """
    event = resource.changes.get(scope["method"])
    if event is None or not log:
        return
    state = scope.get("state", {})
    key: ApiKey | None = state.get("key")
    who = {"key": key.id, "name": key.name} if key is not None and key.id else {"key": None}
    client = scope.get("client")
    log.note(
        event,
        who,
        "unknown" if not client else str(client[0])[:MAX_CLIENT],
        status=status,
        path=raw_path(scope)[:MAX_PATH].decode("latin-1"),
        request_id=request_id,
        **state.get("about", {}),
    )
