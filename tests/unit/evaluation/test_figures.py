"""Figures follow SQuAD's rules, also per type. Recall uses the rank of the first sentence that answers."""

from __future__ import annotations

import pytest

from qa_cluster.evaluation.examples import Example
from qa_cluster.evaluation.figures import (
    GivenAnswer,
    answer_rows,
    figures,
    figures_by_type,
    first_place,
    judge,
    recall,
    recall_by_type,
    recall_difference,
    trust,
)

WHO = Example("Who wrote it?", "Ada Lovelace wrote it.", ("Ada Lovelace",))
WHEN = Example("When was it?", "It was in 1843.", ("in 1843", "1843"))
NONE = Example("Where was it?", "It was in 1843.", ())


def test_the_best_span_counts_where_every_question_has_an_answer() -> None:
    verdicts = judge([WHO, WHEN], [GivenAnswer("Ada", answerable=False), GivenAnswer("1843")])
    assert verdicts.exact_match == [0.0, 1.0]
    assert verdicts.f1 == [pytest.approx(2 / 3), 1.0]
    found = figures([WHO, WHEN], verdicts)
    assert (found.questions, found.exact_match.value, found.refused) == (2, 0.5, 0.5)
    assert found.no_answer_accuracy is None


def test_no_answer_counts_where_some_questions_have_none() -> None:
    examples = [WHO, WHEN, NONE, NONE]
    told = [
        GivenAnswer("Ada Lovelace", answerable=False),
        GivenAnswer("1843"),
        GivenAnswer("1843", answerable=False),
        GivenAnswer("1843"),
    ]
    verdicts = judge(examples, told)
    assert verdicts.f1 == verdicts.exact_match == [0.0, 1.0, 1.0, 0.0]
    found = figures(examples, verdicts)
    assert found.no_answer_accuracy is not None
    assert (found.no_answer_accuracy.value, found.refused) == (0.5, 0.5)


def test_figures_of_a_type_are_those_of_its_questions() -> None:
    examples = [WHO, WHEN, WHO]
    verdicts = judge(examples, [GivenAnswer("Ada Lovelace"), GivenAnswer("nothing"), GivenAnswer("Ada")])
    by_type = figures_by_type(examples, verdicts)
    assert list(by_type) == ["who", "when"]
    assert (by_type["who"].questions, by_type["who"].f1.value) == (2, pytest.approx(5 / 6))
    assert by_type["when"].f1.value == 0


def test_recall_counts_ranks_from_zero() -> None:
    found = recall([0, 4, 5, None])
    assert {depth: interval.value for depth, interval in found.recall.items()} == {
        "1": 0.25,
        "5": 0.5,
        "8": 0.75,
        "20": 0.75,
    }
    by_type = recall_by_type([WHO, WHEN, WHO, WHEN], [0, 4, 5, None])
    assert (by_type["who"].questions, by_type["who"].recall["8"].value) == (2, 1.0)
    minus = recall_difference([0, 4], [1, None])
    assert {depth: interval.value for depth, interval in minus.items()} == {"1": 0.5, "5": 0.5, "8": 0.5, "20": 0.5}


def test_first_sentence_that_answers() -> None:
    assert first_place(["a", "b", "c"], frozenset({"c", "b"})) == 1
    assert first_place(["a"], frozenset({"x"})) is None


def test_probabilities_are_compared_with_right_answers() -> None:
    told = [GivenAnswer("Ada Lovelace", probability=0.9)] * 10 + [GivenAnswer("1843", probability=0.1)] * 10
    found = trust(told, [WHO] * 10 + [NONE] * 10)
    assert found is not None
    assert found.calibration_error == pytest.approx(0.1)
    assert found.coverage[0].right == 1.0
    assert trust([GivenAnswer("x")], [WHO]) is None


def test_rows_contain_the_given_answers() -> None:
    told = [GivenAnswer("Ada", probability=0.4)]
    assert answer_rows([WHO], told, judge([WHO], told)) == [
        {
            "question": "Who wrote it?",
            "answer": "Ada",
            "probability": 0.4,
            "refused": False,
            "exact_match": 0.0,
            "f1": 0.6667,
        }
    ]
