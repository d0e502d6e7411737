"""`/pins`, `/synonyms`, `/feedback` and `/unanswered`: what editors and users add to a collection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from qa_cluster.asking.engine import Engine
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import Feedback, Pin, Synonyms

from ...description.schemas import (
    FEEDBACK_FIELDS,
    GUIDANCE_PARAMETERS,
    PIN_FIELDS,
    PIN_REMOVAL_PARAMETERS,
    SYNONYMS_FIELDS,
    Field,
    parse_body,
    parse_query,
)
from ...http.messages import (
    READ,
    Receive,
    Scope,
    Send,
    check_size,
    permit,
    read_body,
    require_json,
    require_method,
    send_json,
    send_response,
)
from ...service.lifespan import ServiceState

_METHODS = {
    "/pins": (*READ, "PUT", "DELETE"),
    "/synonyms": (*READ, "PUT", "DELETE"),
    "/feedback": (*READ, "POST"),
    "/unanswered": READ,
}
_BODIES: dict[str, tuple[Field, ...]] = {
    "/pins": PIN_FIELDS,
    "/synonyms": SYNONYMS_FIELDS,
    "/feedback": FEEDBACK_FIELDS,
}


class GuidanceRoute:
    """Serves `/pins`, `/synonyms`, `/feedback` and `/unanswered`."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path and method."""
        path, method = scope["path"], scope["method"]
        require_method(scope, *_METHODS[path])
        if method in ("PUT", "POST"):
            parse_query(scope["query_string"], ())
            require_json(scope)
            values = parse_body(await read_body(scope, receive, self._state.options), _BODIES[path])
        else:
            removes_pin = path == "/pins" and method == "DELETE"
            values = parse_query(scope["query_string"], PIN_REMOVAL_PARAMETERS if removes_pin else GUIDANCE_PARAMETERS)
        values = {name: value for name, value in values.items() if value is not None}
        collection = values.pop("collection", DEFAULT_COLLECTION)
        permit(scope, collection)
        async with asyncio.timeout(self._state.options.limits.timeout_ms / 1000):
            status, found = await self._served(path, method, collection, values)
        if found is None:
            await send_response(send, status, [(b"cache-control", b"no-store")], b"")
            return
        body = orjson.dumps(found)
        check_size(body, self._state.options.limits.answer_max_bytes)
        await send_json(send, body, status)

    async def _served(
        self, path: str, method: str, collection: str, values: dict[str, Any]
    ) -> tuple[int, dict[str, Any] | None]:
        """Process a request; return the status, and the body as JSON-ready values.

        `values` are the fields of the body or the parameters of the request. The body is None if the response has no
        body.
        """
        engine = self._state.engine
        if path == "/pins":
            return await _pins(engine, method, collection, values)
        if path == "/synonyms":
            return await _synonyms(engine, method, collection, values)
        if path == "/unanswered":
            return 200, _listed(await engine.unanswered.all(collection))
        if method == "POST":
            return 201, {"id": await engine.feedback.add(Feedback(**values), collection)}
        return 200, _listed(await engine.feedback.all(collection))


async def _pins(
    engine: Engine, method: str, collection: str, values: dict[str, Any]
) -> tuple[int, dict[str, Any] | None]:
    if method == "PUT":
        pin = Pin(**values)
        return 201 if await engine.guidance.put_pin(pin, collection) else 200, pin.to_dict()
    if method == "DELETE":
        await engine.guidance.delete_pin(values["question"], collection)
        return 204, None
    return 200, _listed(await engine.guidance.pins(collection))


async def _synonyms(
    engine: Engine, method: str, collection: str, values: dict[str, Any]
) -> tuple[int, dict[str, Any] | None]:
    if method in READ:
        return 200, (await engine.guidance.synonyms(collection)).to_dict()
    synonyms = Synonyms() if method == "DELETE" else Synonyms(**values | {"groups": tuple(values["groups"])})
    await engine.guidance.set_synonyms(synonyms, collection)
    return (204, None) if method == "DELETE" else (200, synonyms.to_dict())


def _listed(items: Sequence[Any]) -> dict[str, Any]:
    return {"object": "list", "data": [item.to_dict() for item in items]}
