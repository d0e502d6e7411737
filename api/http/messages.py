"""HTTP functions that the routes share, on plain ASGI: headers, bounded bodies, responses, conditions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson

from qa_cluster.access.records import SCOPES, ApiKey
from qa_cluster.errors import InputTooLong, InvalidInput

from ..service.lifespan import ServiceOptions
from .error_map import HttpProblem, RawHeaders

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
READ = ("GET", "HEAD")
METHODS = frozenset({*READ, "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
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


def raw_path(scope: Scope) -> bytes:
    """Return the path of the request, still percent-encoded and without the query string."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0]


def decoded(raw: bytes, what: str, place: str = "") -> str:
    """Decode a part of the path. Raise InvalidInput if the part is not percent-encoded UTF-8.

    `what` names the part in the text of the error. `place` is the name of the parameter that the problem document
    reports as wrong; empty if the part is no parameter.
    """
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the {what} in the path is not percent-encoded UTF-8", place=place) from error


def require_method(scope: Scope, *methods: str) -> None:
    """Raise HttpProblem if the request has a method other than `methods`."""
    if scope["method"] not in methods:
        raise method_not_allowed(scope, ", ".join(methods))


def method_not_allowed(scope: Scope, allowed: str) -> HttpProblem:
    """Return the error for a request with a method other than `allowed`, a text such as ``GET, HEAD``."""
    detail = f"{scope['path'][:200]} supports {allowed}, not {scope['method']}"
    return HttpProblem("method-not-allowed", detail, headers=[(b"allow", allowed.encode())])


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
    require_media_type(scope, JSON)


def require_media_type(scope: Scope, *types: bytes, missing: bytes = b"") -> None:
    """Raise HttpProblem if the body has a media type other than `types`. ``application/..+json`` counts as JSON.

    Args:
        missing: the media type that a request without `Content-Type` has. If it is empty, such a request is refused.
    """
    given = (header(scope, b"content-type") or missing).partition(b";")[0].strip().lower()
    is_json = given.startswith(b"application/") and given.endswith(b"+json")
    if given not in types and not (is_json and JSON in types):
        shown = given.decode("latin-1")[:80] or "none"
        wanted = b" or ".join(types).decode()
        raise HttpProblem("unsupported-media-type", f"content-type must be {wanted}, got {shown}")


async def read_body(scope: Scope, receive: Receive, options: ServiceOptions) -> bytes:
    """Return the whole body. Raise HttpProblem if the body exceeds `body_max_bytes` or does not arrive in time.

    The time limit is `body_timeout_ms`. Raises ClientGone if the client disconnects.
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
    size = announced_bytes(scope)
    if size is not None and size > limit:
        raise _too_large(limit, f"has {size} bytes")
    too_large = _too_large(limit, f"has more than {limit} bytes")
    return b"".join([part async for part in body_parts(receive, limit, too_large)])


def announced_bytes(scope: Scope) -> int | None:
    """Return the size of the body in bytes, as `Content-Length` announces it; None if the size is not announced."""
    announced = header(scope, b"content-length")
    return int(announced) if announced is not None and announced.isdigit() else None


async def body_parts(receive: Receive, limit: int, too_large: HttpProblem) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body as they arrive.

    Raise `too_large` for a body of more than `limit` bytes, and ClientGone if the client disconnects.
    """
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large
        yield part
        if not message.get("more_body", False):
            return


def _too_large(limit: int, what: str) -> HttpProblem:
    return HttpProblem(
        "body-too-large", f"body {what}, the limit is {limit} (body_max_bytes)", headers=[(b"connection", b"close")]
    )


async def send_response(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send a whole response. Adds `Content-Length` to `headers`, unless `status` allows no body (204 and 304)."""
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, content: Any, status: int = 200, headers: RawHeaders | None = None) -> None:
    """Send JSON that caches must not store. `content` is a JSON-ready value, or bytes that are JSON."""
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    usual = [(b"content-type", JSON), (b"cache-control", b"no-store")]
    await send_response(send, status, [*usual, *(headers or [])], body)


def check_size(body: bytes, limit: int, what: str = "response", advice: str = "") -> None:
    """Raise InputTooLong if the body of a response has more than `limit` bytes (the setting `answer_max_bytes`).

    `what` names the body in the error, and `advice` is the end of the error.
    """
    if len(body) > limit:
        raise InputTooLong(f"the {what} has {len(body)} bytes, the limit is {limit} (answer_max_bytes){advice}")


def has_version(scope: Scope, etag: str) -> bool:
    """Return whether the client already has this version of the response (``If-None-Match``)."""
    wanted = header(scope, b"if-none-match")
    tags = () if wanted is None else wanted.decode("latin-1").split(",")
    return any(tag.strip().removeprefix("W/") in (etag.removeprefix("W/"), "*") for tag in tags)


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, _Result], on_leave: Callable[[], None]
) -> _Result:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise ClientGone.

    In this case, `on_leave` is called before the work is cancelled. Call this function only after the whole body was
    read.
    """
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
    """Return the version that a write requires its document to have.

    This is the version in ``If-Match``. It is ``""`` for ``If-None-Match: *``, which requires that the document does
    not exist. It is None if the request has neither header, so the write accepts any version. Raise HttpProblem if a
    header is malformed, or if the request has both headers.
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
