"""The packed form of a sentence for the index can be unpacked again, whatever the text."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.ranking.postings import pack_sentences, weight, weights_of
from qa_cluster.ranking.terms import analyze


def unpack(packed: bytes) -> list[tuple[int, dict[str, int]]]:
    """The length and frequencies of each sentence; the terms must ascend as bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = packed[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    found = []
    while at < len(packed):
        length, distinct = number(), number()
        terms = {}
        last = b""
        for _ in range(distinct):
            frequency, size = number(), number()
            term = packed[at : at + size]
            at += size
            assert term > last
            last = term
            terms[term.decode()] = frequency
        found.append((length, terms))
    return found


@given(st.lists(st.text(max_size=80), max_size=5))
def test_sentences_are_packed_with_all_their_terms(sentences: list[str]) -> None:
    expected = [(len(terms), dict(Counter(terms))) for terms in map(analyze, sentences)]
    assert unpack(pack_sentences(sentences)) == expected


def test_numbers_of_more_than_seven_bits() -> None:
    sentence = "rose " * 300 + "is"
    assert unpack(pack_sentences([sentence])) == [(300, {"rose": 300})]


def test_weights_are_those_of_bm25() -> None:
    assert weights_of("A cat sees a cat.") == {"cat": weight(2, 3), "see": weight(1, 3)}
