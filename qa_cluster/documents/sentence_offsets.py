"""Packs the sentence offsets of a document, so that a shard can cut any sentence out of the text.

The packed form starts with one byte, which is the width of a record in bytes. One record per sentence follows. So the
number of a sentence gives the position of its record. A record has three fields:

- the sentence's first code point (u32)
- its length in code points (u16)
- a checksum of its bytes (u16)

If the text is not ASCII, a record also has the sentence's first byte (u32) and its length in bytes (u16). The scripts
in ``qa_cluster/scripts`` read the same form.

The checksum detects that a client has replaced the text with ``SET`` since it was split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

_NARROW = Struct("<IHH")
_WIDE = Struct("<IHHIH")
NARROW, WIDE = _NARROW.size, _WIDE.size


@dataclass(frozen=True, slots=True)
class LocatedSentence:
    """A sentence: its number, its text, and the offset of its first code point in the document."""

    index: int
    text: str
    start: int


def pack_offsets(text: str, spans: Sequence[tuple[int, int]]) -> bytes:
    """Pack the offsets of the sentences at `spans` (code points, ascending, without overlaps).

    >>> pack_offsets("A cat. No!", [(0, 6), (7, 10)]).hex(" ")
    '08 00 00 00 00 06 00 a9 1f 07 00 00 00 03 00 ee 1e'
    """
    if text.isascii():
        data = text.encode()
        return b"\x08" + b"".join(
            [_NARROW.pack(start, end - start, crc32(data[start:end]) & 0xFFFF) for start, end in spans]
        )
    packed, position, place = [b"\x0e"], 0, 0
    for start, end in spans:
        place += len(text[position:start].encode())
        data = text[start:end].encode()
        packed.append(_WIDE.pack(start, end - start, crc32(data) & 0xFFFF, place, len(data)))
        position, place = end, place + len(data)
    return b"".join(packed)


def first_byte(width: int, records: bytes) -> int:
    """Return the position of the first sentence of `records` in the UTF-8 bytes of the text; 0 without records.

    `width` is the width of a record in bytes.
    """
    if not records:
        return 0
    return int(_WIDE.unpack_from(records)[3] if width == WIDE else _NARROW.unpack_from(records)[0])


def cut_sentences(first: int, width: int, records: bytes, text: bytes) -> Iterator[LocatedSentence | None]:
    """Yield consecutive sentences of a document, starting with number `first`.

    For a sentence whose text has changed, yield None.

    Args:
        first: the number of the first sentence.
        width: the width of a record in bytes.
        records: the records of the sentences.
        text: the current text in UTF-8, starting at the first byte of the first sentence.
    """
    begin = 0
    for number in range(len(records) // width):
        if width == WIDE:
            start, length, check, place, size = _WIDE.unpack_from(records, number * width)
        else:
            start, length, check = _NARROW.unpack_from(records, number * width)
            place, size = start, length
        begin = begin if number else place
        data = text[place - begin : place - begin + size]
        if len(data) == size and crc32(data) & 0xFFFF == check:
            yield LocatedSentence(first + number, data.decode(), start)
        else:
            yield None
