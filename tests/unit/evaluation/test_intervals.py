"""Intervals contain the true value as often as they claim, depend only on the seed, and respect the pairing."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation import intervals
from qa_cluster.evaluation.intervals import difference_interval, mean_interval, mean_intervals, resampled_means


def test_interval_of_a_share_is_that_of_the_normal_approximation() -> None:
    values = [1.0] * 300 + [0.0] * 700
    found = mean_interval(values)
    half = 1.96 * (0.3 * 0.7 / 1000) ** 0.5
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == (pytest.approx(0.3 - half, abs=0.004), pytest.approx(0.3 + half, abs=0.004))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(5)
    held = 0
    for seed in range(200):
        found = mean_intervals(random.random((80, 1)) < 0.4, seed=seed, samples=300)[0]
        held += found.low <= 0.4 <= found.high
    assert 178 <= held <= 199


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).random(50)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) != mean_interval(values, seed=4)


def test_columns_are_resampled_together_and_like_alone() -> None:
    values = np.random.default_rng(1).random((50, 2))
    means = resampled_means(np.stack([values[:, 0], values[:, 0] + 1], axis=1))
    assert np.allclose(means[:, 1] - means[:, 0], 1)
    assert mean_intervals(values)[1].low == pytest.approx(mean_interval(values[:, 1]).low)


def test_many_questions_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random((100, 1))
    whole = resampled_means(values, samples=50)
    monkeypatch.setattr(intervals, "_CHUNK_VALUES", 1300)
    assert np.allclose(resampled_means(values, samples=50), whole, rtol=1e-12)


def test_a_difference_is_paired() -> None:
    first = np.random.default_rng(2).random(200)
    found = difference_interval(first + 0.01, first)
    assert (found.low, found.high) == (pytest.approx(0.01), pytest.approx(0.01))
    with pytest.raises(InvalidInput, match="same questions"):
        difference_interval([1.0], [1.0, 0.0])


def test_no_values_have_no_interval() -> None:
    with pytest.raises(InvalidInput, match="at least one row"):
        mean_interval([])
