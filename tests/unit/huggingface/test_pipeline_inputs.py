"""Inputs of `qa_cluster.pipeline`: pairs in every form that the pipeline of transformers accepted, and no other form.

The number is an issue of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from tests.unit.huggingface.pairs import ADA, PAIR, WHEN, WHO

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Squad:
    """An object with the attributes of transformers' SquadExample."""

    def __init__(self, question: str, context: str) -> None:
        self.question_text, self.context_text, self.qas_id = question, context, None


OTHER = {"question": WHEN, "context": ADA}
ONE: list[Call] = [
    ((), PAIR),
    ((), {"question": [WHO], "context": ADA}),
    ((), {"question": [WHO], "context": [ADA]}),
    ((WHO, ADA), {}),
    ((PAIR,), {}),
    (([PAIR],), {}),
    (((PAIR,),), {}),
    ((iter([PAIR]),), {}),
    ((), {"data": PAIR}),
    ((), {"data": [PAIR]}),
    ((), {"X": PAIR}),
    (([Squad(WHO, ADA)],), {}),
    (([QuestionAnsweringPipeline.create_sample(WHO, ADA)],), {}),
    (([{**PAIR, "id": 5, "answers": {}}],), {}),
]
TWO: list[Call] = [
    ((), {"question": [WHO, WHEN], "context": ADA}),
    ((), {"question": [WHO, WHEN], "context": [ADA, ADA]}),
    (([PAIR, OTHER],), {}),
    ((PAIR, OTHER), {}),
    (({"question": [WHO, WHEN], "context": [ADA, ADA]},), {}),
    ((QuestionAnsweringPipeline.create_sample([WHO, WHEN], [ADA, ADA]),), {}),
    ((QuestionAnsweringPipeline.create_sample([WHO, WHEN], ADA),), {}),
]


@pytest.mark.parametrize(("args", "named"), ONE)
def test_one_pair_in_any_form_gives_one_answer(
    qa: QuestionAnsweringPipeline, ada: dict[str, Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    # an iterator works only once
    given = [iter([PAIR]) if hasattr(value, "__next__") else value for value in args]
    assert qa(*given, **named) == ada


@pytest.mark.parametrize(("args", "named"), TWO)
def test_two_pairs_in_any_form_give_a_list(
    qa: QuestionAnsweringPipeline, ada: dict[str, Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    first, second = qa(*args, **named)
    assert first == ada
    assert second["answer"] == "1843"


def test_no_pairs_give_no_answers(qa: QuestionAnsweringPipeline) -> None:
    assert qa(question=[], context=ADA) == qa([]) == []


REFUSED: list[tuple[Call, str]] = [
    (((), {}), "question and context missing"),
    (((), {"question": WHO}), "context missing"),
    (((), {"question": None, "context": ADA}), "question is NoneType"),
    (((), {"question": WHO, "context": [ADA]}), "give two strings"),
    (((), {"question": (WHO,), "context": [ADA]}), "give two strings"),
    (((), {"question": [WHO, WHEN], "context": [ADA]}), "2 questions and 1 contexts"),
    (((), {"question": "", "context": ADA}), "`question` cannot be empty"),
    (((), {"question": WHO, "context": ""}), "`context` cannot be empty"),  # 2623
    ((({"question": WHO, "context": None},), {}), "`context` cannot be None"),
    ((({"question": WHO, "context": 3},), {}), "must be a string, got int 3"),
    (((5,), {}), "int 5"),
    ((([5],), {}), "int 5"),
    ((("Who?",), {}), "cannot find questions"),
    ((([{"question": [WHO], "context": [ADA]}, PAIR],), {}), "item 0 contains lists"),
    (((), {"question": "who " * 600, "context": ADA}), "question has more than 512 tokens"),
    (((), {"question": WHO, "context": "a \ud800 b"}), "not valid Unicode"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_an_invalid_pair_is_refused(qa: QuestionAnsweringPipeline, call: Call, said: str) -> None:
    args, named = call
    with pytest.raises(ValueError) as error:
        qa(*args, **named)
    assert said in str(error.value)
    assert isinstance(error.value, InvalidInput)


def test_a_pair_without_context_is_a_missing_key(qa: QuestionAnsweringPipeline) -> None:
    with pytest.raises(KeyError, match="lacks the key 'context'") as error:
        qa({"question": WHO})
    assert isinstance(error.value, InvalidInput)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"top_k": 0}, "top_k must be from 1"),
        ({"top_k": 2.5}, "top_k must be an integer, got 2.5"),
        ({"max_answer_len": 0}, "max_answer_len must be from 1"),
        ({"doc_stride": 500}, "doc_stride is 500, larger than max_seq_len"),
        ({"doc_stride": -1}, "doc_stride must be from 0"),
        ({"padding": "left"}, "padding must be one of"),
        ({"handle_impossible_answer": "no"}, "must be true or false"),
        ({"max_answer_length": 3}, "unknown parameter 'max_answer_length'"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_seq_len": 5}, "leaves no tokens"),
    ],
)
def test_parameters_out_of_range_are_refused(
    qa: QuestionAnsweringPipeline, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError) as error:
        qa(**PAIR, **parameters)
    assert said in str(error.value)
    assert isinstance(error.value, InvalidInput)


def test_a_generator_is_read_as_results_are_taken(qa: QuestionAnsweringPipeline, ada: dict[str, Any]) -> None:
    taken = []

    def pairs() -> Iterator[dict[str, Any]]:
        for number in range(5):
            taken.append(number)
            yield {**PAIR, "number": number}

    results = qa(pairs())
    assert taken == []
    assert next(results) == ada
    assert taken == [0]
    assert list(results) == [ada] * 4
    with pytest.raises(KeyError):
        next(qa(item for item in [{"question": WHO}]))
    with pytest.raises(ValueError, match="top_k"):
        qa(pairs(), top_k=0)


def test_a_dataset_of_torch_is_read_as_results_are_taken(qa: QuestionAnsweringPipeline, ada: dict[str, Any]) -> None:
    base = type("Dataset", (), {"__module__": "torch.utils.data.dataset"})

    class Rows(base):  # type: ignore[misc, valid-type]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> dict[str, str]:
            return PAIR  # any index is valid: only the length shows that there are two items

    results = qa(Rows())
    assert not isinstance(results, list)
    assert list(results) == [ada, ada]
