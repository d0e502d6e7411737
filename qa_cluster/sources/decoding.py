"""Decodes bytes to text. gzip is unpacked up to a limit, and the encoding is detected.

The first source that applies determines the encoding:

- a byte order mark
- UTF-8, unless there are more invalid bytes than valid characters beyond ASCII; each invalid byte is decoded as
  windows-1252
- the encoding that the file declares
- the guess of charset-normalizer, and finally windows-1252

Labels have the same meaning as on web pages (https://encoding.spec.whatwg.org): `latin-1` is windows-1252.

Bytes that are not text raise InvalidInput.
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
_LABEL = rb"([A-Za-z0-9_.:-]{2,40})"
# Where encodings are declared: in XML and HTML, and in the mode lines of editors. In other places, words such as
# `encoding` and `charset` are prose.
_DECLARATIONS = (
    re.compile(rb"""\A\s*+<\?xml[^>]*?\sencoding\s*+=\s*+["']""" + _LABEL),
    re.compile(rb"""<meta\s[^>]*?charset\s*+=\s*+["']?\s*+""" + _LABEL, re.IGNORECASE),
    re.compile(rb"""\A(?:[^\n]*+\n)?[^\n]*?(?:-\*-[^\n]*?coding|vim?:[^\n]*?fileencoding)[:=]\s*+""" + _LABEL),
)
_DECLARED_WITHIN = 2048
_WEB_NAMES = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs",
}  # fmt: skip


def is_gzip(data: bytes) -> bool:
    """Return whether the bytes start like a gzip file."""
    return data.startswith(_GZIP)


def gunzip(data: bytes, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Unpack a gzip file; InvalidInput if it is damaged, InputTooLong if its contents exceed `limit` bytes."""
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
        data = stream.unused_data.lstrip(b"\0")  # more members, as in `cat a.gz b.gz`
    return b"".join(parts)


def is_binary(data: bytes) -> bool:
    """Return whether bytes are not text: their first 64 KiB contain a zero byte or many control characters.

    Many means more than 1%. Bytes that start with a byte order mark count as text.
    """
    sample = data[:_SAMPLE]
    if not sample or any(sample.startswith(mark) for mark, _ in _BOMS):
        return False
    controls = sum(byte < 0x20 and byte not in b"\t\n\v\f\r\a\b\x1b" for byte in sample)
    return b"\0" in sample or controls > len(sample) // 100 + 1


def decode(data: bytes) -> str:
    """Decode the bytes of a file to text, with ``\\n`` as line ends; InvalidInput if the bytes are not text."""
    return decode_with_remarks(data)[0]


def decode_with_remarks(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Decode the bytes of a file to text, with ``\\n`` as line ends.

    Returns:
        the text, and remarks for people that say what was guessed or replaced.

    Raises:
        InvalidInput: the bytes are not text, or do not have the encoding of their byte order mark.
    """
    text, remarks = _decoded(data)
    return text.replace("\r\n", "\n").replace("\r", "\n"), remarks


def _decoded(data: bytes) -> tuple[str, tuple[str, ...]]:
    for mark, name in _BOMS:
        if data.startswith(mark):
            try:
                return data.decode(name), ()
            except UnicodeDecodeError as error:
                raise InvalidInput(f"starts as {name.upper()}, but byte {error.start} is invalid") from error
    if is_binary(data):
        raise InvalidInput("is not text: it contains control characters, as programs and pictures do")
    try:
        return data.decode(), ()
    except UnicodeDecodeError:
        return _mostly_utf8(data) or _declared(data) or _guessed(data)


def _mostly_utf8(data: bytes) -> tuple[str, tuple[str, ...]] | None:
    """Return the text and remarks if the bytes are mostly UTF-8; otherwise None.

    Mostly means that there are at least as many valid characters beyond ASCII as invalid bytes.
    """
    text = data.decode(errors="surrogateescape")
    stray = sum("\udc80" <= character <= "\udcff" for character in text)
    if stray > sum(character > "\x7f" for character in text) - stray:
        return None
    replaced = data.decode(errors=_AS_WINDOWS)
    return replaced, (f"bytes that are not UTF-8 were read as windows-1252: {stray}",)


def _as_windows(error: UnicodeError) -> tuple[str, int]:
    """Decode the invalid bytes of `error` as windows-1252; the error handler `_AS_WINDOWS` of `codecs`.

    Return the replacement, and the position after the bytes. A letter that is cut off at the end of the file is left
    out.
    """
    assert isinstance(error, UnicodeDecodeError)
    found = error.object[error.start : error.end]
    is_cut_off = error.end == len(error.object) and error.reason == "unexpected end of data"
    return "" if is_cut_off else _windows(found), error.end


def _windows(data: bytes) -> str:
    return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in data)


_AS_WINDOWS = "qa_cluster.as_windows"
codecs.register_error(_AS_WINDOWS, _as_windows)


def _declared(data: bytes) -> tuple[str, tuple[str, ...]] | None:
    for pattern in _DECLARATIONS:
        declared = pattern.search(data[:_DECLARED_WITHIN])
        if declared is None:
            continue
        text = decode_as(data, declared[1].decode("ascii"))
        if text is not None:
            return text, ()
    return None


def decode_as(data: bytes, label: str) -> str | None:
    """Return the text of `data` in the encoding that `label` names.

    None if the label is unknown, if ASCII characters have other bytes in its encoding, or if `data` is not valid in it.
    """
    try:
        name = codecs.lookup(label).name
        name = _WEB_NAMES.get(name, name)
        if "<a".encode(name) != b"<a":  # in such an encoding, the declaration itself would be unreadable
            return None
        return data.decode(name) if name != "cp1252" else data.decode(name, errors=_AS_WINDOWS)
    except (LookupError, UnicodeError):
        return None


def _guessed(data: bytes) -> tuple[str, tuple[str, ...]]:
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    best = from_bytes(data[: 4 * _SAMPLE], preemptive_behaviour=False).best()
    # charset-normalizer often guesses wrong single-byte encodings for short texts. So such a text is decoded as
    # windows-1252 unless the guess finds letters of a script other than Latin.
    if best is not None and _is_sure(best.alphabets):
        try:
            return data.decode(best.encoding), (f"its encoding was guessed: {best.encoding}",)
        except (LookupError, UnicodeDecodeError):
            pass
    return data.decode("cp1252", errors=_AS_WINDOWS), ("its encoding was guessed: windows-1252",)


def _is_sure(alphabets: list[str]) -> bool:
    return any(not name.startswith(("Basic Latin", "Latin", "Control", "General Punct")) for name in alphabets)
