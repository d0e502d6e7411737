"""The parts of HTTP that the routes share, on plain ASGI: headers, bounded bodies, responses, conditions."""

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
# Whoever sends a request while none needs a key.
EVERYBODY = ApiKey("", "", "", SCOPES)
_Result = TypeVar("_Result")


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this (lower-case) name, None if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def about(scope: Scope, **what: object) -> None:
    """Say what the request is about, for the audit log: names and numbers, no texts."""
    scope["state"].setdefault("about", {}).update(what)


def permit(scope: Scope, collection: str) -> None:
    """Raise HttpProblem unless the request's key may use this collection; it does not say whether there is one."""
    key: ApiKey = scope["state"]["key"]
    about(scope, collection=collection[:100])
    if not key.allows(collection):
        raise HttpProblem(
            "forbidden",
            f"key {key.id} is not for collection {collection[:100]!r}, but for {', '.join(map(repr, key.collections))}",
        )


def require_json(scope: Scope) -> None:
    """Raise HttpProblem unless the request's media type is JSON."""
    given = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if given != JSON and not (given.startswith(b"application/") and given.endswith(b"+json")):
        shown = given.decode("latin-1")[:80] or "none"
        raise HttpProblem("unsupported-media-type", f"content-type must be application/json, got {shown}")


async def read_body(scope: Scope, receive: Receive, options: ServiceOptions) -> bytes:
    """The whole body; HttpProblem as soon as it exceeds the limit, or if it has not ended in time.

    Its time is the service's own, whatever the client asks for: bodies that never end would else keep all others out.
    """
    try:
        async with asyncio.timeout(options.body_timeout_ms / 1000):
            return await _read_body(scope, receive, options.body_max_bytes)
    except TimeoutError as error:
        raise HttpProblem(
            "body-timeout",
            f"the body did not arrive within {options.body_timeout_ms} ms, the limit (body_timeout_ms)",
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
    """The result of `work`; if the client disconnects meanwhile, `work` is cancelled and ClientGone raised."""
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
    """The version that a write requires: that of ``If-Match``, ``""`` for ``If-None-Match: *``, None for any."""
    wanted = header(scope, b"if-match")
    absent = header(scope, b"if-none-match")
    if wanted is not None and absent is not None:
        raise HttpProblem("validation", "If-Match and If-None-Match exclude each other")
    if absent is not None:
        if absent.strip() != b"*":
            raise HttpProblem("validation", "If-None-Match of a write must be *")
        return ""
    if wanted is None:
        return None
    text = wanted.decode("latin-1").strip()
    version = text.removeprefix('"').removesuffix('"')
    if text != f'"{version}"' or not version or not version.isalnum():
        raise HttpProblem("validation", f"If-Match must be one version in double quotes, as in ETag, got {text[:80]}")
    return version
