"""Packed sentence offsets cut exactly the sentences out of their text, and no sentence out of another text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.documents.sentence_offsets import NARROW, WIDE, cut_sentences, pack_offsets
from qa_cluster.documents.sentences import split_sentences

PIECES = ["A cat sat. ", "Größe zählt! ", "😀 lacht.", "\n\n", "Mr. X saw 3.5 of them; ", "東京都。京都", "x"]


def cut_all(packed: bytes, text: bytes, first: int = 0) -> list[tuple[int, str, int] | None]:
    width, count = packed[0], (len(packed) - 1) // packed[0]
    place = 8 if width == WIDE else 0
    records = packed[1 + first * width :]
    begin = int.from_bytes(records[place : place + 4], "little") if first < count else 0
    found = cut_sentences(first, width, records, text[begin:])
    return [None if each is None else (each.index, each.text, each.start) for each in found]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(0, 12))
def test_every_sentence_is_cut_out(text: str, first: int) -> None:
    spans = split_sentences(text)
    packed = pack_offsets(text, spans)
    assert packed[0] == (NARROW if text.isascii() else WIDE)
    expected = [(i, text[start:end], start) for i, (start, end) in enumerate(spans)]
    assert cut_all(packed, text.encode(), first) == expected[first:]


@pytest.mark.parametrize("text", ["A cat. A dog. A cow.", "Ä cat. A dog. A cow."])
def test_a_sentence_whose_bytes_have_changed_is_missing(text: str) -> None:
    spans = [(0, 6), (7, 13), (14, 20)]
    packed = pack_offsets(text, spans)
    changed = text.replace("dog", "fox").encode()
    assert [each is None for each in cut_all(packed, changed)] == [False, True, False]
    shifted = ("\u00dc" + text).encode()
    assert cut_all(packed, shifted) == [None, None, None]
    assert cut_all(packed, text.encode()[:-1])[2] is None
    assert cut_all(packed, b"") == [None, None, None]
