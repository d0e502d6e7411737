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
        ("a I the ?", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert analyze(text) == expected


@pytest.mark.hostile
def test_what_is_remembered_of_a_word_is_as_long_as_its_term() -> None:
    """A cache of words with a thousand letters would take much more memory than its number of entries suggests."""
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
