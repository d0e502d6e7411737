"""Where spans may end, in any script."""

# ruff: noqa: RUF001 (characters that look like others are the point)

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.reading.words import can_answer, whole_pairs, whole_words
from tests.unit.text_strategies import texts

ETE = "l\u2019e\u0301te\u0301 dernier"
FAMILY = "👩\u200d👩\u200d👧\u200d👦"


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("unhappiness rules", (2, 5), "unhappiness"),
        ("in 1998, then", (4, 6), "1998"),
        ("well-known", (0, 3), "well"),
        ("   ", (0, 3), ""),
        ("beyond", (3, 99), "beyond"),
        # scripts without spaces: only characters stay whole
        ("a 東京都 b", (3, 4), "京"),
        ("กรุงเทพมหานคร", (0, 2), "กรุ"),
        ("ស្រុកខ្មែរ", (0, 1), "ស្"),
        ("𠀀𠀁𠀂", (1, 2), "𠀁"),
        # an apostrophe within a word, and one that ends or starts a word
        ("by Theodore Ts'o.", (3, 14), "Theodore Ts'o"),
        ("by Theodore Ts'o", (15, 16), "Ts'o"),
        ("Ada's machine", (0, 3), "Ada"),
        ("users' guide", (0, 5), "users"),
        ("re'text'", (3, 7), "text"),
        # marks belong to the letter before them, and to its word
        (ETE, (2, 3), "e\u0301te\u0301"),
        ("यह हिन्दी है", (3, 4), "हिन्दी"),
        ("சென்னை நகரம்", (1, 2), "சென்னை"),
        ("هذا كِتَابٌ جديد", (4, 5), "كِتَابٌ"),
        ("می‌خواهم بروم", (0, 2), "می‌خواهم"),
        # one emoji of several code points
        (f"a {FAMILY} b", (4, 5), FAMILY),
        ("❤\ufe0flove", (3, 5), "love"),
        ("in 🇩🇪 now", (3, 4), "🇩🇪"),
        ("🏴\U000e0067\U000e0062\U000e007f x", (0, 1), "🏴\U000e0067\U000e0062\U000e007f"),
        ("𝐀𝐁𝐂 𝟏𝟐", (1, 2), "𝐀𝐁𝐂"),
        ("안녕하세요 세계", (0, 2), "안녕하세요"),
        # letters that combine with the letter before them
        ("น้ำดี", (0, 1), "น้ำ"),
        ("ｶﾞｽ", (0, 1), "ｶﾞ"),
        # an invisible character in a word does not end it, and does not belong to a word that ends there
        ("a co\u00adoperation b", (2, 4), "co\u00adoperation"),
        ("a co\u00ad\u2060operation b", (8, 9), "co\u00ad\u2060operation"),
        ("\u200fשלום\u200f!", (2, 3), "שלום"),
        ("to\ufeffgether\u00ad\u00ad\u00ad\u00ad\u00adno", (0, 1), "to\ufeffgether"),
        ("東\u00ad京", (0, 1), "東"),
        ("word\u200bbreak", (0, 2), "word"),
    ],
)
def test_whole_words(text: str, span: tuple[int, int], expected: str) -> None:
    start, end = whole_words(text, *span)
    assert text[start:end] == expected


def test_words_end_where_they_must() -> None:
    assert whole_words("unhappiness", 4, 6, 2, 8) == (2, 8)
    assert whole_words("unhappiness", 4, 6, 4) == (4, 11)
    assert whole_words("unhappiness", 4, 6, 0, 99) == (0, 11)


@settings(deadline=None)
@given(texts(6), st.integers(0, 60), st.integers(0, 60))
def test_words_are_widened_only_and_never_cut_into_characters(text: str, start: int, length: int) -> None:
    start = min(start, len(text))
    end = min(start + length, len(text))
    found_start, found_end = whole_words(text, start, end)
    answer = text[found_start:found_end]
    assert answer == answer.strip()
    if not text[start:end].strip():
        assert answer == ""
        return
    assert text[start:end].strip() in answer
    assert whole_words(text, found_start, found_end) == (found_start, found_end)
    behind = text[found_end : found_end + 1]
    assert not behind or unicodedata.category(behind)[0] != "M"
    for left, right in ((text[found_start - 1 : found_start], answer[0]), (answer[-1], behind)):
        assert not (left.isascii() and left.isalnum() and right.isascii() and right.isalnum())


@pytest.mark.parametrize("text", ["", " ", '"', "<", "...", "by", "of the", "The,", "(it)", "\u2014", "\u201cof\u201d"])
def test_signs_and_joining_words_alone_answer_nothing(text: str) -> None:
    assert not can_answer(text)


@pytest.mark.parametrize(
    "text", ["-a", "no", "1843", "by 1843", "WHO", "the IT department", "\u4eac", "C++", "all", "may"]
)
def test_a_text_with_its_own_word_can_answer(text: str) -> None:
    assert can_answer(text)


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("They call it “Old Bridge” today.", "Old Bridge”", "“Old Bridge”"),
        ("They call it “The Old Bridge” today.", "Old Bridge”", "Old Bridge"),
        ("They call it “Old Bridge (of 1750)”.", "“Old Bridge", "Old Bridge"),
        ("Man nennt sie „Rote Brücke“.", "„Rote Brücke", "„Rote Brücke“"),
        ("Le pont « Neuf » est vieux.", "« Neuf", "Neuf"),
        ("Sie heisst »Elbe«.", "»Elbe", "»Elbe«"),
        ("The song 'Red Hill' and the dogs' bowl.", "Hill'", "Hill"),
        ("The bowl is the dogs' own.", "the dogs'", "the dogs'"),
        ("It is of the '90s.", "'90s", "'90s"),
        ("Its port (7000) and host", "7000)", "(7000)"),
        ("It calls open(path) first", "open(path", "open(path)"),
        ("the values of [0, 1) only", "[0, 1)", "[0, 1)"),
        ('a screen of 27" is large', '27"', '27"'),
        ('the "wide 27" is large', '27"', "27"),
        ("書名は「海」です", "海」", "「海」"),
        ("the (old) and (new) towns", "(old) and (new)", "(old) and (new)"),
        ("plain words stay", "words", "words"),
    ],
)
def test_answers_do_not_end_with_half_a_pair(text: str, found: str, expected: str) -> None:
    start = text.index(found)
    assert text[slice(*whole_pairs(text, start, start + len(found)))] == expected


def test_a_pair_is_completed_only_within_the_limits() -> None:
    assert whole_pairs("(one) two", 1, 5, 1) == (1, 4)
    assert whole_pairs("(one) two", 0, 4, 0, 4) == (1, 4)


@settings(deadline=None)
@given(st.text("ab1 '\"()[]“”’‘«».,", max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_whole_pairs_stay_whole(text: str, start: int, length: int) -> None:
    start = min(start, len(text))
    end = min(start + length, len(text))
    first, last = whole_pairs(text, start, end)
    assert max(0, start - 1) <= first <= last <= min(len(text), end + 1) or first == last
    assert whole_pairs(text, first, last) == (first, last)
