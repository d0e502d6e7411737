"""The cut of documents into passages: every sentence in one passage, within the budget, within its section."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.documents.source_map import NO_MAP, SourceMap
from qa_cluster.vectors.passage_cut import CutPassage, cut_document, cut_section

LENGTHS = st.lists(st.integers(0, 90), max_size=60)


@given(LENGTHS, st.integers(1, 128))
def test_passages_cover_a_section_within_the_budget(lengths: list[int], budget: int) -> None:
    passages = cut_section(lengths, budget)
    assert [number for first, count in passages for number in range(first, first + count)] == list(range(len(lengths)))
    for first, count in passages:
        assert count >= 1
        assert count == 1 or sum(lengths[first : first + count]) <= budget


@given(LENGTHS, st.integers(1, 128))
def test_no_cut_needs_fewer_passages(lengths: list[int], budget: int) -> None:
    greedy, used = 0, budget + 1
    for length in lengths:
        if used + length > budget or not greedy:
            greedy, used = greedy + 1, 0
        used += length
    assert len(cut_section(lengths, budget)) == greedy


def test_the_passages_of_a_section_have_about_equal_lengths() -> None:
    assert cut_section([30] * 5, 128) == [(0, 3), (3, 2)]  # not passages of four sentences and one sentence


def test_a_passage_ends_with_its_section() -> None:
    sections = SourceMap(starts=(0, 20, 40), paths=(("Top",), ("Top", "Below"), ()))
    found = cut_document([5] * 6, [0, 10, 20, 30, 40, 50], sections, lambda section: 100)
    assert found == [CutPassage(0, 2, "Top"), CutPassage(2, 2, "Top > Below"), CutPassage(4, 2, "")]


def test_a_long_path_of_headings_leaves_less_for_the_sentences() -> None:
    sections = SourceMap(starts=(0, 40), paths=(("A",), ("A", "A long heading")))
    found = cut_document([10] * 8, range(0, 80, 10), sections, lambda section: 40 if section == "A" else 20)
    assert [span.sentences for span in found] == [4, 2, 2]


def test_texts_before_the_first_heading_and_without_headings() -> None:
    after = SourceMap(starts=(15,), paths=(("Late",),))
    assert cut_document([5, 5, 5], [0, 10, 20], after, lambda section: 100) == [
        CutPassage(0, 2, ""),
        CutPassage(2, 1, "Late"),
    ]
    assert cut_document([], [], NO_MAP, lambda section: 100) == []


@given(LENGTHS)
def test_sentences_in_all_sections_are_in_one_passage_each(lengths: list[int]) -> None:
    starts = [10 * number for number in range(len(lengths))]
    sections = SourceMap(starts=(35, 90, 250), paths=(("A",), ("B",), ("C",)))
    found = cut_document(lengths, starts, sections, lambda section: 64)
    ends = [span.first + span.sentences for span in found]
    assert [span.first for span in found] == [0, *ends[:-1]][: len(found)]
    assert not found or ends[-1] == len(lengths)
    for span in found:
        paths = {sections.section_at(start) for start in starts[span.first : span.first + span.sentences]}
        assert len(paths) == 1
    assert all(one.first < other.first for one, other in pairwise(found))
