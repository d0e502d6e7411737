"""`/collections` and `/collections/{name}`: lists, creates, counts and deletes collections."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from qa_cluster.errors import InvalidInput

from ..description.schemas import collection_fields, collection_removal_parameters, parse_body, parse_query
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import JSON, Receive, Scope, Send, about, permit, read_body, require_json, send_response
from ..service.lifespan import ServiceState

LIST_PATH = "/collections"
PREFIX = "/collections/"


class CollectionRoute:
    """Serves the list of collections, and one collection by name."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._timeout_ms = state.options.limits.timeout_ms
        self._removal = collection_removal_parameters(state.options.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path and method."""
        status, found = await (
            self._all(scope, receive) if scope["path"] == LIST_PATH else self._one(scope, _name(scope))
        )
        headers: RawHeaders = [(b"content-type", JSON), (b"cache-control", b"no-store")]
        await send_response(send, status, headers, orjson.dumps(found))

    async def _all(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise _wrong_method(scope, "GET, HEAD, POST")
        parse_query(scope["query_string"], ())
        if scope["method"] != "POST":
            async with asyncio.timeout(self._timeout_ms / 1000):
                entries = await self._state.engine.collections.entries()
            allows = scope["state"]["key"].allows
            return 200, {"object": "list", "data": [entry.to_dict() for entry in entries if allows(entry.name)]}
        require_json(scope)
        body = await read_body(scope, receive, self._state.options)
        name = parse_body(body, collection_fields())["name"]
        permit(scope, name)
        async with asyncio.timeout(self._timeout_ms / 1000):
            created = await self._state.engine.collections.create(name)
        return 201 if created else 200, {"name": name, "created": created}

    async def _one(self, scope: Scope, name: str) -> tuple[int, dict[str, Any]]:
        permit(scope, name)
        if scope["method"] in ("GET", "HEAD"):
            parse_query(scope["query_string"], ())
            async with asyncio.timeout(self._timeout_ms / 1000):
                return 200, (await self._state.engine.collections.entry(name)).to_dict()
        if scope["method"] == "DELETE":
            values = parse_query(scope["query_string"], self._removal)
            seconds = values.get("timeout_ms", self._timeout_ms) / 1000
            removal = await self._state.engine.collection_removal.run(name, seconds=seconds)
            self._state.metrics.document_writes.inc("delete", by=removal.deleted)
            about(scope, deleted=removal.deleted)
            return 200, removal.to_dict()
        raise _wrong_method(scope, "GET, HEAD, DELETE")


def _wrong_method(scope: Scope, allowed: str) -> HttpProblem:
    return HttpProblem(
        "method-not-allowed",
        f"{scope['path'][:200]} supports {allowed}, not {scope['method']}",
        headers=[(b"allow", allowed.encode())],
    )


def _name(scope: Scope) -> str:
    raw: bytes = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    try:
        return unquote_to_bytes(raw.removeprefix(PREFIX.encode())).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("the collection name in the path is not percent-encoded UTF-8", place="name") from error
