"""Decodes bytes to text: gzip is unpacked up to a limit, and the encoding is detected.

The first of these decides:

- a byte order mark
- UTF-8, if it is valid
- the encoding that the file declares (`declared`)
- the guess of charset-normalizer, and finally cp1252

Bytes that are not text are an InvalidInput.
"""

from __future__ import annotations

import codecs
import re
import zlib

from qa_cluster.errors import InputTooLong, InvalidInput

MAX_TEXT_BYTES = 64 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_SAMPLE = 64 * 1024
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# `-*- coding: latin-1 -*-` of Emacs and manual pages, `charset=..` of HTML, `encoding=".."` of XML.
_DECLARED = re.compile(rb"""(?:coding[:=]\s*|charset\s*=\s*["']?|encoding\s*=\s*["'])([A-Za-z0-9_.:-]{2,40})""")
_DECLARED_WITHIN = 2048


def is_gzip(data: bytes) -> bool:
    """Whether these bytes are a gzip file."""
    return data.startswith(_GZIP)


def gunzip(data: bytes, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Return the contents of a gzip file: InvalidInput if it is damaged, InputTooLong if it is larger than `limit`."""
    parts: list[bytes] = []
    left = limit
    while data:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            part = stream.decompress(data, left + 1)
        except zlib.error as error:
            raise InvalidInput(f"a damaged gzip file: {error}") from error
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise InputTooLong(f"unpacks to more than {limit} bytes")
        if not stream.eof:
            raise InvalidInput("a gzip file that ends too early")
        data = stream.unused_data.lstrip(b"\0")  # further members, as in `cat a.gz b.gz`
    return b"".join(parts)


def is_binary(data: bytes) -> bool:
    """Whether bytes without a byte order mark are not text."""
    sample = data[:_SAMPLE]
    if not sample or any(sample.startswith(mark) for mark, _ in _BOMS):
        return False
    controls = sum(byte < 0x20 and byte not in b"\t\n\v\f\r\b\x1b" for byte in sample)
    return b"\0" in sample or controls > len(sample) // 100 + 1


def decode(data: bytes) -> str:
    """Return the text of a file, with newlines as line ends."""
    return _decoded(data).replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes) -> str:
    for mark, name in _BOMS:
        if data.startswith(mark):
            try:
                return data.decode(name)
            except UnicodeDecodeError as error:
                raise InvalidInput(f"starts as {name.upper()}, but byte {error.start} is invalid") from error
    if is_binary(data):
        raise InvalidInput("is not text: it contains control characters, as programs and pictures do")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _guessed(data)


def _guessed(data: bytes) -> str:
    declared = _DECLARED.search(data[:_DECLARED_WITHIN])
    if declared is not None:
        try:
            return data.decode(codecs.lookup(declared[1].decode("ascii")).name)
        except (LookupError, UnicodeDecodeError):
            pass
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    best = from_bytes(data[: 4 * _SAMPLE]).best()
    # charset-normalizer's guess among single-byte encodings is weak on short texts: they are cp1252 unless the script
    # is another.
    if best is not None and (best.encoding in ("cp1252", "latin_1") or _is_sure(best.alphabets)):
        try:
            return data.decode(best.encoding)
        except (LookupError, UnicodeDecodeError):
            pass
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_sure(alphabets: list[str]) -> bool:
    return any(not name.startswith(("Basic Latin", "Latin", "Control", "General Punct")) for name in alphabets)
