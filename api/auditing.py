"""What the audit log has of a request: changes, also those that were refused, and never what they contain."""

from __future__ import annotations

from qa_cluster.access.audit import AuditLog
from qa_cluster.access.records import ApiKey

from .http import Scope
from .routes_collections import LIST_PATH as COLLECTIONS_PATH
from .routes_collections import PREFIX as COLLECTIONS_PREFIX
from .routes_documents import LIST_PATH, PREFIX

MAX_PATH = 2048
_READ = frozenset({"GET", "HEAD", "OPTIONS"})


def event_of(scope: Scope) -> str | None:
    """The name of the change that a request asks for, None if it asks for none."""
    method, path = scope["method"], scope["path"]
    if method in _READ:
        return None
    if path == LIST_PATH.decode():
        return "documents.delete" if method == "DELETE" else None
    if path.startswith(PREFIX.decode()):
        return {"PUT": "document.put", "DELETE": "document.delete"}.get(method)
    if path == COLLECTIONS_PATH:
        return "collection.create" if method == "POST" else None
    if path.startswith(COLLECTIONS_PREFIX):
        return "collection.delete" if method == "DELETE" else None
    return None


def note(log: AuditLog, scope: Scope, status: int, request_id: str) -> None:
    """Log a request, if it is one that changes something."""
    event = event_of(scope)
    if event is None or not log:
        return
    state = scope.get("state", {})
    key: ApiKey | None = state.get("key")
    who = {"key": key.id, "name": key.name} if key is not None and key.id else {"key": None}
    client = scope.get("client")
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    log.note(
        event,
        who,
        "unknown" if not client else str(client[0]),
        status=status,
        path=raw.partition(b"?")[0][:MAX_PATH].decode("latin-1"),
        request_id=request_id,
        **state.get("about", {}),
    )
