"""Writes changes, and refused changes, to the audit log, without the changed contents."""

from __future__ import annotations

from qa_cluster.access.audit import AuditLog
from qa_cluster.access.records import ApiKey

from ..http.messages import Scope, raw_path
from .resources import Resource

MAX_PATH = 2048
# `X-Forwarded-For` can be any text, so its length in the log is limited.
MAX_CLIENT = 100


def note(log: AuditLog, scope: Scope, resource: Resource, status: int, request_id: str) -> None:
    """Write a request about `resource` to the audit log if its method changes the resource."""
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
