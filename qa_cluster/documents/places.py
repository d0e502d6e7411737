"""Packs where the sentences of a document stand in its text, so that a shard can cut any of them out. Pure.

The packed places are a byte, the width of a record, and a record for each sentence, so that one is found by its number.
A record has the sentence's first code point (u32), its length in code points (u16) and a check of its bytes (u16). In a
text that is not ASCII, the record goes on with its first byte (u32) and its length in bytes (u16). The scripts in
``qa_cluster/scripts`` know this form, too.

The check tells when the text is no longer the one that was split: a client has just written another one by ``SET``.
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
class Placed:
    """A sentence: its number, its text, and its first code point in the document."""

    index: int
    text: str
    start: int


def pack_places(text: str, spans: Sequence[tuple[int, int]]) -> bytes:
    """The places of the sentences at `spans` (code points, ascending, without overlaps).

    >>> pack_places("A cat. No!", [(0, 6), (7, 10)]).hex(" ")
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


def cut(first: int, width: int, records: bytes, text: bytes) -> Iterator[Placed | None]:
    """The sentences of a stretch of a document, from number `first` on; None for one whose text has changed.

    Args:
        width: bytes of a record.
        records: those of the sentences, one after the other.
        text: the text from the first sentence's first byte on, as it is now.
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
            yield Placed(first + number, data.decode(), start)
        else:
            yield None
