"""`/collections`, `/collections/{name}` and `/collections/{name}/fields`: collections and their metadata fields."""

from __future__ import annotations

import asyncio
from typing import Any

from qa_cluster.off_loop import off_loop
from qa_cluster.ranking.filters import chosen_by

from ..description.schemas import (
    COLLECTION_FIELDS,
    FIELD_VALUES_PARAMETERS,
    parse_body,
    parse_query,
    timeout_parameters,
)
from ..http.messages import (
    READ,
    Receive,
    Scope,
    Send,
    about,
    check_size,
    decoded,
    permit,
    raw_path,
    read_body,
    require_json,
    require_method,
    send_json,
)
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
        self._removal = timeout_parameters(state.options.limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path and method."""
        if names_fields(scope):
            await self._fields(scope, send)
            return
        if scope["path"] == LIST_PATH:
            status, found = await self._all(scope, receive)
        else:
            status, found = await self._one(scope, decoded(_rest(scope), "name", "name"))
        await send_json(send, found, status)

    async def _all(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        require_method(scope, *READ, "POST")
        parse_query(scope["query_string"], ())
        if scope["method"] != "POST":
            async with asyncio.timeout(self._timeout_ms / 1000):
                entries = await self._state.engine.collections.entries()
            allows = scope["state"]["key"].allows
            return 200, {"object": "list", "data": [entry.to_dict() for entry in entries if allows(entry.name)]}
        require_json(scope)
        body = await read_body(scope, receive, self._state.options)
        name = parse_body(body, COLLECTION_FIELDS)["name"]
        permit(scope, name)
        async with asyncio.timeout(self._timeout_ms / 1000):
            created = await self._state.engine.collections.create(name)
        return 201 if created else 200, {"name": name, "created": created}

    async def _fields(self, scope: Scope, send: Send) -> None:
        """Send the fields of a collection, or the values of one field.

        The text after `/fields/` in the path is the name of the field. If there is no such text, all fields are sent.
        """
        name, _, rest = _rest(scope).partition(b"/")
        collection, field = decoded(name, "name", "name"), rest.removeprefix(_FIELDS).removeprefix(b"/")
        permit(scope, collection)
        require_method(scope, *READ)
        fields = self._state.engine.fields
        async with asyncio.timeout(self._timeout_ms / 1000):
            if not field:
                parse_query(scope["query_string"], ())
                listed = await fields.entries(collection)
                body = await off_loop(len(listed.fields) * _ENTRY_BYTES, listed.to_json)
            else:
                values = parse_query(scope["query_string"], FIELD_VALUES_PARAMETERS)
                chosen = chosen_by(values.pop("filters", None), values.pop("filter", ()))
                named = decoded(field, "field", "field")
                found = await fields.values(named, collection=collection, chosen=chosen, **values)
                body = await off_loop(len(found.values) * _ENTRY_BYTES, found.to_json)
        check_size(body, self._state.options.limits.answer_max_bytes)
        await send_json(send, body)

    async def _one(self, scope: Scope, name: str) -> tuple[int, dict[str, Any]]:
        permit(scope, name)
        require_method(scope, *READ, "DELETE")
        if scope["method"] in READ:
            parse_query(scope["query_string"], ())
            async with asyncio.timeout(self._timeout_ms / 1000):
                return 200, (await self._state.engine.collections.entry(name)).to_dict()
        values = parse_query(scope["query_string"], self._removal)
        seconds = values.get("timeout_ms", self._timeout_ms) / 1000
        removal = await self._state.engine.collection_removal.run(name, seconds=seconds)
        self._state.metrics.document_writes.inc("delete", by=removal.deleted)
        about(scope, deleted=removal.deleted)
        return 200, removal.to_dict()


def names_fields(scope: Scope) -> bool:
    """Return whether a request is about the fields of a collection.

    The check uses the raw path. In the raw path, the name of the collection ends at the first slash after `PREFIX`,
    because the names of collections contain no slash.
    """
    _, slash, rest = _rest(scope).partition(b"/")
    return bool(slash) and (rest == _FIELDS or rest.startswith(_FIELDS + b"/"))


def _rest(scope: Scope) -> bytes:
    """Return the path after `PREFIX`, still percent-encoded."""
    return raw_path(scope).removeprefix(PREFIX.encode())
