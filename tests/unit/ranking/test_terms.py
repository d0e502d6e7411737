"""Terms of texts and questions."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings

from qa_cluster.ranking import terms
from qa_cluster.ranking.terms import MAX_TERM_LENGTH, analyze, question_terms
from tests.unit.text_strategies import texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cats were running!", ["cat", "run"]),
        ("CAFÉ Café cafe\u0301 cafe", ["cafe"] * 4),
        ("Straße STRASSE", ["strass", "strass"]),
        ("O\u2019Neill's O'Neill", ["o'neil", "o'neil"]),
        ("snake_case __init__", ["snake", "case", "init"]),
        ("SARS-CoV-2 in 2020", ["sar", "cov", "2020"]),
        ("東京都", ["東京", "京都"]),
        ("iPhone用", ["iphon", "用"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("\uff21\uff22\uff23 ﬃ", ["abc", "ffi"]),
        ("a I the ?", ["a", "i", "the"]),
        ("?! ...", []),
        ("The map of The Who and an A", ["map", "the", "who"]),
        ("THE MAP OF WHO", ["map"]),
        ("It's R's x-ray, isn't it", ["it", "r", "ray", "isn't", "x"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert analyze(text) == expected


@pytest.mark.parametrize("mark", list("\u00ad\u034f\u061c\u180e\u200b\u200d\u202e\u2060\u2069\ufe0f\ufeff\U000e0041"))
def test_a_word_with_an_invisible_character_is_that_word(mark: str) -> None:
    assert analyze(f"water{mark}mills near Gen{mark}e\u0300ve") == analyze("watermills near Gen\u00e8ve")
    assert question_terms(f"{mark}Who{mark} built the water{mark}mill{mark}?") == ["built", "watermil"]


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("K\u00f8benhavn", "Kobenhavn"),
        ("Wa\u0142brzych, \u0141\u0119czna", "Walbrzych Leczna"),
        ("\u0110i\u1ec7n Bi\u00ean, \u0111\u00e0", "Dien Bien da"),
        ("c\u0153ur, \u0152uvre", "coeur oeuvre"),
        ("\u00deingvellir, Hafnarfj\u00f6r\u00f0ur", "Thingvellir Hafnarfjordur"),
        ("Di\u0307yarb\u0131r, I\u011fd\u0131r", "Diyarbir Igdir"),
        ("STRA\u1e9eE, Stra\u00dfe", "strasse Strasse"),
        ("B\u0259rd\u0259, \u018fsg\u0259ran", "Berde Esgeran"),
        ("\ua741ort \u01e5o\u0268", "kort goi"),
    ],
)
def test_letters_with_strokes_and_ligatures_are_plain_letters(written: str, typed: str) -> None:
    assert analyze(written) == analyze(typed)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is IT?", "IT means machines."),
        ("Who are the WHO?", "The WHO is in Geneva."),
        ("Who were The Who?", "My uncle liked The Who."),
        ("What is C#?", "C# is younger than Java."),
        ("Where is \u00c5?", "The village \u00c5 is in Norway."),
        ("To be or not to be?", "To be, or not to be."),
        ("WHAT IS IT?", "IT means machines."),
    ],
)
def test_a_question_without_ordinary_words_finds_the_name(question: str, text: str) -> None:
    assert set(question_terms(question)) & set(analyze(text))


def test_rare_words_do_not_disturb_ordinary_questions() -> None:
    assert question_terms("Who wrote a book about C and The Lamp?") == ["wrote", "book", "about", "lamp"]
    assert question_terms("WHO WROTE THE BOOK?") == ["wrote", "book"]


@pytest.mark.hostile
def test_the_cache_of_words_has_no_entries_longer_than_a_term() -> None:
    """The number of cached words is limited, but their memory is limited only if no long word is cached."""
    begin = "q" * MAX_TERM_LENGTH
    assert analyze(begin) == [begin]
    before = terms._term.cache_info().currsize
    assert analyze(" ".join(begin + str(number) * 300 for number in range(50))) == [begin] * 50
    assert terms._term.cache_info().currsize == before


@settings(deadline=None)
@given(texts())
def test_terms_can_be_parts_of_keys_and_do_not_depend_on_case(text: str) -> None:
    terms = analyze(text)
    assert all(term and len(term) <= MAX_TERM_LENGTH and not set(term) & set("{} \n") for term in terms)
    assert analyze(text) == terms


def test_question_terms_are_distinct_and_bounded() -> None:
    assert question_terms("Cats and cats and dogs?") == ["cat", "dog"]
    assert len(question_terms(" ".join(f"word{n}" for n in range(100)))) == 32


def test_threads_do_not_disturb_each_other() -> None:
    words = [f"running{n} happily{n} nationalities{n}" for n in range(500)]
    expected = [analyze(text) for text in words]
    results: list[list[list[str]]] = []
    threads = [threading.Thread(target=lambda: results.append([analyze(text) for text in words])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8
