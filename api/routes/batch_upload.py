"""Reads the form of `POST /v1/files`, and stores its file in the cluster while it arrives."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from time import time
from typing import Any

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from qa_cluster.batches.records import BATCH, PART_BYTES, BatchFile
from qa_cluster.batches.store import BatchStore

from ..http.error_map import HttpProblem
from ..http.messages import Receive, Scope, announced_bytes
from ..http.multipart import pieces, receiving

# The shortest lifetime that the form field `expires_after` may set.
_LEAST_EXPIRY_SECONDS = 3600
_MAX_FORM_FIELDS = 10
_MAX_FIELD_BYTES = 4096
# The size limit of the form without the file.
_FORM_BYTES = 64 * 1024
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class _Part:
    """The part of the form that has the file. The file is stored in parts of `PART_BYTES` bytes while it arrives.

    Attributes:
        file: the record of the file; None before its first bytes have arrived.
        announced: the largest possible size of the file in bytes. The space for it is reserved at the first bytes.
    """

    def __init__(self, store: BatchStore, owner: str, filename: str, seconds: float) -> None:
        self._store = store
        self._owner = owner
        self._filename = _UNSAFE.sub("", filename)[:255] or "upload.jsonl"
        self._seconds = seconds
        self._buffer = bytearray()
        self.file: BatchFile | None = None
        self.announced = store.limits.file_bytes

    async def write(self, data: bytes) -> None:
        """Store the next bytes of the file. Bytes that do not fill a part stay in memory until more bytes arrive.

        Raise HttpProblem if the file is too large.
        """
        limit = self._store.limits.file_bytes
        if self.file is None:
            self.file = await self._store.begin_file(self._owner, self._filename, self.announced, self._seconds)
        self._buffer += data
        if self.file.bytes + len(self._buffer) > limit:
            raise _too_large(limit)
        while len(self._buffer) >= PART_BYTES:
            await self._put(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    async def seek(self, offset: int) -> None:
        """Store the last bytes. Starlette calls this method at the end of the file."""
        del offset
        if self.file is not None and self._buffer:
            await self._put(bytes(self._buffer))
            self._buffer.clear()

    async def _put(self, data: bytes) -> None:
        file = self.file
        assert file is not None
        await self._store.put_part(self._owner, file.id, file.parts, data)
        self.file = replace(file, bytes=file.bytes + len(data), parts=file.parts + 1)

    async def discard(self) -> None:
        """Delete the stored parts of the file."""
        if self.file is not None:
            await self._store.discard_file(self._owner, self.file.id, self.file.parts + 1)


class _Parser(MultiPartParser):
    """Starlette's form parser, which writes the only file of a form to a `_Part`.

    Attributes:
        part: stores the file; unset until the file's headers have arrived.
        name: the name of the form field with the file; empty until then.
        ended: whether the parser has read the last boundary.
    """

    part: _Part
    name = ""
    ended = False

    def on_end(self) -> None:
        self.ended = True

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is not None:
            given: Any = self._current_part.file
            given.file.close()
            self.part = self.begin(given.filename or "")
            self.name = self._current_part.field_name
            self._current_part.file = self.part  # type: ignore[assignment]

    def begin(self, filename: str) -> _Part:
        """Return the object that stores the file with this name. `receive_file` replaces this method before parsing."""
        raise NotImplementedError


async def receive_file(scope: Scope, receive: Receive, store: BatchStore, owner: str, timeout_ms: int) -> BatchFile:
    """Store the file of a form, and return the record of the file. Raise HttpProblem if the form is wrong or too large.

    The form must arrive within `timeout_ms`. If an upload fails, its stored parts are deleted.
    """
    limit = store.limits.file_bytes
    size = announced_bytes(scope)
    announced = limit if size is None else size
    if announced > limit + _FORM_BYTES:
        raise _too_large(limit)
    parser = _Parser(
        Headers(raw=scope["headers"]),
        pieces(receive, limit + _FORM_BYTES, _too_large(limit)),
        max_files=1,
        max_fields=_MAX_FORM_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    parts: list[_Part] = []

    def begin(filename: str) -> _Part:
        part = _Part(store, owner, filename, timeout_ms / 1000)
        part.announced = min(announced, limit)
        parts.append(part)
        return part

    parser.begin = begin  # type: ignore[method-assign]
    try:
        async with receiving(timeout_ms):
            form = await parser.parse()
            if not parser.ended:
                raise MultiPartException("the last boundary is missing")
        fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        file = _checked(parser.name, parts, fields)
        return await store.end_file(owner, _with_expiry(file, fields))
    except BaseException:
        for part in parts:
            await asyncio.shield(part.discard())
        raise


def _checked(name: str, parts: list[_Part], fields: dict[str, str]) -> BatchFile:
    if fields.get("purpose") != BATCH:
        raise _wrong("purpose", f"purpose must be {BATCH}, got {fields.get('purpose', 'none')!r}"[:200])
    if not parts or name != "file":
        raise _wrong("file", "the form must have the field file with a filename")
    file = parts[0].file
    if file is None or not file.bytes:
        raise _wrong("file", "the file is empty")
    return file


def _with_expiry(file: BatchFile, fields: dict[str, str]) -> BatchFile:
    """Apply the field `expires_after`, which can only shorten the lifetime of the file."""
    text = fields.get("expires_after[seconds]")
    if text is None:
        return file
    if not text.isdigit() or int(text) < _LEAST_EXPIRY_SECONDS or fields.get("expires_after[anchor]") != "created_at":
        raise _wrong(
            "expires_after",
            f"expires_after must have the anchor created_at and at least {_LEAST_EXPIRY_SECONDS} seconds",
        )
    return replace(file, expires_at=min(file.expires_at, int(time()) + int(text)))


def _wrong(name: str, text: str) -> HttpProblem:
    return HttpProblem("validation", text, errors=[{"pointer": f"#/{name}", "detail": text}])


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(
        "body-too-large",
        f"the file has more than {limit} bytes, the limit (batch_file_max_bytes): split it",
        headers=[(b"connection", b"close")],
    )
