"""The words of a text that match a question's terms, and their places in the original text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings

from qa_cluster.ranking.highlights import _folded, highlights
from qa_cluster.ranking.terms import analyze, question_terms, unaccented
from tests.unit.text_strategies import texts


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("The cats were running!", "Does a cat run?", ["cats", "running"]),
        ("Nothing of the kind.", "cats", []),
        ("I was in the café, the cafe\u0301s are full", "cafe", ["café", "cafe\u0301s"]),
        ("Straße und STRASSE", "strasse", ["Straße", "STRASSE"]),
        ("İstanbul, ISTANBUL", "istanbul", ["İstanbul", "ISTANBUL"]),
        ("O\u2019Neill's and O'Neill", "o'neill", ["O\u2019Neill's", "O'Neill"]),
        ("Ada's and Adas", "Ada", ["Ada's", "Adas"]),
        ("昨日東京都に行った", "東京都", ["東京都"]),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8 사람", "한국", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]),
        ("\U0001f600 \uff21\uff22\uff23\U0001f600 eﬃcient", "abc efficient", ["\uff21\uff22\uff23", "eﬃcient"]),
        ("the Nile\u2122 flows", "niletm", ["Nile\u2122"]),
        ("of the and", "of the and", ["of", "the", "and"]),
        ("The WHO, who and WHO", "What is the WHO?", ["WHO", "WHO"]),
        ("Code in C++, not in C or C#", "What is C++?", ["C++"]),
        ("troll\u00adhaven, Trollhaven", "trollhaven", ["troll\u00adhaven", "Trollhaven"]),
        ("\u00d8st\u200dfold by \u0141om\u017ca", "ostfold LOMZA", ["\u00d8st\u200dfold", "\u0141om\u017ca"]),
    ],
)
def test_words_that_match(text: str, query: str, marked: list[str]) -> None:
    assert [text[start:end] for start, end in highlights(text, question_terms(query))] == marked


@settings(deadline=None)
@given(texts())
@example("\u1100\u0301\u1161")
@example("a\u0323\u0301\u0328b")
@example("\u0301\u0bc6\u0bbe")
def test_pieces_make_the_analyzers_text(text: str) -> None:
    folded, starts, ends = _folded(text)
    assert folded == (text if text.isascii() else unaccented(text)).casefold()
    assert len(starts) == len(ends) == len(folded)
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert starts == sorted(starts) and ends == sorted(ends)


@settings(deadline=None)
@given(texts())
def test_a_text_matches_its_own_terms_and_no_others(text: str) -> None:
    terms = analyze(text)
    spans = highlights(text, terms)
    assert bool(spans) == bool(terms)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert highlights(text, []) == []
