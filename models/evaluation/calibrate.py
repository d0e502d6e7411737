"""Fits the thresholds of a reader on labelled examples that it was not trained on.

- *Calibration*: a logistic function from the score over null to the probability that the answer is right (an F1 of at
  least 0.5). With enough examples, the limits of the words *sure* and *likely* are fitted to these probabilities.
- *Calibration error*: the difference between these probabilities and the share of right answers, on examples that were
  not used for the fit. The same error is computed for the reader's own odds: the probabilities without a fit,
  `1 / (1 + exp(-score))`.
- *No-answer threshold*: the score below which the reader should return "no answer". This threshold gives the highest
  total gain: F1 for an answered question, and 1 for "no answer" to a question without an answer. `best_threshold` says
  how the questions are weighted.
- *Wave threshold*: the score at which reading stops. This threshold is used if `waves` has too few examples for a fit.
  For an early bundled reader, the best threshold was a score of 6, where the probability of a right answer was 39 %.
  For any other reader, the threshold is the score at which its own calibration gives a probability of 39 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError
from qa_cluster.evaluation.choice_fit import best_threshold
from qa_cluster.evaluation.confidence_fit import MIN_ANSWERS, fit_confidence
from qa_cluster.evaluation.examples import Example
from qa_cluster.evaluation.reliability import expected_calibration_error
from qa_cluster.evaluation.scoring import f1, normalise
from qa_cluster.reading.manifest import Calibration

from .evaluate import Prediction

RIGHT = 0.5
WAVE_SCORE = 6.0
WAVE_PROBABILITY = 0.39
MIN_EXAMPLES = 20
_NEWTON_STEPS = 100
_RIDGE = 1e-3  # keeps the fit finite on separable data

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The results of `fit`, which the docstring of the module explains.

    Attributes:
        no_answer: the no-answer threshold, a score over null.
        wave: the wave threshold.
        error: the calibration error; None without a fit.
        error_before: the calibration error of the reader's own odds; None without a fit.
    """

    calibration: Calibration
    no_answer: float
    wave: float
    error: float | None = None
    error_before: float | None = None


OWN_ODDS = Calibration(a=1.0, b=0.0)
UNFITTED = Thresholds(OWN_ODDS, no_answer=0.0, wave=WAVE_SCORE)
"""The thresholds without held-out data: the reader's own odds of its best span against `[CLS]`."""


def with_negatives(examples: Sequence[Example]) -> list[Example]:
    """Return the examples. If all examples are answerable, also return an unanswerable example for each of them, if one
    can be made.

    An added example has a question with a different context: the context that shares most words with the question and
    does not contain its answer. On a cluster, readers read such contexts among the ranked sentences.
    """
    if any(not example.answers for example in examples):
        return list(examples)
    holders = {example.context: example for example in examples}
    contexts = list(holders)
    plain = [normalise(context) for context in contexts]
    words = [set(context.split()) for context in plain]
    negatives = []
    for example in examples:
        asked = set(normalise(example.question).split())
        answers = [normalise(answer) for answer in example.answers]
        best = max(
            (i for i, context in enumerate(plain) if not any(answer in context for answer in answers)),
            key=lambda i: len(asked & words[i]),
            default=None,
        )
        if best is not None:
            held = holders[contexts[best]]
            negatives.append(Example(example.question, held.context, (), (), held.title, held.section))
    return [*examples, *negatives]


def require_enough(examples: Sequence[Example]) -> None:
    """Raise ModelError if there are fewer than `MIN_EXAMPLES` examples, which is too few for a fit."""
    if len(examples) < MIN_EXAMPLES:
        raise ModelError(f"there are {len(examples)} held-out examples, but calibration needs at least {MIN_EXAMPLES}")


def fit(predictions: Sequence[Prediction], examples: Sequence[Example]) -> Thresholds:
    """Fit all thresholds to the predictions for held-out examples, in the same order as the examples. Some examples
    must have no answer (`with_negatives` adds such examples).
    """
    require_enough(examples)
    read = np.array([np.isfinite(found.score) for found in predictions])
    scores = np.array([found.score for found in predictions], np.float64)[read]
    pairs = zip(predictions, examples, strict=True)
    gained = np.array([f1(found.text, example.answers) if example.answers else 0.0 for found, example in pairs])[read]
    unanswerable = np.array([not example.answers for example in examples])[read]
    right = gained >= RIGHT
    calibration = fit_logistic(scores, right)
    if len(scores) >= MIN_ANSWERS:
        limits = fit_confidence([calibration.probability(float(score)) for score in scores], right.tolist())
        calibration = limits.of(calibration)
    wave = (float(np.log(WAVE_PROBABILITY / (1 - WAVE_PROBABILITY))) - calibration.b) / calibration.a
    return Thresholds(
        calibration,
        best_threshold(scores, gained, unanswerable),
        round(wave, 1),
        error=_held_out_error(scores, right),
        error_before=_error(OWN_ODDS, scores, right),
    )


def _held_out_error(scores: FloatArray, right: NDArray[np.bool_]) -> float:
    """Return the calibration error. The probabilities of each half of the answers come from a logistic function that is
    fitted to the other half.

    If all answers of a half are right, or all are wrong, one function is fitted to all answers.
    """
    half = np.arange(len(scores)) % 2 == 0
    shown = np.empty(len(scores))
    for part in (half, ~half):
        if right[part].all() or not right[part].any():
            return _error(fit_logistic(scores, right), scores, right)
        fitted = fit_logistic(scores[part], right[part])
        shown[~part] = [fitted.probability(float(score)) for score in scores[~part]]
    return expected_calibration_error(shown.tolist(), right.tolist())


def _error(calibration: Calibration, scores: FloatArray, right: NDArray[np.bool_]) -> float:
    return expected_calibration_error([calibration.probability(float(score)) for score in scores], right.tolist())


def fit_logistic(scores: FloatArray, right: NDArray[np.bool_]) -> Calibration:
    """Return the logistic function from scores to the probability of `right` with the highest likelihood.

    The fit uses Newton's method. Raises ModelError if all answers are right, if all are wrong, or if higher scores are
    not better.
    """
    if right.all() or not right.any():
        raise ModelError(
            f"{int(right.sum())} of {len(right)} held-out answers are right: calibration needs right and wrong answers"
        )
    design = np.stack([scores, np.ones_like(scores)], axis=1)
    weights = np.zeros(2)
    for _ in range(_NEWTON_STEPS):
        probability = 1 / (1 + np.exp(-np.clip(design @ weights, -50, 50)))
        gradient = design.T @ (right - probability) - _RIDGE * weights
        curvature = (design * (probability * (1 - probability))[:, None]).T @ design + _RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    slope, intercept = round(float(weights[0]), 5), round(float(weights[1]), 5)
    if slope <= 0:
        raise ModelError(
            f"higher scores are not better on held-out examples (slope {weights[0]:.3g}): the reader cannot be used"
        )
    return Calibration(a=slope, b=intercept)
