"""Fits a reader's calibration to questions with judged answers. The calibration turns the *orders* of answers, the
scores by which they are ranked, into probabilities.

`qa_cluster.asking.answers.assembly` uses a conditional logit: the odds of an answer against "no answer" are ``exp(a *
order + b)``. `fit_choice` finds a and b by maximum likelihood. The likelihood of a question is the sum of the
probabilities of its right answers. If all answers of the question are wrong, the likelihood is the probability of "no
answer". The steps are those of the EM gradient algorithm (Lange 1995). A step that would lower the likelihood is halved
until the likelihood no longer falls, at most `_HALVINGS` - 1 times; if it still falls, the fit ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import InvalidInput
from qa_cluster.reading.manifest import Calibration

from .confidence_fit import fit_confidence
from .reliability import expected_calibration_error

MIN_QUESTIONS = 50
LEAST_ODDS = 0.1
"""The lowest odds, against "no answer", at which the first answer is returned. So "no answer" is returned only if "no
answer" is more than ten times as probable as the first answer."""

UNANSWERABLE_SHARE = 0.2
"""`best_threshold` weights the questions as if this share of all questions had no answer."""

NEAR = 0.005
"""Thresholds with a gain within this distance of the best gain are equivalent. The lowest of these thresholds is
used, because it answers the most questions.
"""

_STEPS, _HALVINGS = 200, 20
_RIDGE = 1e-4  # keeps the fit finite if all right answers have a higher order than all wrong answers

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """The judged answers of a question.

    Attributes:
        orders: [answers] the orders of the answers, the first answer first; may be empty.
        right: [answers] whether each answer is right.
        answered: whether the documents answer the question.
    """

    orders: FloatArray
    right: NDArray[np.bool_]
    answered: bool


@dataclass(frozen=True, slots=True)
class ChoiceFit:
    """A fitted calibration.

    Attributes:
        questions: the number of questions that were used: the questions with at least one answer.
        no_answer_threshold: the order of a span whose odds are `LEAST_ODDS`. If the first answer is less probable than
            such a span, "no answer" is returned.
        error: calibration error of the first answers' scores, 0 to 1. Each half of the questions is judged with a fit
            to the other half.
    """

    questions: int
    calibration: Calibration
    no_answer_threshold: float
    error: float


def fit_choice(questions: Sequence[JudgedQuestion]) -> ChoiceFit:
    """Fit the calibration, the limits of the words *sure* and *likely*, and the no-answer threshold.

    Raises:
        InvalidInput: fewer than MIN_QUESTIONS questions have answers, or right answers do not have higher orders than
            wrong answers.
    """
    asked = [question for question in questions if len(question.orders)]
    if len(asked) < MIN_QUESTIONS:
        raise InvalidInput(f"{len(asked)} questions got answers, a fit needs at least {MIN_QUESTIONS}")
    calibration = _calibration(asked)
    first = [(probabilities(question.orders, calibration)[0], bool(question.right[0])) for question in asked]
    limits = fit_confidence([score for score, _ in first], [is_right for _, is_right in first])
    halves = [asked[::2], asked[1::2]]
    shown: list[float] = []
    right: list[bool] = []
    for part, other in (halves, halves[::-1]):
        fitted = _calibration(other)
        shown += [probabilities(question.orders, fitted)[0] for question in part]
        right += [bool(question.right[0]) for question in part]
    return ChoiceFit(
        len(asked),
        limits.of(calibration),
        round((log(LEAST_ODDS) - calibration.b) / calibration.a, 2),
        round(expected_calibration_error(shown, right), 6),
    )


def probabilities(orders: FloatArray, calibration: Calibration) -> list[float]:
    """Return the probability of each answer of a question. The probability of "no answer" is 1 minus their sum."""
    shares: list[float] = _shares(calibration.a * orders[None] + calibration.b)[0, :-1].tolist()
    return shares


