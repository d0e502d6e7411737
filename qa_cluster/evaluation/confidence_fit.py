"""Fits the limits of the words *sure*, *likely* and *unsure* to scores of judged answers.

- *sure* starts at the lowest score for which two things hold: of all answers with this score or more, at least
  `SURE_RIGHT` are right, and there are at least `MIN_SURE` such answers. If there is no such score, the limit is 1, and
  no answer is sure.
- *likely* starts at the score that separates right from wrong answers with the fewest errors. Just above this score, at
  least half of the answers are right; just below it, fewer than half. The limit of *likely* is never above the limit of
  *sure*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any

import numpy as np

from qa_cluster.errors import InvalidInput
from qa_cluster.reading.manifest import Calibration

SURE_RIGHT = 0.92
MIN_SURE = 20
MIN_ANSWERS = 50
"""The least number of judged answers for a fit."""

_DIGITS = 1e4


@dataclass(frozen=True, slots=True)
class ConfidenceLimits:
    """The fitted limits. For each word (sure, likely, unsure): the number of answers with this word, and the share
    of these answers that is right. The share is None if no answer has the word.
    """

    sure: float
    likely: float
    sure_answers: int
    sure_right: float | None
    likely_answers: int
    likely_right: float | None
    unsure_answers: int
    unsure_right: float | None

    def of(self, calibration: Calibration) -> Calibration:
        """Return a copy of the calibration with these limits."""
        return replace(calibration, sure=self.sure, likely=self.likely)


def fit_confidence(scores: Sequence[float], right: Sequence[bool]) -> ConfidenceLimits:
    """Fit the limits to the scores of first answers.

    Args:
        scores: the probability of each answer, 0 to 1.
        right: whether each answer is right.

    Raises:
        InvalidInput: there are fewer than `MIN_ANSWERS` answers, or the numbers of judgements and scores differ.
    """
    if len(scores) != len(right):
        raise InvalidInput(f"there are {len(scores)} scores, but {len(right)} judgements")
    if len(scores) < MIN_ANSWERS:
        raise InvalidInput(f"{len(scores)} answers were judged, a fit needs at least {MIN_ANSWERS}")
    order = np.argsort(np.asarray(scores, np.float64), kind="stable")
    ranked, hits = np.asarray(scores, np.float64)[order], np.asarray(right, np.float64)[order]
    starts = np.flatnonzero(np.diff(ranked, prepend=-np.inf))  # answers of equal score stay together
    above = np.cumsum(hits[::-1])[::-1][starts]
    counts = len(ranked) - starts
    good = np.flatnonzero((above >= SURE_RIGHT * counts) & (counts >= MIN_SURE))
    sure = _limit(ranked[starts[good[0]]]) if len(good) else 1.0
    # The errors on both sides of a limit are fewest where the sum of (right - 1/2) above the limit is greatest.
    gain = above - counts / 2
    best = int(np.argmax(gain))
    likely = min(sure, _limit(ranked[starts[best]]) if gain[best] > 0 else 1.0)
    calibration = Calibration(1.0, 0.0, sure, likely)
    words = np.array([calibration.confidence(float(score)) for score in ranked])
    return ConfidenceLimits(
        sure, likely, *_share(hits, words == "sure"), *_share(hits, words == "likely"), *_share(hits, words == "unsure")
    )


def _limit(score: float) -> float:
    """Return the score, rounded down to four decimals, so that an answer with exactly this score reaches the limit."""
    return floor(score * _DIGITS) / _DIGITS


def _share(
    hits: np.ndarray[Any, np.dtype[np.float64]], chosen: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[int, float | None]:
    return int(chosen.sum()), round(float(hits[chosen].mean()), 4) if chosen.any() else None
