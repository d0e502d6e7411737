"""Measures how reliable probabilities are: calibration error, reliability table, risk at a given coverage.

The expected calibration error uses equal-mass bins (Nixon et al., Measuring Calibration in Deep Learning, 2019): all
bins have about the same number of answers, so no bin has very few answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InvalidInput

BINS = 15
# A bin with fewer answers is too noisy.
MIN_BIN = 10
CHANCE_SAMPLES = 200
RIGHT = 0.5
"""The least F1 of a right answer."""

COVERAGES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of similar probability.

    Attributes:
        answers: the number of the answers.
        probability: the mean of their probabilities.
        right: the share of right answers."""

    answers: int
    probability: float
    right: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """The quality of the most probable answers.

    Attributes:
        coverage: the number of these answers, as a share of the number of all answers.
        right: the share of right answers among them.
        probability: the lowest probability among them.
    """

    coverage: float
    right: float
    probability: float


def reliability(probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS) -> list[Bin]:
    """Group the answers into bins of similar probability; return the bins, least probable first.

    `probabilities` has the probability of each answer, and `right` says whether each answer is right.

    There are fewer than `bins` bins if a bin would have fewer than `MIN_BIN` answers.
    """
    shown, hits = _arrays(probabilities, right)
    if bins < 1:
        raise InvalidInput(f"bins is {bins}, must be at least 1")
    order = np.argsort(shown, kind="stable")
    return [
        Bin(len(part), float(shown[part].mean()), float(hits[part].mean()))
        for part in np.array_split(order, max(1, min(bins, len(order) // MIN_BIN)))
    ]


def expected_calibration_error(probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS) -> float:
    """Return the calibration error, 0 to 1: over equal-mass bins, the mean distance between the mean probability and
    the share of right answers.

    >>> expected_calibration_error([0.9, 0.9], [True, False], bins=1)
    0.4
    """
    found = reliability(probabilities, right, bins)
    total = sum(part.answers for part in found)
    return round(sum(part.answers * abs(part.probability - part.right) for part in found) / total, 6)


def calibration_error_by_chance(probabilities: Sequence[float], *, seed: int = 0) -> float:
    """Return the calibration error that perfect probabilities would have with so few answers, 0 to 1.

    It is the median over random samples. In each sample, an answer is right with exactly its probability. A measured
    error that is not larger shows no fault of the probabilities.
    """
    random = np.random.default_rng(seed)
    shown = np.asarray(probabilities, dtype=np.float64)
    errors = [
        expected_calibration_error(probabilities, (random.random(len(shown)) < shown).tolist())
        for _ in range(CHANCE_SAMPLES)
    ]
    return round(float(np.median(errors)), 6)


def risk_coverage(probabilities: Sequence[float], right: Sequence[bool]) -> list[Coverage]:
    """Return the quality of the most probable quarter, half, and three quarters of the answers, and of all answers."""
    shown, hits = _arrays(probabilities, right)
    order = np.argsort(-shown, kind="stable")
    found = []
    for coverage in COVERAGES:
        part = order[: max(1, round(coverage * len(order)))]
        found.append(Coverage(coverage, float(hits[part].mean()), float(shown[part].min())))
    return found


def _arrays(
    probabilities: Sequence[float], right: Sequence[bool]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    shown, hits = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if shown.shape != hits.shape or shown.ndim != 1 or not len(shown):
        raise InvalidInput(
            f"calibration needs one probability for each answer, and at least one answer: {shown.shape}, {hits.shape}"
        )
    return shown, hits
