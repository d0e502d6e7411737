"""The fit finds known thresholds and calibrations, and rejects data that allow no fit."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.errors import ModelError
from qa_cluster.evaluation.choice_fit import best_threshold
from qa_cluster.evaluation.examples import Example
from qa_cluster.models.evaluation.calibrate import fit, fit_logistic, with_negatives
from qa_cluster.models.evaluation.evaluate import Prediction


def test_the_fit_finds_the_logistic_behind_the_data() -> None:
    random = np.random.default_rng(7)
    scores = random.normal(3, 5, 20_000)
    right = random.random(20_000) < 1 / (1 + np.exp(-(0.4 * scores - 1.5)))
    found = fit_logistic(scores, right)
    assert found.a == pytest.approx(0.4, abs=0.02)
    assert found.b == pytest.approx(-1.5, abs=0.08)


def test_separable_scores_give_a_finite_logistic() -> None:
    found = fit_logistic(np.array([-3.0, -2.0, 2.0, 3.0]), np.array([False, False, True, True]))
    assert 0 < found.a < 1000


@pytest.mark.parametrize(
    ("scores", "right", "message"),
    [
        ([1.0, 2.0], [True, True], "calibration needs right and wrong answers"),
        ([1.0, 2.0], [False, False], "calibration needs right and wrong answers"),
        ([1.0, 2.0, 3.0, 4.0], [True, True, False, False], "the reader cannot be used"),
        ([1e9, 2e9, 3e9, 4e9], [False, True, False, True], "the reader cannot be used"),  # the slope rounds to zero
    ],
)
def test_meaningless_scores_are_refused(scores: list[float], right: list[bool], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fit_logistic(np.array(scores), np.array(right))


def test_the_threshold_separates_separable_scores() -> None:
    scores = np.array([-4.0, -2.0, -1.0, 3.0, 5.0, 6.0])
    unanswerable = np.array([True, True, True, False, False, False])
    assert best_threshold(scores, 1.0 - unanswerable, unanswerable) == 1.0


def test_each_question_has_a_negative_without_its_answer() -> None:
    examples = [
        Example("Who wrote the program?", "Ada wrote the program.", ("Ada",)),
        Example("Who wrote the novel?", "Mary wrote the novel.", ("Mary",)),
        Example("Where is Rome?", "Rome is in Italy.", ("Italy",)),
    ]
    negatives = with_negatives(examples)[3:]
    assert [example.answers for example in negatives] == [(), (), ()]
    assert negatives[0].context == "Mary wrote the novel."
    labelled = [*examples, Example("Why?", "No reason given.", ())]
    assert with_negatives(labelled) == labelled


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 20"):
        fit([Prediction("a", 0, 1, 1.0)], [Example("q", "a", ("a",))])


def test_the_calibration_error_is_measured_on_held_out_answers() -> None:
    random = np.random.default_rng(5)
    scores = random.normal(3, 4, 3000)
    right = random.random(3000) < 1 / (1 + np.exp(-(0.3 * scores - 1.0)))
    examples = [Example("q", "a b", ("a",)) if hit else Example("q", "a b", ("b",)) for hit in right]
    found = fit([Prediction("a", 0, 1, float(score)) for score in scores], examples)
    assert found.calibration.a == pytest.approx(0.3, abs=0.03)
    assert found.error is not None and found.error < 0.05
    assert found.error_before is not None and found.error_before > 0.2


def test_both_halves_are_calibrated_together_if_one_has_no_right_answer() -> None:
    examples = [Example("q", "a b", ("a",)) if number % 2 else Example("q", "a b", ("b",)) for number in range(40)]
    found = fit([Prediction("a", 0, 1, float(number % 2)) for number in range(40)], examples)
    assert found.error is not None and 0 <= found.error < 0.5
