"""The choice of spans on logits made by hand: the highest logits are at positions that misled an earlier reader.

Each test is a fault of an earlier reader, which its docstring names.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qa_cluster.reading.spans import Reading, best_spans
from qa_cluster.reading.tokenization import TextTokens
from qa_cluster.reading.windows import Window
from tests.unit.small_tokenizer import small_tokenizer

TEXT = "Élan, the Cat, sat ON the mat. The dog is un-happy!"
PASSAGE_START = 6  # [CLS], four tokens of the question, [SEP]
LOW = -5.0

Marks = dict[int, float]


def tokens_of(text: str) -> TextTokens:
    return small_tokenizer().encode_text(text)


def logits(tokens: int, marks: Marks) -> np.ndarray:
    """Low logits except at `marks`: negative positions are before the passage, those from `tokens` on after it."""
    row = np.full(PASSAGE_START + tokens + 4, LOW, dtype=np.float32)
    for position, value in marks.items():
        row[PASSAGE_START + position] = value
    return row


def window(tokens: int, first: int = 0) -> Window:
    return Window(np.zeros(PASSAGE_START + tokens + 1, dtype=np.int64), PASSAGE_START, first, tokens)


def read(text: str, start: Marks, end: Marks, **options: Any) -> Reading:
    tokens = tokens_of(text)
    count = len(tokens.ids)
    pair = logits(count, start), logits(count, end)
    return best_spans([window(count)], [pair], tokens, text, **{"max_answer_tokens": 8, **options})


def words(text: str) -> list[str]:
    tokens = tokens_of(text)
    return [text[start:end] for start, end in zip(tokens.starts, tokens.ends, strict=True)]


def answers(text: str, reading: Reading) -> list[str]:
    return [text[span.start : span.end] for span in reading.spans]


CLS = -PASSAGE_START
THE, CAT, MAT = (words(TEXT).index(word) for word in ("the", "Cat", "mat"))


def test_the_question_is_not_echoed() -> None:
    """the-pattern: argmax also ran over the question's tokens; its README expects the question as the answer."""
    found = read(TEXT, {CLS + 1: 9, THE: 1}, {CLS + 4: 9, CAT: 1})
    assert answers(TEXT, found) == ["the Cat"]


def test_start_and_end_are_chosen_together() -> None:
    """the-pattern: independent argmax of start and end gave empty spans where the end came first."""
    found = read(TEXT, {MAT: 9, THE: 8}, {CAT: 9})
    assert answers(TEXT, found) == ["the Cat"]


def test_an_end_before_the_start_is_no_answer_turned_round() -> None:
    """DJL: it swapped start and end when the end came first, and returned a span that the model had not chosen."""
    found = read(TEXT, {MAT: 9, CAT: 3}, {CAT: 9, MAT: 2})
    # the two best valid spans: "Cat" (3 + 9), "mat" (9 + 2); "Cat, sat ON the mat" (3 + 2) is what swapping answers
    assert answers(TEXT, found) == ["Cat"]


def test_a_start_at_the_null_position_is_a_low_score_and_no_crash() -> None:
    """txtai: a start on [CLS] made `word_to_chars(None, 1)` raise before it checked the score."""
    found = read(TEXT, {CLS: 9}, {CLS: 9})
    assert found.null_logit == 18
    assert all(span.score < 0 for span in found.spans)


def test_a_start_in_the_question_is_not_a_word_of_the_context() -> None:
    """txtai: it took a start inside the question for the number of a word of the context."""
    found = read(TEXT, {CLS + 2: 9, 5: 1}, {CLS + 2: 9, 5: 1})
    assert answers(TEXT, found) == [words(TEXT)[5]]


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_separator_and_padding_are_in_no_answer(behind: int) -> None:
    """DJL #2607: `[SEP]` in the answer."""
    count = len(words(TEXT))
    found = read(TEXT, {count - 2: 2, count + behind: 9}, {count - 1: 1, count + behind: 9}, n_best=5)
    assert answers(TEXT, found)
    assert all(0 <= span.start < span.end <= len(TEXT) for span in found.spans)
    assert "SEP" not in "".join(answers(TEXT, found))


