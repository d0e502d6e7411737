"""`/collections`, `/collections/{name}` and `/collections/{name}/fields`: collections and their metadata fields."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.off_loop import off_loop
from qa_cluster.ranking.filters import chosen_by

from ..description.schemas import (
    collection_fields,
    collection_removal_parameters,
    field_values_parameters,
    parse_body,
    parse_query,
)
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import JSON, Receive, Scope, Send, about, permit, read_body, require_json, send_response
from ..service.lifespan import ServiceState

LIST_PATH = "/collections"
PREFIX = "/collections/"
_FIELDS = b"fields"
# The approximate number of bytes that a field or value adds to the JSON, without its text.
_ENTRY_BYTES = 128


class CollectionRoute:
    """Serves the list of collections, and one collection by name."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._timeout_ms = state.options.limits.timeout_ms
        self._removal = collection_removal_parameters(state.options.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path and method."""
        if names_fields(scope):
            await self._fields(scope, send)
            return
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

    async def _fields(self, scope: Scope, send: Send) -> None:
        """Send the fields of a collection, or the values of one field. The rest of the path is the name of the
        field.
        """
        name, _, rest = _raw(scope).partition(b"/")
        collection, field = _decoded(name, "name"), rest.removeprefix(_FIELDS).removeprefix(b"/")
        permit(scope, collection)
        if scope["method"] not in ("GET", "HEAD"):
            raise _wrong_method(scope, "GET, HEAD")
        fields = self._state.engine.fields
        async with asyncio.timeout(self._timeout_ms / 1000):
            if not field:
                parse_query(scope["query_string"], ())
                listed = await fields.entries(collection)
                body = await off_loop(len(listed.fields) * _ENTRY_BYTES, listed.to_json)
            else:
                values = parse_query(scope["query_string"], field_values_parameters())
                chosen = chosen_by(values.pop("filters", None), values.pop("filter", ()))
                found = await fields.values(_decoded(field, "field"), collection=collection, chosen=chosen, **values)
                body = await off_loop(len(found.values) * _ENTRY_BYTES, found.to_json)
        limit = self._state.options.limits.answer_max_bytes
        if len(body) > limit:
            raise InputTooLong(f"the response has {len(body)} bytes, the limit is {limit} (answer_max_bytes)")
        headers: RawHeaders = [(b"content-type", JSON), (b"cache-control", b"no-store")]
        await send_response(send, 200, headers, body)

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


def names_fields(scope: Scope) -> bool:
    """Return whether a request is about the fields of a collection. The check uses the raw path, because collection
    names contain no slash.
    """
    _, slash, rest = _raw(scope).partition(b"/")
    return bool(slash) and (rest == _FIELDS or rest.startswith(_FIELDS + b"/"))


def _name(scope: Scope) -> str:
    return _decoded(_raw(scope), "name")


def _raw(scope: Scope) -> bytes:
    """Return the path after `PREFIX`, still percent-encoded."""
    raw: bytes = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    return raw.removeprefix(PREFIX.encode())


def _decoded(raw: bytes, place: str) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the {place} in the path is not percent-encoded UTF-8", place=place) from error