def _shares(utilities: FloatArray) -> FloatArray:
    """Return, for each question (row), the probabilities of its answers, and last the probability of "no answer".

    The probabilities are the softmax over the utilities of the answers and the utility of "no answer", which is 0.
    """
    all_of_them = np.hstack([utilities, np.zeros((len(utilities), 1))])
    powers = np.exp(all_of_them - all_of_them.max(axis=1, keepdims=True))
    shares: FloatArray = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _calibration(asked: Sequence[JudgedQuestion]) -> Calibration:
    weights = np.array([0.25, -1.0])
    width = max(len(question.orders) for question in asked)
    # Each row has the answers of one question. If a question has fewer answers than the row has columns, the orders in
    # the unused columns are NaN.
    orders, right = np.full((len(asked), width), np.nan), np.zeros((len(asked), width), np.bool_)
    for row, question in enumerate(asked):
        orders[row, : len(question.orders)] = question.orders
        right[row, : len(question.right)] = question.right
    value, gradient, information = _likelihood(weights, orders, right)
    for _ in range(_STEPS):
        step = np.linalg.solve(information, gradient)
        for halving in range(_HALVINGS):
            tried = weights + step / 2**halving
            found = _likelihood(tried, orders, right)
            if found[0] >= value:
                break
        else:
            break
        weights, (value, gradient, information) = tried, found
        if np.abs(step).max() < 1e-7:
            break
    if weights[0] <= 0:
        raise InvalidInput(
            f"answers of a higher order are not right more often (slope {weights[0]:.3g}): nothing to fit"
        )
    return Calibration(a=round(float(weights[0]), 5), b=round(float(weights[1]), 5))


def _likelihood(
    weights: FloatArray, orders: FloatArray, right: NDArray[np.bool_]
) -> tuple[float, FloatArray, FloatArray]:
    """Return the mean log likelihood minus the ridge penalty, its gradient, and the matrix of the EM gradient step.

    `weights` are a and b. `orders` and `right` have the shape [questions, answers]; an order of NaN marks an unused
    column.
    """
    is_answer = ~np.isnan(orders)
    design = np.stack([np.where(is_answer, orders, 0.0), is_answer], axis=2)
    shares = _shares(np.where(is_answer, design @ weights, -np.inf))
    wanted = np.where(np.hstack([right, ~right.any(axis=1, keepdims=True)]), shares, 0.0)
    likely = np.maximum(wanted.sum(axis=1, keepdims=True), 1e-300)
    means = np.einsum("qa,qad->qd", shares[:, :-1], design)
    count = len(orders)
    gradient = np.einsum("qa,qad->d", (wanted / likely - shares)[:, :-1], design)
    information = np.einsum("qa,qad,qae->de", shares[:, :-1], design, design) - means.T @ means
    return (
        float(np.log(likely).mean()) - _RIDGE * float(weights @ weights),
        gradient / count - 2 * _RIDGE * weights,
        information / count + 2 * _RIDGE * np.eye(2),
    )


def best_threshold(scores: FloatArray, gained: FloatArray, unanswerable: NDArray[np.bool_]) -> float:
    """Return the score below which "no answer" should be returned for the highest total gain.

    A question that the documents answer counts its value in `gained` if its answer is returned, and 0 for "no answer".
    An unanswerable question counts 1 for "no answer" and 0 for an answer, so its value in `gained` must be 0. The
    questions are weighted as if the share `UNANSWERABLE_SHARE` of them had no answer.

    Args:
        scores: for each question, the score of its best answer.
        gained: for each question, the value of its best answer, for example its F1.
        unanswerable: for each question, whether the documents do not answer it.
    """
    order = np.argsort(scores)
    ranked = scores[order]
    count = max(int(unanswerable.sum()), 1)
    refused = np.concatenate([[0.0], np.cumsum(unanswerable[order])]) / count
    answered = np.concatenate([np.cumsum(gained[order][::-1])[::-1], [0.0]]) / max(len(scores) - count, 1)
    gain = UNANSWERABLE_SHARE * refused + (1 - UNANSWERABLE_SHARE) * answered
    cut = int(np.argmax(gain > gain.max() - NEAR))
    if cut == 0:
        return round(float(ranked[0]), 2)
    if cut == len(ranked):
        return round(float(ranked[-1]), 2)
    return round(float(ranked[cut - 1] + ranked[cut]) / 2, 2)
