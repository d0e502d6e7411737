"""The choice of neighbours of a sentence, and the passage that they form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.documents.sentences import split_sentences
from qa_cluster.reading.passages import MAX_GAP, MAX_NEIGHBOURS, PassageSentence, ReadingPassage, around, reach
from qa_cluster.reading.spans import best_spans
from qa_cluster.reading.tokenization import TextTokens
from qa_cluster.reading.windows import Window
from tests.unit.small_tokenizer import small_tokenizer
from tests.unit.text_strategies import texts

COUNTS = st.lists(st.integers(0, 30), max_size=24)


@pytest.mark.parametrize(
    ("own", "left", "right", "budget", "expected"),
    [
        (10, [10, 10], [10, 10], 9, (0, 0)),  # a sentence over the budget is alone
        (10, [10, 10], [10, 10], 10, (0, 0)),
        (10, [10, 10], [10, 10], 20, (1, 0)),  # the previous sentence comes first
        (10, [10, 10], [10, 10], 30, (1, 1)),
        (10, [10, 10], [10, 10], 40, (2, 1)),
        (10, [50, 1], [10, 10], 40, (0, 2)),  # a side ends at the first sentence that does not fit
        (10, [], [10, 10, 10], 40, (0, 3)),
        (10, [10], [], 40, (1, 0)),
        (10, [], [], 40, (0, 0)),
        (1, [1] * 99, [1] * 99, 400, (MAX_NEIGHBOURS, MAX_NEIGHBOURS)),
    ],
)
def test_neighbours_alternate_while_they_fit(
    own: int, left: list[int], right: list[int], budget: int, expected: tuple[int, int]
) -> None:
    assert reach(own, left, right, budget) == expected


@given(st.integers(0, 40), COUNTS, COUNTS, st.integers(1, 200))
def test_the_budget_holds_and_is_used(own: int, left: list[int], right: list[int], budget: int) -> None:
    before, after = reach(own, left, right, budget)
    used = own + sum(left[:before]) + sum(right[:after])
    assert used <= budget or (before, after) == (0, 0)
    if own <= budget:
        for side, taken in ((left, before), (right, after)):
            assert taken in (len(side), MAX_NEIGHBOURS) or used + side[taken] > budget


def parts_of(document: str) -> list[PassageSentence]:
    return [
        PassageSentence(document[start:end], start, small_tokenizer().encode_text(document[start:end]))
        for start, end in split_sentences(document)
    ]


def drawn(parts: list[PassageSentence], budget: int, data: st.DataObject) -> tuple[ReadingPassage, int]:
    """The passage of any of the sentences, and the number of this sentence."""
    index = data.draw(st.integers(0, len(parts) - 1))
    return around(parts[index], parts[:index][::-1], parts[index + 1 :], index=index, budget=budget), index


@settings(deadline=None)
@given(texts(20), st.integers(0, 200), st.data())
def test_passages_equal_the_document_except_for_the_kind_of_white_space(
    document: str, budget: int, data: st.DataObject
) -> None:
    parts = parts_of(document)
    if not parts:
        return
    passage, index = drawn(parts, budget, data)
    original = document[passage.start : passage.start + len(passage.text)]
    assert [
        left for left in zip(passage.text, original, strict=True) if left[0] != left[1] and not left[1].isspace()
    ] == []
    assert passage.first <= index <= passage.first + len(passage.breaks)
    own = passage.begins[index - passage.first]
    assert (passage.start + own, passage.text[own : own + len(parts[index].text)]) == (
        parts[index].start,
        parts[index].text,
    )
    tokens = passage.tokens
    assert len(tokens.ids) == len(tokens.starts) == len(tokens.ends)
    assert len(tokens.ids) <= max(budget, len(parts[index].tokens.ids))
    for token, (start, end) in enumerate(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)):
        assert document[passage.start + start : passage.start + end] == passage.text[start:end]
        # the number of breaks up to a token shows the token's sentence
        number = passage.first + sum(token >= at for at in passage.breaks)
        assert parts[number].start <= passage.start + start <= parts[number].start + len(parts[number].text)
        if start < end:
            assert passage.sentence_of(start) == number


@settings(deadline=None)
@given(texts(20), st.integers(1, 200), st.integers(0, 10_000), st.data())
def test_answers_of_passages_are_the_document_in_any_script(
    document: str, budget: int, seed: int, data: st.DataObject
) -> None:
    parts = parts_of(document)
    if not parts:
        return
    passage, _ = drawn(parts, budget, data)
    count = len(passage.tokens.ids)
    rng = np.random.default_rng(seed)
    row = rng.normal(size=(2, count + 2)).astype(np.float32)
    reading = best_spans(
        [Window(np.zeros(count + 2), 1, 0, count)],
        [(row[0], row[1])],
        passage.tokens,
        passage.text,
        max_answer_tokens=12,
        n_best=3,
        overlapping=False,
        breaks=passage.breaks,
    )
    for span in reading.spans:
        start, end = passage.start + span.start, passage.start + span.end
        assert document[start:end] == passage.text[span.start : span.end] != ""


def test_the_tokens_of_a_single_sentence_are_not_copied() -> None:
    part = parts_of("The cat sat on the mat.")[0]
    passage = around(part, [], [], index=3, budget=0)
    assert passage.tokens is part.tokens
    assert (passage.text, passage.start, passage.first, passage.breaks) == (part.text, 0, 3, ())


def made(start: int, length: int = 4) -> PassageSentence:
    one = np.zeros(1, dtype=np.int32)
    return PassageSentence("x" * length, start, TextTokens(one, one, one + length))


@pytest.mark.parametrize(("start", "joined"), [(14 + MAX_GAP, True), (15 + MAX_GAP, False), (13, False), (0, False)])
def test_distant_sentences_do_not_join_the_passage(start: int, joined: bool) -> None:
    own, far = made(10), made(start)
    assert bool(around(own, [], [far], index=0, budget=100).breaks) is joined
    # the sentence after it joins only if this sentence joins
    assert len(around(own, [], [far, made(start + 4)], index=0, budget=100).breaks) == (2 if joined else 0)


def test_white_space_keeps_its_length() -> None:
    passage = around(made(10), [made(3)], [made(17)], index=5, budget=3)
    assert (passage.text, passage.start, passage.first) == ("xxxx" + "   " + "xxxx" + "   " + "xxxx", 3, 4)
    assert (passage.begins, passage.breaks) == ((0, 7, 14), (1, 2))
    assert [passage.sentence_of(at) for at in (0, 6, 7, 13, 14, 17)] == [4, 4, 5, 5, 6, 6]
