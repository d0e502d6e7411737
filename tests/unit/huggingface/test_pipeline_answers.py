"""Windows and decoding of the pipeline, on logits made by hand. `tests/parity` compares whole answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qa_cluster.errors import InputTooLong, InvalidInput, ModelError
from qa_cluster.huggingface.answers import Answers, Prepared, Preparer
from qa_cluster.huggingface.parameters import Parameters
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.windows import TextPairEncoder
from tests.unit.small_tokenizer import small_tokenizer
from tests.unit.text_strategies import texts

CONTEXT = "the unhappiness of cats is on the mat"


@pytest.fixture
def preparer(manifest: Manifest) -> Preparer:
    return Preparer(small_tokenizer(), replace(manifest, max_tokens=128))


def decoded(prepared: Prepared, parameters: Parameters, *rows: list[tuple[int, float, float]]) -> object:
    """The result for windows with these rows of (position, start logit, end logit), and -20 elsewhere."""
    answers = Answers(prepared, parameters)
    for window, row in zip(prepared.windows, rows, strict=True):
        starts = np.full(len(window.input_ids), -20.0)
        ends = starts.copy()
        for position, start, end in row:
            starts[position], ends[position] = start, end
        answers.add(window, starts, ends)
    return answers.result()


def test_no_answer_has_the_least_score_of_all_windows(preparer: Preparer) -> None:
    parameters = Parameters.of({"max_seq_len": 16, "doc_stride": 2, "handle_impossible_answer": True, "top_k": 50})
    prepared = preparer.prepare("who is it", CONTEXT, parameters)
    first, _, *rest = prepared.windows
    at = first.passage_start
    sure, unsure = [(0, 5.0, 5.0), (at, -5.0, -5.0)], [(0, -5.0, -5.0), (at, 5.0, 5.0)]
    result = decoded(prepared, parameters, sure, unsure, *[sure for _ in rest])
    assert isinstance(result, list)
    nothing = [answer for answer in result if answer["answer"] == ""]
    assert len(nothing) == 1
    assert nothing[0]["score"] < 1e-6
    assert (nothing[0]["start"], nothing[0]["end"]) == (0, 0)


def test_the_question_is_never_an_answer(preparer: Preparer) -> None:
    """The project the-pattern took the best position of the whole input and returned the question."""
    prepared = preparer.prepare("who is it", CONTEXT, Parameters())
    at = prepared.windows[0].passage_start
    result = decoded(prepared, Parameters(), [(1, 50.0, 50.0), (3, 50.0, 50.0), (at, 1.0, 1.0)])
    assert isinstance(result, dict)
    assert (result["answer"], result["start"]) == ("the", 0)


def test_an_answer_never_ends_before_it_begins(preparer: Preparer) -> None:
    """DJL swapped start and end."""
    prepared = preparer.prepare("who is it", CONTEXT, Parameters())
    at = prepared.windows[0].passage_start
    last = at + prepared.windows[0].tokens - 1
    result = decoded(prepared, Parameters(), [(last, 9.0, 2.0), (at, 2.0, 9.0)])
    assert isinstance(result, dict)
    assert (result["answer"], result["start"]) in [("mat", 34), ("the", 0)]


@pytest.mark.parametrize(("align", "answer"), [(True, "unhappiness"), (False, "ness")])
def test_answers_are_whole_words_unless_asked_otherwise(preparer: Preparer, align: bool, answer: str) -> None:
    parameters = Parameters.of({"align_to_words": align})
    prepared = preparer.prepare("who is it", CONTEXT, parameters)
    words = prepared.context.words.tolist()
    piece = prepared.windows[0].passage_start + len(words) - 1 - words[::-1].index(1)
    result = decoded(prepared, parameters, [(piece, 9.0, 9.0)])
    assert isinstance(result, dict)
    assert result["answer"] == answer


def test_equal_texts_are_one_answer_whose_scores_add_up(preparer: Preparer) -> None:
    parameters = Parameters.of({"max_seq_len": 12, "doc_stride": 0})
    prepared = preparer.prepare("who", "cat cat cat cat cat cat cat CAT " * 3, parameters)
    at = prepared.windows[0].passage_start
    result = decoded(prepared, parameters, *[[(at, 9.0, 9.0)] for _ in prepared.windows])
    assert isinstance(result, dict)
    assert (result["start"], result["end"]) == (0, 3)
    assert result["score"] == pytest.approx(len(prepared.windows), abs=1e-3)


def test_answers_of_one_token(preparer: Preparer) -> None:
    parameters = Parameters.of({"max_answer_len": 1, "top_k": 30, "align_to_words": False})
    prepared = preparer.prepare("who is it", CONTEXT, parameters)
    tokens = len(prepared.context.tokens.ids)
    rng = np.random.default_rng(3)
    answers = Answers(prepared, parameters)
    length = len(prepared.windows[0].input_ids)
    answers.add(prepared.windows[0], rng.normal(size=length), rng.normal(size=length))
    result = answers.result()
    assert isinstance(result, list)
    assert len(result) <= tokens
    assert {answer["answer"] for answer in result} == {
        CONTEXT[start:end]
        for start, end in zip(prepared.context.tokens.starts, prepared.context.tokens.ends, strict=True)
    }


@pytest.mark.parametrize("stride", [0, 1, 5, 9])
@pytest.mark.parametrize("words", [1, 11, 12, 13, 40, 41])
def test_windows_cover_the_context_with_the_requested_overlap(preparer: Preparer, stride: int, words: int) -> None:
    parameters = Parameters.of({"max_seq_len": 16, "doc_stride": stride})
    prepared = preparer.prepare("who", "cat " * words, parameters)
    room = 16 - 1 - 3
    places = [(window.first, window.first + window.tokens) for window in prepared.windows]
    assert places[0] == (0, min(room, words)) and places[-1][1] == words
    for (_, end), (start, after) in pairwise(places):
        assert end - start == stride and after > end
    assert all(len(window.input_ids) <= 16 for window in prepared.windows)


def test_too_many_windows_are_refused_before_they_are_made(preparer: Preparer) -> None:
    parameters = Parameters.of({"max_seq_len": 16, "doc_stride": 11})
    with pytest.raises(InputTooLong, match="takes 89 windows, the limit is 20"):
        preparer.prepare("who", "cat " * 100, parameters, max_windows=20)


def test_logits_that_do_not_fit_are_an_error(preparer: Preparer) -> None:
    prepared = preparer.prepare("who is it", CONTEXT, Parameters())
    (window,) = prepared.windows
    length = len(window.input_ids)
    with pytest.raises(ModelError, match=f"gave 5 logits for {length} tokens"):
        Answers(prepared, Parameters()).add(window, np.zeros(5), np.zeros(5))
    with pytest.raises(ModelError, match="not finite"):
        Answers(prepared, Parameters()).add(window, np.zeros(length), np.full(length, np.inf))


@given(texts(), st.integers(1, 6), st.booleans(), st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_slices_of_the_context_best_first(
    encoder: TextPairEncoder, text: str, top_k: int, align: bool, seed: int
) -> None:
    parameters = Parameters(top_k=top_k, align_to_words=align, max_seq_len=40, doc_stride=7)
    prepared = Preparer(encoder.tokenizer, encoder.pairs.manifest).prepare("who?", text, parameters)
    answers = Answers(prepared, parameters)
    rng = np.random.default_rng(seed)
    for window in prepared.windows:
        answers.add(window, *rng.normal(scale=4, size=(2, len(window.input_ids) + 3)))
    found = answers.result()
    listed = found if isinstance(found, list) else [found]
    assert 1 <= len(listed) <= top_k
    assert all(text[int(one["start"]) : int(one["end"])] == one["answer"] for one in listed)
    scores = [float(one["score"]) for one in listed]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 0


def test_errors_of_parameters_name_the_fault() -> None:
    for values, said in [
        ({"top_k": True}, "top_k must be an integer, got True"),
        ({"top_k": "3"}, "top_k must be an integer, got '3'"),
        ({"align_to_words": 2}, "align_to_words must be true or false, got 2"),
        ({"max_seq_len": 0}, "max_seq_len must be from 1"),
        ({"stride": 1}, "unknown parameter 'stride'"),
    ]:
        with pytest.raises(InvalidInput) as error:
            Parameters.of(values)
        assert said in str(error.value)
    assert Parameters.of({"top_k": None, "align_to_words": np.bool_(False)}) == Parameters(align_to_words=False)
    assert Parameters.of({"doc_stride": 0}, default=Parameters(top_k=4)).to_dict() == {"top_k": 4, "doc_stride": 0}
