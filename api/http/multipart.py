"""Reads `multipart/form-data` bodies with limits of size, time and number of files.

python-multipart limits the header of each part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from .error_map import HttpProblem
from .messages import Receive, Scope, announced_bytes, body_parts, require_media_type

MEDIA_TYPE = b"multipart/form-data"
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The limits of one upload: the size of the whole body, the number of files, and the time until all has arrived."""

    body_bytes: int
    files: int
    timeout_ms: int


class _Parser(MultiPartParser):
    """Starlette's parser, but with the files in memory, because the service may have no disk to write to."""

    spool_max_size = 0  # 0 means that a file of any size stays in memory


def require_multipart(scope: Scope) -> None:
    """Raise HttpProblem if the media type of the request is not multipart/form-data."""
    require_media_type(scope, MEDIA_TYPE)


async def read_files(scope: Scope, receive: Receive, limits: UploadLimits) -> list[tuple[str, bytes]]:
    """Return the names and contents of the files in a body.

    Raises:
        HttpProblem: the body exceeds a limit, is malformed, contains a field that is not a file, or contains no file.
    """
    announced = announced_bytes(scope)
    if announced is not None and announced > limits.body_bytes:
        raise _too_large(limits, f"has {announced} bytes")
    body = pieces(receive, limits.body_bytes, _too_large(limits, f"has more than {limits.body_bytes} bytes"))
    parser = _Parser(Headers(raw=scope["headers"]), body, max_files=limits.files, max_fields=0)
    async with receiving(limits.timeout_ms):
        form = await parser.parse()
    files: list[tuple[str, bytes]] = []
    for _, part in form.multi_items():
        if isinstance(part, UploadFile):
            files.append((part.filename or "", await part.read()))
            await part.close()
    if not files:
        raise HttpProblem("validation", "the body contains no file: send each file as a part with a filename")
    return files


@asynccontextmanager
async def receiving(timeout_ms: int) -> AsyncIterator[None]:
    """Limit the time of the `with` block that receives a form. Raises HttpProblem if the form is late or malformed."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError as error:
        raise HttpProblem(
            "body-timeout",
            f"the body did not arrive within the limit of {timeout_ms} ms (upload_timeout_ms)",
            headers=[(b"connection", b"close")],
        ) from error
    except MultiPartException as error:
        raise HttpProblem(
            "malformed-multipart", f"the body is not valid: {error.message}", headers=[(b"connection", b"close")]
        ) from error


async def pieces(receive: Receive, limit: int, too_large: HttpProblem) -> AsyncGenerator[bytes, None]:
    """Yield a body of at most `limit` bytes in pieces of at most `PIECE_BYTES`. For a longer body, raise `too_large`.

    Between two pieces, the service handles other requests.
    """
    async for part in body_parts(receive, limit, too_large):
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]
            await asyncio.sleep(0)


def _too_large(limits: UploadLimits, what: str) -> HttpProblem:
    return HttpProblem(
        "body-too-large",
        f"body {what}, the limit is {limits.body_bytes} (upload_max_bytes)",
        headers=[(b"connection", b"close")],
    )
