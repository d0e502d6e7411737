"""Reads the files of a `multipart/form-data` body, with limits for the body and the number of files.

python-multipart limits the header of each part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from .error_map import HttpProblem
from .messages import ClientGone, Receive, Scope, header

MEDIA_TYPE = b"multipart/form-data"
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The limits of one upload."""

    body_bytes: int
    files: int
    timeout_ms: int


class _Parser(MultiPartParser):
    """Starlette's parser with the files in memory, because the service may have no disk to write to."""

    spool_max_size = 0  # never written to a disk


def require_multipart(scope: Scope) -> None:
    """Raise HttpProblem unless the media type of the request is multipart/form-data."""
    given = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if given != MEDIA_TYPE:
        shown = given.decode("latin-1")[:80] or "none"
        raise HttpProblem("unsupported-media-type", f"content-type must be {MEDIA_TYPE.decode()}, got {shown}")


async def read_files(scope: Scope, receive: Receive, limits: UploadLimits) -> list[tuple[str, bytes]]:
    """Return the names and contents of the files in a body.

    Raises:
        HttpProblem: the body exceeds a limit, is malformed, contains a field that is not a file, or contains no file.
    """
    try:
        async with asyncio.timeout(limits.timeout_ms / 1000):
            return await _read_files(scope, receive, limits)
    except TimeoutError as error:
        raise HttpProblem(
            "body-timeout",
            f"the body did not arrive within the limit of {limits.timeout_ms} ms (upload_timeout_ms)",
            headers=[(b"connection", b"close")],
        ) from error


async def _read_files(scope: Scope, receive: Receive, limits: UploadLimits) -> list[tuple[str, bytes]]:
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limits.body_bytes:
        raise _too_large(limits, f"has {int(announced)} bytes")
    parser = _Parser(Headers(raw=scope["headers"]), _pieces(receive, limits), max_files=limits.files, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HttpProblem(
            "malformed-multipart", f"the body is not valid: {error.message}", headers=[(b"connection", b"close")]
        ) from error
    files: list[tuple[str, bytes]] = []
    for _, part in form.multi_items():
        if isinstance(part, UploadFile):
            files.append((part.filename or "", await part.read()))
            await part.close()
    if not files:
        raise HttpProblem("validation", "the body contains no file: send each as a part with a filename")
    return files


async def _pieces(receive: Receive, limits: UploadLimits) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces. Other requests are served between two pieces."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits, f"has more than {limits.body_bytes} bytes")
        for start in range(0, len(part), _PIECE):
            yield part[start : start + _PIECE]
            await asyncio.sleep(0)
        if not message.get("more_body", False):
            return


def _too_large(limits: UploadLimits, what: str) -> HttpProblem:
    return HttpProblem(
        "body-too-large",
        f"body {what}, the limit is {limits.body_bytes} (upload_max_bytes)",
        headers=[(b"connection", b"close")],
    )
