"""Confidence intervals of means over questions, by the bootstrap: percentiles of the means of resampled questions.

See Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 16. Comparisons are paired: the
interval of a difference is computed from the differences of each question. The same seed gives the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InvalidInput

SAMPLES = 2000
LEVEL = 0.95
_CHUNK_VALUES = 4_000_000

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean (`value`) and the bounds of its confidence interval at the level `LEVEL`."""

    value: float
    low: float
    high: float


def mean_intervals(columns: npt.ArrayLike, *, seed: int = 0, samples: int = SAMPLES) -> list[Interval]:
    """Return the mean of every column with its interval.

    Args:
        columns: [questions, columns] float, one row per question. The bootstrap draws whole rows, so the values of a
            question stay together.
        samples: the number of random draws.
    """
    values = np.asarray(columns, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise InvalidInput(f"intervals need at least one row of values, got shape {values.shape}")
    means = resampled_means(values, seed=seed, samples=samples)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [
        Interval(float(mean), float(a), float(b)) for mean, a, b in zip(values.mean(axis=0), low, high, strict=True)
    ]


def mean_interval(values: Sequence[float] | FloatArray, *, seed: int = 0) -> Interval:
    """Return the mean of `values`, one value per question, with its interval."""
    return mean_intervals(np.asarray(values, dtype=np.float64)[:, None], seed=seed)[0]


def difference_interval(
    first: Sequence[float] | FloatArray, second: Sequence[float] | FloatArray, *, seed: int = 0
) -> Interval:
    """Return the mean of `first` minus `second`, question by question, with its interval."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise InvalidInput(f"a paired difference needs the same questions: {a.shape} and {b.shape} values")
    return mean_interval(a - b, seed=seed)


def resampled_means(values: FloatArray, *, seed: int = 0, samples: int = SAMPLES) -> FloatArray:
    """Return the means of `samples` random draws of questions, with replacement, as [samples, columns]. `values` has
    the shape [questions, columns].
    """
    count = len(values)
    random = np.random.default_rng(seed)
    rows = max(1, _CHUNK_VALUES // count)
    means = []
    for first in range(0, samples, rows):
        drawn = random.multinomial(count, np.full(count, 1 / count), size=min(rows, samples - first))
        means.append(drawn @ values / count)
    result: FloatArray = np.concatenate(means)
    return result
