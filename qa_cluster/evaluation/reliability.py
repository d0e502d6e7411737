"""Measures how far probabilities can be trusted: calibration error, reliability table, risk at a given coverage.

The expected calibration error is that of equal-mass bins (Nixon et al., Measuring Calibration in Deep Learning, 2019):
all bins hold about the same number of answers, so that no bin depends on a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InvalidInput

BINS = 15
# A bin of fewer answers would be too noisy.
MIN_BIN = 10
RIGHT = 0.5
"""An answer counts as right from this F1 on."""

COVERAGES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of similar probability: how many, the mean of their probabilities, and the share of right ones."""

    answers: int
    probability: float
    right: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """The most probable answers, a share of all: the share of right ones among them, and their least probability."""

    coverage: float
    right: float
    probability: float


def reliability(probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS) -> list[Bin]:
    """The bins, least probable first; fewer than `bins` where they would hold fewer than `MIN_BIN` answers."""
    shown, hits = _arrays(probabilities, right)
    if bins < 1:
        raise InvalidInput(f"bins is {bins}, must be at least 1")
    order = np.argsort(shown, kind="stable")
    return [
        Bin(len(part), float(shown[part].mean()), float(hits[part].mean()))
        for part in np.array_split(order, max(1, min(bins, len(order) // MIN_BIN)))
    ]


def expected_calibration_error(probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS) -> float:
    """Mean distance between probability and share of right answers over equal-mass bins, 0 to 1.

    >>> expected_calibration_error([0.9, 0.9], [True, False], bins=1)
    0.4
    """
    found = reliability(probabilities, right, bins)
    total = sum(part.answers for part in found)
    return round(sum(part.answers * abs(part.probability - part.right) for part in found) / total, 6)


def risk_coverage(probabilities: Sequence[float], right: Sequence[bool]) -> list[Coverage]:
    """The share of right ones among the most probable quarter, half, three quarters, and all of the answers."""
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
            f"calibration needs as many probabilities as answers, one at least: {shown.shape}, {hits.shape}"
        )
    return shown, hits
