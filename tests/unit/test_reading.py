"""Spans decoded from logits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.reading import best_spans, whole_words
from qa_cluster.sentences import split_sentences

from .small_tokenizer import small_tokenizer
from .text_strategies import texts

SENTENCE_START = 4


def offsets_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.arange(count, dtype=np.int32) * 4
    return starts, starts + 3


def logits(rng: np.random.Generator, tokens: int, padding: int) -> np.ndarray:
    # What is outside the sentence is tempting on purpose.
    values = rng.normal(size=SENTENCE_START + tokens + 1 + padding).astype(np.float32)
    values[1:SENTENCE_START] += 50
    values[SENTENCE_START + tokens :] += 50
    return values


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 12), st.integers(0, 9))
def test_the_best_span_is_that_of_trying_all(seed: int, tokens: int, longest: int, padding: int) -> None:
    rng = np.random.default_rng(seed)
    begin, finish = logits(rng, tokens, padding), logits(rng, tokens, padding)
    pairs = ((i, j) for i, j in itertools.product(range(tokens), repeat=2) if i <= j < i + longest)
    expected = max(pairs, key=lambda pair: begin[SENTENCE_START + pair[0]] + finish[SENTENCE_START + pair[1]])
    text = "abc " * tokens
    reading = best_spans(
        begin, finish, offsets_of(tokens), text, sentence_start=SENTENCE_START, max_answer_tokens=longest
    )
    span = reading.spans[0]
    assert (span.start, span.end) == (expected[0] * 4, expected[1] * 4 + 3)
    assert reading.null_logit == pytest.approx(begin[0] + finish[0], abs=1e-5)
    assert span.score == pytest.approx(span.logit - reading.null_logit, abs=1e-4)


@settings(deadline=None)
@given(texts(), st.integers(0, 1000))
def test_the_answer_is_where_it_says_in_the_document(document: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for start, end in split_sentences(document):
        sentence = document[start:end]
        tokens = small_tokenizer().encode_text(sentence)
        count = len(tokens.ids)
        reading = best_spans(
            logits(rng, count, 0),
            logits(rng, count, 0),
            (tokens.starts, tokens.ends),
            sentence,
            sentence_start=SENTENCE_START,
            max_answer_tokens=8,
            n_best=3,
        )
        assert len({(span.start, span.end) for span in reading.spans}) == len(reading.spans)
        assert [span.logit for span in reading.spans] == sorted((span.logit for span in reading.spans), reverse=True)
        for span in reading.spans:
            answer = sentence[span.start : span.end]
            assert 0 <= span.start < span.end <= len(sentence)
            assert document[start + span.start : start + span.end] == answer == answer.strip()


def test_a_piece_becomes_the_whole_word_and_spans_are_distinct() -> None:
    sentence = "unhappiness is"
    tokens = small_tokenizer().encode_text(sentence)
    assert len(tokens.ids) == 4
    begin = np.array([0, 0, 0, 0, 1, 9, 2, 0, 0], dtype=np.float32)
    reading = best_spans(
        begin, begin, (tokens.starts, tokens.ends), sentence, sentence_start=4, max_answer_tokens=8, n_best=5
    )
    assert (reading.spans[0].start, reading.spans[0].end) == (0, 11)
    assert {(span.start, span.end) for span in reading.spans} == {(0, 11), (0, 14), (12, 14)}


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("unhappiness rules", (2, 5), "unhappiness"),
        ("a 東京都 b", (3, 4), "京"),
        ("in 1998, then", (4, 6), "1998"),
        (" x ", (0, 3), "x"),
        ("well-known", (0, 3), "well"),
        ("   ", (0, 3), ""),
    ],
)
def test_whole_words(text: str, span: tuple[int, int], expected: str) -> None:
    start, end = whole_words(text, *span)
    assert text[start:end] == expected


def test_a_sentence_without_tokens_has_no_span() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    reading = best_spans(np.ones(5), np.ones(5), (nothing, nothing), "", sentence_start=4, max_answer_tokens=8)
    assert (reading.spans, reading.null_logit) == ([], 2.0)


def test_tokens_that_cover_nothing_are_no_answer() -> None:
    empty = np.zeros(2, dtype=np.int32)
    reading = best_spans(np.ones(7), np.ones(7), (empty, empty), "ab", sentence_start=4, max_answer_tokens=8)
    assert reading.spans == []
