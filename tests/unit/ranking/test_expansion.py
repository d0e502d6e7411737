"""Additional terms of a query: completions of a word that is being typed, and synonyms."""

from __future__ import annotations

import pytest

from qa_cluster.ranking.bm25 import idf
from qa_cluster.ranking.expansion import Expansion, Typed, added_by_synonyms, stems_of_prefix
from qa_cluster.ranking.ranker import most_frequent_terms
from qa_cluster.ranking.terms import MAX_QUESTION_TERMS, question_terms


@pytest.mark.parametrize(
    ("text", "terms", "prefix"),
    [
        ("Who wrote moby di", ("wrote", "mobi"), "di"),
        ("Who wrote moby ", ("wrote", "mobi"), ""),
        ("moby.", ("mobi",), ""),
        ("c++", ("c++",), ""),
        ("m", (), "m"),
        ("wrote the", ("wrote",), ""),
        ("the", (), "the"),
        ("Zür", (), "zur"),
        ("東京都", ("東京",), "京都"),
        ("x" * 100, (), "x" * 64),
    ],
)
def test_a_query_is_split_at_its_last_word(text: str, terms: tuple[str, ...], prefix: str) -> None:
    assert Typed.of(text) == Typed(terms, prefix)


def test_each_letter_of_a_word_leads_to_its_term() -> None:
    for word in ("running", "relations", "happily", "studies", "cars", "caring", "movement"):
        (term,) = question_terms(word)
        for length in range(2, len(word) + 1):
            typed = word[:length]
            assert term.startswith(typed) or term in stems_of_prefix(typed), typed


def test_completions_are_bounded_and_weigh_like_one_term() -> None:
    many = [f"term{number}" for number in range(100)]
    found = Typed.of(" ".join(many[:40]) + " ter").expansion(["ter", *many])
    assert len(found.terms) == MAX_QUESTION_TERMS
    assert found.exact == "ter" in found.completions
    expansion = Expansion(("a", "cat", "category"), frozenset({"cat", "category"}), "cat")
    assert expansion.weighed(1000, (10, 50, 30)) == [10, 50, 80]
    assert expansion.weighed(60, (10, 50, 30)) == [10, 50, 60]


def test_a_synonym_weighs_a_part_of_its_term() -> None:
    groups = [[["vm"], ["virtual", "machin"]], [["car"], ["automobil"]]]
    found = added_by_synonyms(["vm", "start"], groups, 0.5, 8)
    assert found.terms == ("vm", "start", "virtual", "machin")
    frequencies = (5, 100, 7, 3)
    weighed = found.weighed(10_000, frequencies)
    assert weighed[:2] == [5, 100]
    for term in (2, 3):
        assert idf(10_000, [weighed[term]])[0] == pytest.approx(0.5 * idf(10_000, [frequencies[term]])[0], rel=0.01)
    assert added_by_synonyms(["virtual"], groups, 0.5, 8).terms == ("virtual",)
    assert added_by_synonyms(["virtual", "machin"], groups, 0.5, 8).terms == ("virtual", "machin", "vm")
    assert added_by_synonyms(["vm"], groups, 0.5, 1).terms == ("vm", "virtual")


def test_completions_of_several_indexes_are_added() -> None:
    replies = [[1, [b"run", 3, b"rune", 2]], [9, 9, [3, 0]], [1, [b"rune", 2, b"rung", 1]], [9, 9, [4, 1]]]
    assert most_frequent_terms(["run", "rus"], replies, 3) == ["run", "rune", "rung"]
    assert most_frequent_terms([], [], 3) == []
