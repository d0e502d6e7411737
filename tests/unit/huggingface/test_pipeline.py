"""`qa_cluster.pipeline` returns what the pipeline of transformers returned, without transformers and torch.

A number is an issue of transformers, or of tokenizers if the text says so. Each issue is a fault of an earlier reader.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import ModelError
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from qa_cluster.reading.local_reader import LocalReader
from qa_cluster.reading.tokenization import ReaderTokenizer
from tests.unit.huggingface.pairs import ADA, FILLER, PAIR, WHEN, WHO


def test_an_answer_has_the_shape_of_transformers(ada: dict[str, Any]) -> None:
    assert list(ada) == ["score", "start", "end", "answer"]
    assert [type(value) for value in ada.values()] == [float, int, int, str]
    assert (ada["start"], ada["end"], ada["answer"]) == (0, 12, "Ada Lovelace")
    assert 0.5 < ada["score"] <= 1


def test_topk_still_works_and_warns(qa: QuestionAnsweringPipeline) -> None:
    with pytest.warns(UserWarning, match="topk is deprecated"):
        assert len(qa(**PAIR, topk=2)) == 2
    with pytest.warns(UserWarning, match="topk is deprecated"):
        assert len(qa(**PAIR, topk=2, top_k=3)) == 3


def test_best_answers_come_first_and_differ(qa: QuestionAnsweringPipeline) -> None:
    found = qa(**PAIR, top_k=5)  # 38984
    scores = [answer["score"] for answer in found]
    assert scores == sorted(scores, reverse=True)
    assert len({answer["answer"].lower() for answer in found}) == 5
    assert all(ADA[answer["start"] : answer["end"]] == answer["answer"] for answer in found)
    assert qa(**PAIR, top_k=np.int64(1)) == found[0]


def test_no_answer_is_an_empty_answer_on_request(qa: QuestionAnsweringPipeline) -> None:
    """14277, 14311, 18719, 5910: the pipeline raised an error, or never returned the empty answer."""
    question, context = "What is the capital of Belarus?", "It rained yesterday."
    found = qa(question=question, context=context, handle_impossible_answer=True)
    assert (found["answer"], found["start"], found["end"]) == ("", 0, 0)
    assert found["score"] > 0.5
    assert qa(question=question, context=context)["answer"] in context
    several = qa(question=[question, WHO], context=[context, ADA], handle_impossible_answer=True, top_k=2)
    assert [answers[0]["answer"] for answers in several] == ["", "Ada Lovelace"]


@pytest.mark.parametrize("context", [" ", "\n\t", "\u200b"])
def test_a_context_without_words_has_no_answer(qa: QuestionAnsweringPipeline, context: str) -> None:
    nothing = {"start": 0, "end": 0, "answer": ""}
    assert qa(question=WHO, context=context) == {"score": 0.0, **nothing}
    assert qa(question=WHO, context=context, handle_impossible_answer=True) == {"score": 1.0, **nothing}


@pytest.mark.parametrize("before", [0, 20, 45, 70])
def test_answers_are_found_anywhere_in_a_long_context(qa: QuestionAnsweringPipeline, before: int) -> None:
    """2615, 7528, 6144: the pipeline failed, or read only the start."""
    context = FILLER * before + ADA + " " + FILLER * (70 - before)
    found = qa([PAIR, {"question": WHO, "context": context}])
    assert [answer["answer"] for answer in found] == ["Ada Lovelace"] * 2
    assert found[1]["start"] == len(FILLER) * before


def test_windows_longer_than_the_model_reads_are_made_shorter(qa: QuestionAnsweringPipeline) -> None:
    """17241: with max_seq_len above the model's limit, long texts failed."""
    context = FILLER * 70 + ADA
    assert qa(question=WHO, context=context, max_seq_len=4096)["answer"] == "Ada Lovelace"
    assert qa(**PAIR, max_seq_len=4096)["answer"] == "Ada Lovelace"


def test_a_stride_that_leaves_no_progress_is_refused_or_made_shorter(qa: QuestionAnsweringPipeline) -> None:
    """tokenizers 944: the tokenizer panicked, with an exception that `except Exception` does not catch."""
    context = FILLER * 70 + ADA
    with pytest.raises(ValueError, match=r"doc_stride is 57, must be less than 56"):
        qa(question=WHO, context=context, max_seq_len=65, doc_stride=57)
    long_question = "Tell me please, if you can, " * 33 + WHO
    assert qa(question=long_question, context=context)["answer"] in context


def test_a_long_question_is_cut_only_on_request(qa: QuestionAnsweringPipeline) -> None:
    long_question = WHO + " Tell me please, if you can." * 12
    whole = qa(question=long_question, context=ADA)
    with pytest.warns(UserWarning, match="cut off after 6 tokens"):
        cut = qa(question=long_question, context=ADA, max_question_len=6)
    assert cut == qa(**PAIR)
    assert cut["score"] != whole["score"]


def test_the_context_of_many_questions_is_tokenized_once(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4748: tokenizing the context for every question took most of the time."""
    texts = []
    encode = ReaderTokenizer.encode_words
    monkeypatch.setattr(ReaderTokenizer, "encode_words", lambda self, text: texts.append(text) or encode(self, text))
    qa(question=[WHO, WHEN] * 10, context=ADA)
    assert texts == [ADA]


def test_threads_may_share_a_pipeline(qa: QuestionAnsweringPipeline) -> None:
    """tokenizers 537: "Already borrowed"."""
    pairs = [(WHO, ADA), (WHEN, ADA), (WHO, FILLER * 40 + ADA), (WHEN, ADA + FILLER * 3)] * 6
    alone = [qa(question=question, context=context) for question, context in pairs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: qa(question=pair[0], context=pair[1]), pairs)) == alone


def test_answers_do_not_depend_on_their_batch(qa: QuestionAnsweringPipeline) -> None:
    contexts = [ADA, FILLER * 30 + ADA, FILLER + ADA, ADA + FILLER * 60]
    alone = [qa(question=WHO, context=context, top_k=2) for context in contexts]
    for batch_size in (2, 3, 8):
        together = qa(question=[WHO] * 4, context=contexts, top_k=2, batch_size=batch_size)
        lazily = list(qa(({"question": WHO, "context": one} for one in contexts), top_k=2, batch_size=batch_size))
        for found in (together, lazily):
            for ours, theirs in zip(found, alone, strict=True):
                assert [answer["answer"] for answer in ours] == [answer["answer"] for answer in theirs]
                assert ours[0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-3)


def test_logits_that_are_not_numbers_are_an_error(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: LocalReader, windows: list[Any], *, batch_size: int) -> list[Any]:
        return [(np.full(len(window.input_ids), np.nan), np.zeros(len(window.input_ids))) for window in windows]

    monkeypatch.setattr(LocalReader, "read", broken)
    with pytest.raises(ModelError, match="not finite"):
        qa(**PAIR)
