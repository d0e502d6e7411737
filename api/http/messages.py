"""HTTP functions that the routes share, on plain ASGI: headers, bounded bodies, responses, conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from qa_cluster.access.records import SCOPES, ApiKey

from ..service.lifespan import ServiceOptions
from .error_map import HttpProblem, RawHeaders

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
# The key object of a request without a key. It has all rights.
ANONYMOUS = ApiKey("", "", "", SCOPES)
_Result = TypeVar("_Result")


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header with this (lower-case) name; None if it is missing."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def about(scope: Scope, **what: object) -> None:
    """Add names and numbers (never texts) about the request to its entry in the audit log."""
    scope["state"].setdefault("about", {}).update(what)


def permit(scope: Scope, collection: str) -> None:
    """Raise HttpProblem if the request's key does not allow this collection. The error does not reveal whether the
    collection exists.
    """
    key: ApiKey = scope["state"]["key"]
    about(scope, collection=collection[:100])
    permit_key(key, collection)


def permit_key(key: ApiKey, collection: str) -> None:
    """Raise HttpProblem if the key does not allow the collection."""
    if not key.allows(collection):
        raise HttpProblem(
            "forbidden",
            f"key {key.id} does not allow collection {collection[:100]!r}, only"
            f" {', '.join(map(repr, key.collections))}",
        )


def require_json(scope: Scope) -> None:
    """Raise HttpProblem if the media type of the request is not JSON."""
    given = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if given != JSON and not (given.startswith(b"application/") and given.endswith(b"+json")):
        shown = given.decode("latin-1")[:80] or "none"
        raise HttpProblem("unsupported-media-type", f"content-type must be application/json, got {shown}")


async def read_body(scope: Scope, receive: Receive, options: ServiceOptions) -> bytes:
    """Return the whole body; HttpProblem if it exceeds the size limit or the time limit.

    The client cannot change the time limit, because endless bodies could otherwise block all other requests.
    """
    try:
        async with asyncio.timeout(options.body_timeout_ms / 1000):
            return await _read_body(scope, receive, options.body_max_bytes)
    except TimeoutError as error:
        raise HttpProblem(
            "body-timeout",
            f"the body did not arrive within the limit of {options.body_timeout_ms} ms (body_timeout_ms)",
            headers=[(b"connection", b"close")],
        ) from error


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit, f"has {int(announced)} bytes")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit, f"has more than {limit} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int, what: str) -> HttpProblem:
    return HttpProblem(
        "body-too-large", f"body {what}, the limit is {limit} (body_max_bytes)", headers=[(b"connection", b"close")]
    )


async def send_response(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send a whole response."""
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, _Result], on_leave: Callable[[], None]
) -> _Result:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise ClientGone."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            on_leave()
            raise ClientGone
        return await working
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def condition(scope: Scope) -> str | None:
    """Return the version in ``If-Match`` that a write requires; ``""`` (no document) for ``If-None-Match: *``; None for
    any version.
    """
    wanted = header(scope, b"if-match")
    absent = header(scope, b"if-none-match")
    if wanted is not None and absent is not None:
        raise HttpProblem("validation", "the request has both If-Match and If-None-Match: send only one of them")
    if absent is not None:
        if absent.strip() != b"*":
            raise HttpProblem(
                "validation", f"If-None-Match of a write must be *, got {absent.decode('latin-1').strip()[:80]}"
            )
        return ""
    if wanted is None:
        return None
    text = wanted.decode("latin-1").strip()
    version = text.removeprefix('"').removesuffix('"')
    if text != f'"{version}"' or not version or not version.isalnum():
        raise HttpProblem("validation", f"If-Match must be one version in double quotes, like ETag, got {text[:80]}")
    return version
