"""Spans from logits: the best spans of all windows, on one scale, with right offsets, overlapping or disjoint."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.errors import InferenceFailed
from qa_cluster.reading.spans import AnswerSpan, Reading, best_spans
from qa_cluster.reading.tokenization import TextTokens
from qa_cluster.reading.windows import Window
from tests.unit.small_tokenizer import small_tokenizer
from tests.unit.text_strategies import texts

START = 4  # the start of the passage in a window, after [CLS], two question tokens and [SEP]
SEEDS = st.integers(0, 10_000)


def words(count: int) -> tuple[TextTokens, str]:
    """A text of words with three letters, and its tokens: one per word."""
    starts = np.arange(count, dtype=np.int32) * 4
    return TextTokens(np.zeros(count, dtype=np.int32), starts, starts + 3), "abc " * count


def window(first: int, tokens: int) -> Window:
    return Window(np.zeros(START + tokens + 1, dtype=np.int64), START, first, tokens)


def tempting(rng: np.random.Generator, tokens: int, padding: int = 0) -> np.ndarray:
    """Logits of a window that are highest where no answer may be: in the question, at [SEP] and in the padding."""
    values = rng.normal(size=START + tokens + 1 + padding).astype(np.float32)
    values[1:START] += 50
    values[START + tokens :] += 50
    return values


def read(start: np.ndarray, end: np.ndarray, tokens: TextTokens, text: str, **options: Any) -> Reading:
    """The spans of a passage that fits into one window."""
    return best_spans([window(0, len(tokens.ids))], [(start, end)], tokens, text, **{"max_answer_tokens": 8, **options})


def tried_all(start: np.ndarray, end: np.ndarray, tokens: int, longest: int) -> list[tuple[float, int, int]]:
    """The score minus the null score of every span, and its first and last token; best first."""
    null = start[0] + end[0]
    pairs = ((i, j) for i, j in itertools.product(range(tokens), repeat=2) if i <= j < i + longest)
    return sorted(((float(start[START + i] + end[START + j] - null), i, j) for i, j in pairs), reverse=True)


@settings(deadline=None)
@given(SEEDS, st.integers(1, 25), st.integers(1, 12), st.integers(1, 60), st.integers(0, 9))
def test_n_best_are_those_of_an_exhaustive_search(seed: int, count: int, longest: int, n_best: int, pad: int) -> None:
    rng = np.random.default_rng(seed)
    start, end = tempting(rng, count, pad), tempting(rng, count, pad)
    tokens, text = words(count)
    reading = read(start, end, tokens, text, max_answer_tokens=longest, n_best=n_best)
    expected = tried_all(start, end, count, longest)[:n_best]
    assert [(span.start, span.end) for span in reading.spans] == [(i * 4, j * 4 + 3) for _, i, j in expected]
    assert reading.null_logit == pytest.approx(start[0] + end[0], abs=1e-5)
    for span, (score, _, _) in zip(reading.spans, expected, strict=True):
        assert span.score == pytest.approx(score, abs=1e-4)
        assert span.logit == pytest.approx(score + reading.null_logit, abs=1e-4)


@settings(deadline=None)
@given(SEEDS, st.integers(1, 25), st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(0, 30), max_size=3))
def test_each_disjoint_span_is_the_best_without_overlap_with_better_spans(
    seed: int, count: int, longest: int, n_best: int, breaks: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    start, end = tempting(rng, count), tempting(rng, count)
    tokens, text = words(count)
    options = {"max_answer_tokens": longest, "overlapping": False, "breaks": breaks}
    spans = read(start, end, tokens, text, n_best=n_best, **options).spans
    left = [span for span in tried_all(start, end, count, longest) if not any(span[1] < b <= span[2] for b in breaks)]
    expected = []
    while left and len(expected) < n_best:
        _, first, last = best = left[0]
        expected.append(best)
        left = [span for span in left if span[2] < first or span[1] > last]
    assert [(span.start, span.end) for span in spans] == [(i * 4, j * 4 + 3) for _, i, j in expected]


def in_windows(
    rng: np.random.Generator, text: str, size: int, step: int
) -> tuple[list[Window], list[tuple[np.ndarray, np.ndarray]], TextTokens]:
    tokens = small_tokenizer().encode_text(text)
    firsts = range(0, max(len(tokens.ids), 1), step)
    windows = [window(first, min(size, len(tokens.ids) - first)) for first in firsts]
    return windows, [(tempting(rng, each.tokens), tempting(rng, each.tokens)) for each in windows], tokens


@settings(deadline=None)
@given(texts(), SEEDS, st.booleans(), st.integers(2, 12))
def test_offsets_of_answers_are_right_in_any_script(text: str, seed: int, overlapping: bool, size: int) -> None:
    windows, logits, tokens = in_windows(np.random.default_rng(seed), text, size, max(1, size - 2))
    reading = best_spans(windows, logits, tokens, text, max_answer_tokens=8, n_best=4, overlapping=overlapping)
    scores = [span.score for span in reading.spans]
    assert scores == sorted(scores, reverse=True)
    assert len({(span.start, span.end) for span in reading.spans}) == len(reading.spans)
    for span in reading.spans:
        answer = text[span.start : span.end]
        assert 0 <= span.start < span.end <= len(text)
        assert answer == answer.strip() != ""
    if not overlapping:
        ordered = sorted((span.start, span.end) for span in reading.spans)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(ordered))


def quiet(tokens: int, null: float) -> np.ndarray:
    values = np.full(START + tokens + 1, -9.0, dtype=np.float32)
    values[0] = null / 2
    return values


def with_span(tokens: int, null: float, at: tuple[int, int], logit: float) -> tuple[np.ndarray, np.ndarray]:
    start, end = quiet(tokens, null), quiet(tokens, null)
    start[START + at[0]] = end[START + at[1]] = logit / 2
    return start, end


def test_a_span_that_cannot_answer_is_replaced_by_spans_around_it_and_next_to_it() -> None:
    text = "cat on mat . dog"
    tokens = small_tokenizer().encode_text(text)
    start, end = (quiet(len(tokens.ids), 0) for _ in range(2))
    start[START + 1] = 6
    end[START + 1 : START + 3] = 6, 4
    options = {"max_answer_tokens": 8, "n_best": 2}
    anything = read(start, end, tokens, text, **options)
    assert text[anything.spans[0].start : anything.spans[0].end] == "on"
    apart = read(start, end, tokens, text, overlapping=False, **options)
    assert [text[span.start : span.end] for span in apart.spans] == ["on mat", "cat"]
    assert apart.spans[0].score == 10


def test_spans_of_all_windows_are_on_one_scale_each_over_its_own_null() -> None:
    tokens, text = words(20)
    windows = [window(0, 8), window(6, 8), window(12, 8)]
    # The second window has a higher null score, so its higher logit counts less.
    logits = [with_span(8, 0, (1, 1), 4), with_span(8, 6, (4, 5), 7), with_span(8, -2, (7, 7), 1)]
    reading = best_spans(windows, logits, tokens, text, max_answer_tokens=4, n_best=3, overlapping=False)
    assert [(span.start // 4, span.score, span.logit) for span in reading.spans] == [(1, 4, 4), (19, 3, 1), (10, 1, 7)]
    # the lowest null score, as in SQuAD 2: one window that may have an answer is enough
    assert reading.null_logit == -2


@pytest.mark.parametrize("overlapping", [True, False])
def test_a_span_in_two_windows_has_its_better_score(overlapping: bool) -> None:
    tokens, text = words(14)
    windows = [window(0, 8), window(6, 8)]
    logits = [with_span(8, 0, (6, 7), 3), with_span(8, 1, (0, 1), 6)]
    spans = best_spans(windows, logits, tokens, text, max_answer_tokens=2, n_best=2, overlapping=overlapping).spans
    assert spans[0] == AnswerSpan(24, 31, 5.0, 6.0)
    assert (spans[1].start, spans[1].end) != (24, 31)


def test_no_answer_crosses_the_end_of_a_sentence() -> None:
    tokens, text = words(6)
    start, end = with_span(6, 0, (1, 4), 8)
    assert read(start, end, tokens, text).spans[0].end == 4 * 4 + 3
    for breaks in ([3], [2, 4]):
        for overlapping in (True, False):
            for span in read(start, end, tokens, text, n_best=9, overlapping=overlapping, breaks=breaks).spans:
                assert not any(span.start < at * 4 < span.end for at in breaks)


def test_a_break_is_a_token_of_the_passage_in_every_window() -> None:
    tokens, text = words(12)
    logits = [with_span(6, 0, (1, 1), 1), with_span(6, 0, (1, 4), 8)]
    free = best_spans([window(0, 6), window(6, 6)], logits, tokens, text, max_answer_tokens=8)
    assert (free.spans[0].start, free.spans[0].end) == (28, 43)
    held = best_spans([window(0, 6), window(6, 6)], logits, tokens, text, max_answer_tokens=8, breaks=[9])
    assert held.spans[0].end <= 9 * 4 or held.spans[0].start >= 9 * 4


@pytest.mark.parametrize("overlapping", [True, False])
def test_no_completed_word_crosses_the_end_of_a_sentence(overlapping: bool) -> None:
    """The splitter cuts a text without white space into sentences anywhere."""
    text = "aaabbbccc"
    starts = np.array([0, 3, 6], dtype=np.int32)
    tokens = TextTokens(np.zeros(3, dtype=np.int32), starts, starts + 3)
    start, end = with_span(3, 0, (1, 1), 9)
    options = {"overlapping": overlapping, "n_best": 3}
    assert {(span.start, span.end) for span in read(start, end, tokens, text, **options).spans} == {(0, 9)}
    for breaks, expected in (([1, 2], (3, 6)), ([1], (3, 9)), ([2], (0, 6)), ([2, 3], (0, 6))):
        found = read(start, end, tokens, text, breaks=breaks, **options).spans
        assert (found[0].start, found[0].end) == expected
        assert not any(span.start < at * 3 < span.end for span in found for at in breaks)


def test_a_piece_becomes_the_whole_word_and_spans_are_distinct() -> None:
    sentence = "unhappiness cat"
    tokens = small_tokenizer().encode_text(sentence)
    assert len(tokens.ids) == 4
    begin = np.array([0, 0, 0, 0, 1, 9, 2, 0, 0], dtype=np.float32)
    reading = read(begin, begin, tokens, sentence, n_best=5)
    assert (reading.spans[0].start, reading.spans[0].end) == (0, 11)
    assert {(span.start, span.end) for span in reading.spans} == {(0, 11), (0, 15), (12, 15)}
    apart = read(begin, begin, tokens, sentence, n_best=5, overlapping=False)
    assert [(span.start, span.end) for span in apart.spans] == [(0, 11), (12, 15)]


@pytest.mark.parametrize("overlapping", [True, False])
def test_many_pieces_of_one_word_do_not_hide_the_other_words(overlapping: bool) -> None:
    text = "abcdefghijklmnopqrstuvwxyz sat"
    tokens = small_tokenizer().encode_text(text)
    row = np.concatenate([np.zeros(START), np.linspace(9, 8, len(tokens.ids) - 1), [1, 0]])
    found = read(row, row, tokens, text, n_best=3, overlapping=overlapping).spans
    expected = {(0, 26), (27, 30), (0, 30)} if overlapping else {(0, 26), (27, 30)}
    assert {(span.start, span.end) for span in found} == expected


NOTHING = TextTokens(*(np.zeros(0, dtype=np.int32) for _ in range(3)))


@pytest.mark.parametrize("overlapping", [True, False])
def test_a_passage_without_tokens_or_windows_has_no_span(overlapping: bool) -> None:
    ones = np.ones(START + 1)
    assert best_spans([window(0, 0)], [(ones, ones)], NOTHING, "", max_answer_tokens=8).spans == []
    assert best_spans([], [], NOTHING, "", max_answer_tokens=8, overlapping=overlapping) == Reading([], 0.0)


@pytest.mark.parametrize("overlapping", [True, False])
@pytest.mark.parametrize("n_best", [1, 3])
def test_tokens_that_cover_nothing_or_only_white_space_are_no_answer(overlapping: bool, n_best: int) -> None:
    starts, ends = np.array([0, 0, 2, 3], dtype=np.int32), np.array([2, 0, 3, 5], dtype=np.int32)
    tokens = TextTokens(np.zeros(4, dtype=np.int32), starts, ends)
    start, end = with_span(4, 0, (1, 1), 9)
    start[START + 2] = end[START + 2] = 4  # high logits for the white space
    reading = read(start, end, tokens, "ab cd", n_best=n_best, overlapping=overlapping)
    assert reading.spans
    assert reading.spans[0].logit < 0  # "cd": no answer starts or ends at a token with high logits
    assert all("ab cd"[span.start : span.end] in ("ab", "cd", "ab cd") for span in reading.spans)
    empty = TextTokens(np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int32))
    assert read(np.ones(7), np.ones(7), empty, "ab", n_best=n_best, overlapping=overlapping).spans == []


@pytest.mark.parametrize("at", [0, START, START + 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"n_best": 3}, {"n_best": 3, "overlapping": False}])
def test_logits_that_are_not_numbers_are_an_error(at: int, value: float, options: dict[str, Any]) -> None:
    tokens, text = words(5)
    start = quiet(5, 0)
    start[at] = value
    with pytest.raises(InferenceFailed, match="not"):
        read(start, quiet(5, 0), tokens, text, **options)


def test_logits_may_be_of_any_shape_and_type_that_holds_a_row() -> None:
    tokens, text = words(5)
    start, end = with_span(5, 0, (1, 2), 6)
    expected = read(start, end, tokens, text)
    forms: Sequence[tuple[Any, Any]] = [
        (start.tolist(), end.tolist()),
        (start[None, :], end[None, :]),
        (start.astype(np.float16), end.astype(np.float64)),
    ]
    assert all(read(*form, tokens, text) == expected for form in forms)


def test_the_inputs_are_not_changed() -> None:
    tokens, text = words(5)
    start, end = with_span(5, 0, (1, 2), 6)
    arrays = (start, end, tokens.ids, tokens.starts, tokens.ends)
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    for overlapping in (True, False):
        read(start, end, tokens, text, n_best=4, overlapping=overlapping, breaks=[3])
    assert all((array == old).all() for array, old in zip(arrays, before, strict=True))


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    count = 4096
    tokens, text = words(count)
    rng = np.random.default_rng(1)
    start, end = tempting(rng, count), tempting(rng, count)
    for options in ({"n_best": 3, "overlapping": False}, {"n_best": 20}):
        tracemalloc.start()
        try:
            read(start, end, tokens, text, max_answer_tokens=30, **options)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < count * 30 * 4 * 6 < count * count
