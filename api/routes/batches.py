"""`/v1/files` and `/v1/batches`: files of requests that rq workers answer later, with OpenAI's interface.

A client sees only the files and batches of its own API key.
"""

from __future__ import annotations

import re
from typing import Any

from qa_cluster.access.records import ASK, SEARCH, ApiKey
from qa_cluster.batches.records import QA, BatchFile, BatchRequest, owner_of
from qa_cluster.batches.store import BatchStore
from qa_cluster.errors import InvalidInput

from ..description.batches import BATCH_FIELDS, BATCH_LIST_PARAMETERS, FILE_LIST_PARAMETERS
from ..description.schemas import parse_body, parse_query
from ..http.error_map import HttpProblem
from ..http.messages import READ, Receive, Scope, Send, about, method_not_allowed, read_body, require_json, send_json
from ..http.multipart import require_multipart
from ..service.lifespan import ServiceState
from .batch_upload import receive_file

FILES, BATCHES = "/v1/files", "/v1/batches"
_PATH = re.compile(r"/v1/(?:files|batches)/([^/]+)(?:/(content|cancel))?")
JSON_LINES = b"application/jsonl"


def part_of(path: str) -> tuple[str, str]:
    """Return the id in a path below `/v1/files` or `/v1/batches`, and the word after it. Missing parts are empty."""
    match = _PATH.fullmatch(path)
    return (match[1], match[2] or "") if match else ("", "")


class _Route:
    def __init__(self, state: ServiceState) -> None:
        self._state = state

    def _store(self) -> BatchStore:
        return BatchStore(self._state.engine.shards, self._state.options.batches)


def _owner(scope: Scope) -> str:
    key: ApiKey = scope["state"]["key"]
    return owner_of(key.id)


class BatchFilesRoute(_Route):
    """Serves `/v1/files` and the paths below it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Upload, list, show, read or delete files."""
        method, owner, path = scope["method"], _owner(scope), scope["path"]
        store = self._store()
        if path == FILES:
            if method == "POST":
                require_multipart(scope)
                file = await receive_file(scope, receive, store, owner, self._state.options.upload_timeout_ms)
                about(scope, file=file.id, bytes=file.bytes)
                await send_json(send, file.to_dict())
            elif method in READ:
                await send_json(send, await self._list(scope, store))
            else:
                raise method_not_allowed(scope, "GET, HEAD, POST")
            return
        file_id, what = part_of(path)
        if method in READ and what == "content":
            await self._content(send, store, owner, await store.file(owner, file_id))
        elif method in READ and not what:
            await send_json(send, (await store.file(owner, file_id)).to_dict())
        elif method == "DELETE" and not what:
            await store.delete_file(owner, file_id)
            about(scope, file=file_id)
            await send_json(send, {"id": file_id, "object": "file", "deleted": True})
        else:
            raise method_not_allowed(scope, "GET, HEAD" if what else "GET, HEAD, DELETE")

    async def _list(self, scope: Scope, store: BatchStore) -> dict[str, Any]:
        values = parse_query(scope["query_string"], FILE_LIST_PARAMETERS)
        files = await store.files(_owner(scope))
        files = [file for file in files if values.get("purpose") in (None, file.purpose)]
        if values.get("order") == "asc":
            files.reverse()
        if (after := values.get("after")) is not None:
            ids = [file.id for file in files]
            if after not in ids:
                raise InvalidInput(f"after must be the id of a listed file, got {after[:100]!r}", place="after")
            files = files[ids.index(after) + 1 :]
        limit = values.get("limit", len(files))
        return _page([file.to_dict() for file in files[:limit]], len(files) > limit)

    @staticmethod
    async def _content(send: Send, store: BatchStore, owner: str, file: BatchFile) -> None:
        """Send the contents of a file part by part.

        After the head of the response was sent, an error can only close the connection.
        """
        parts = store.read_parts(owner, file)
        first = await anext(parts, b"")
        headers = [
            (b"content-type", JSON_LINES),
            (b"cache-control", b"no-store"),
            (b"content-length", b"%d" % file.bytes),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class BatchesRoute(_Route):
    """Serves `/v1/batches` and the paths below it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Create, list, show or cancel batches."""
        method, owner, path = scope["method"], _owner(scope), scope["path"]
        store = self._store()
        if path == BATCHES:
            if method == "POST":
                batch = await store.create(owner, await self._request(scope, receive))
                about(scope, batch=batch.id, file=batch.request.input_file_id)
                await send_json(send, batch.to_dict())
            elif method in READ:
                values = parse_query(scope["query_string"], BATCH_LIST_PARAMETERS)
                found, more = await store.batches(owner, after=values.get("after", ""), limit=values.get("limit", 20))
                await send_json(send, _page([each.to_dict() for each in found], more))
            else:
                raise method_not_allowed(scope, "GET, HEAD, POST")
            return
        batch_id, what = part_of(path)
        if method == "POST" and what == "cancel":
            batch = await store.cancel(owner, batch_id)
            about(scope, batch=batch.id)
            await send_json(send, batch.to_dict())
        elif method in READ and not what:
            await send_json(send, (await store.batch(owner, batch_id)).to_dict())
        else:
            raise method_not_allowed(scope, "POST" if what else "GET, HEAD")

    async def _request(self, scope: Scope, receive: Receive) -> BatchRequest:
        require_json(scope)
        values = parse_body(await read_body(scope, receive, self._state.options), BATCH_FIELDS)
        request = BatchRequest(
            values["input_file_id"], values["endpoint"], values["completion_window"], values.get("metadata") or {}
        ).check()
        key: ApiKey = scope["state"]["key"]
        needed = ASK if request.endpoint == QA else SEARCH
        if needed not in key.scopes:
            raise HttpProblem(
                "forbidden", f"key {key.id} has scope {', '.join(key.scopes)}, but {request.endpoint} needs {needed}"
            )
        return request


def _page(data: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    ids = [each["id"] for each in data]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }
