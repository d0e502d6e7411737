"""The fit finds the calibration with which the answers were drawn, and the best no-answer threshold."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.choice_fit import (
    LEAST_ODDS,
    MIN_QUESTIONS,
    JudgedQuestion,
    best_threshold,
    fit_choice,
    probabilities,
)
from qa_cluster.reading.manifest import Calibration


def drawn(calibration: Calibration, count: int, seed: int = 0) -> list[JudgedQuestion]:
    """Questions with at most one right answer, drawn with the probabilities of the calibration."""
    random = np.random.default_rng(seed)
    questions = []
    for _ in range(count):
        orders = np.sort(random.normal(1.0, 4.0, random.integers(1, 9)))[::-1]
        shares = probabilities(orders, calibration)
        chosen = random.choice(len(orders) + 1, p=[*shares, 1 - sum(shares)])
        right = np.arange(len(orders)) == chosen
        questions.append(JudgedQuestion(orders, right, answered=bool(right.any())))
    return questions


@pytest.mark.parametrize("true", [Calibration(0.25, -1.0), Calibration(0.6, 0.5)])
def test_the_calibration_that_made_the_answers_is_found(true: Calibration) -> None:
    found = fit_choice(drawn(true, 4000))
    assert found.calibration.a == pytest.approx(true.a, abs=0.05)
    assert found.calibration.b == pytest.approx(true.b, abs=0.15)
    assert found.error < 0.03
    first = found.calibration.a * found.no_answer_threshold + found.calibration.b
    assert np.exp(first) == pytest.approx(LEAST_ODDS, rel=0.01)
    assert found.questions == 4000


def test_questions_without_answers_do_not_change_the_fit() -> None:
    some = drawn(Calibration(0.25, -1.0), 200)
    nothing = JudgedQuestion(np.empty(0), np.empty(0, np.bool_), answered=True)
    assert fit_choice([*some, nothing, nothing]).calibration == fit_choice(some).calibration


def test_too_few_questions_are_refused() -> None:
    with pytest.raises(InvalidInput, match=f"{MIN_QUESTIONS - 1} questions got answers, a fit needs at least"):
        fit_choice(drawn(Calibration(0.25, -1.0), MIN_QUESTIONS - 1))


def test_a_reader_whose_higher_orders_are_wrong_is_refused() -> None:
    upside_down = [
        JudgedQuestion(np.array([4.0, -4.0]), np.array([False, True]), answered=True) for _ in range(MIN_QUESTIONS)
    ]
    with pytest.raises(InvalidInput, match="not right more often"):
        fit_choice(upside_down)


def test_answers_that_are_always_right_leave_the_fit_finite() -> None:
    sure = [JudgedQuestion(np.array([4.0, -4.0]), np.array([True, False]), answered=True) for _ in range(MIN_QUESTIONS)]
    found = fit_choice(sure).calibration
    assert 0 < found.a < 100
    assert probabilities(np.array([4.0, -4.0]), found)[0] > 0.9


def test_the_threshold_tells_questions_without_an_answer_from_others() -> None:
    scores = np.array([-3.0, -2.0, 2.0, 3.0])
    gained = np.array([0.0, 0.0, 1.0, 1.0])
    assert best_threshold(scores, gained, np.array([True, True, False, False])) == 0.0


def test_the_lowest_of_equally_good_thresholds_is_chosen() -> None:
    scores = np.linspace(-10.0, 10.0, 1001)
    gained = (scores > -8.0) * (np.arange(1001) % 250 == 0)
    assert best_threshold(scores, gained.astype(np.float64), scores < -9.0) == pytest.approx(-9.0, abs=0.15)