def test_the_answer_is_the_text_as_it_was_written() -> None:
    """the-pattern, DJL: they rebuilt answers from tokens: lower case, without accents, with spaces at "-"."""
    count = len(words(TEXT))
    found = read(TEXT, {0: 5}, {CAT + 1: 5})
    assert answers(TEXT, found) == ["Élan, the Cat,"]
    assert answers(TEXT, read(TEXT, {count - 4: 5}, {count - 1: 5}))[0].endswith("un-happy!")


@pytest.mark.parametrize("overlapping", [True, False])
def test_more_answers_asked_for_than_there_are_spans(overlapping: bool) -> None:
    """Haystack: it failed when asked for more answers than valid spans; spans came twice or as -inf."""
    found = read("dog cat", {}, {}, n_best=1000, overlapping=overlapping)
    assert sorted(answers("dog cat", found)) == (["cat", "dog", "dog cat"] if overlapping else ["cat", "dog"])
    assert all(np.isfinite(span.score) for span in found.spans)


def test_scores_do_not_depend_on_what_else_a_text_holds() -> None:
    """Haystack #739, #1220: scores were shares within a document, so the best span of any document was high."""
    rich = read("the cat", {0: 6, 1: 5}, {0: 6, 1: 5})
    poor = read("the dog", {0: 0.5}, {0: 0.5})
    alone = read("the", {0: 6}, {0: 6})
    assert rich.spans[0].score == alone.spans[0].score > poor.spans[0].score


def test_null_is_the_least_of_all_windows() -> None:
    """transformers #14311, #5910: with several windows the null score was that of the last, or of the answer's own."""
    tokens, count = tokens_of("the cat"), 2
    pairs = [(logits(count, {CLS: null}), logits(count, {CLS: 0})) for null in (3.0, -4.0, 7.0)]
    reading = best_spans([window(count)] * 3, pairs, tokens, "the cat", max_answer_tokens=4)
    assert reading.null_logit == -4


def test_answers_are_not_longer_than_the_manifest_allows() -> None:
    """Haystack: it had no longest answer; whole paragraphs were answers."""
    text = "the cat " * 40
    found = read(text, {0: 9}, {60: 9, 3: 1}, max_answer_tokens=5)
    assert answers(text, found) == ["the cat the cat"]


def test_what_is_read_is_not_changed() -> None:
    """Haystack: readers wrote into their input documents and logits."""
    tokens, count = tokens_of(TEXT), len(words(TEXT))
    start, end = logits(count, {2: 5}), logits(count, {4: 5})
    arrays: Sequence[np.ndarray] = (start, end, tokens.ids, tokens.starts, tokens.ends)
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    for overlapping in (True, False):
        best_spans(
            [window(count)],
            [(start, end)],
            tokens,
            TEXT,
            max_answer_tokens=8,
            n_best=4,
            overlapping=overlapping,
            breaks=[3],
        )
    assert all((array == old).all() for array, old in zip(arrays, before, strict=True))


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    """Haystack: it made a score tensor of batch x length x length."""
    count = 4096
    starts = np.arange(count, dtype=np.int32) * 2
    tokens = TextTokens(starts, starts, starts + 1)
    rng = np.random.default_rng(1)
    pair = [rng.normal(size=PASSAGE_START + count + 1).astype(np.float32) for _ in range(2)]
    for options in ({"n_best": 3, "overlapping": False}, {"n_best": 20}):
        tracemalloc.start()
        try:
            best_spans([window(count)], [(pair[0], pair[1])], tokens, "x " * count, max_answer_tokens=30, **options)  # type: ignore[arg-type]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < count * 30 * 4 * 6 < count * count
