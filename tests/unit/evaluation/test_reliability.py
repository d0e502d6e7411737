"""The calibration error uses bins of equal size. The report lists the surest answers first."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.reliability import (
    calibration_error_by_chance,
    expected_calibration_error,
    reliability,
    risk_coverage,
)


def test_bins_have_equal_sizes_and_ascend() -> None:
    random = np.random.default_rng(4)
    shown = random.random(150)
    bins = reliability(shown.tolist(), (random.random(150) < shown).tolist())
    assert [part.answers for part in bins] == [10] * 15
    assert [part.probability for part in bins] == sorted(part.probability for part in bins)
    assert len(reliability(shown[:35].tolist(), [True] * 35)) == 3
    assert len(reliability([0.5], [True])) == 1


def test_error_is_the_mean_distance() -> None:
    shown = [0.2] * 10 + [0.9] * 10
    right = [False] * 10 + [True] * 6 + [False] * 4
    assert expected_calibration_error(shown, right, bins=2) == pytest.approx((0.2 + 0.3) / 2)


def test_calibrated_scores_have_a_small_error_and_others_a_large_one() -> None:
    random = np.random.default_rng(4)
    shown = random.random(20_000)
    right = (random.random(20_000) < shown).tolist()
    assert expected_calibration_error(shown.tolist(), right) < 0.02
    assert expected_calibration_error((shown / 2).tolist(), right) > 0.2


def test_perfect_scores_have_an_error_by_chance_that_falls_with_the_number_of_answers() -> None:
    random = np.random.default_rng(4)
    few, many = random.random(150), random.random(15_000)
    by_chance = [calibration_error_by_chance(shown.tolist()) for shown in (few, many)]
    measured = [
        expected_calibration_error(shown.tolist(), (random.random(shown.size) < shown).tolist())
        for shown in (few, many)
    ]
    assert by_chance == pytest.approx(measured, rel=0.5)
    assert by_chance[0] > 5 * by_chance[1]
    assert calibration_error_by_chance([0.0, 1.0]) == 0.0


def test_the_surest_answers_come_first() -> None:
    found = risk_coverage([0.1, 0.9, 0.8, 0.4], [False, True, True, False])
    assert [(part.coverage, part.right, part.probability) for part in found] == [
        (0.25, 1.0, 0.9),
        (0.5, 1.0, 0.8),
        (0.75, pytest.approx(2 / 3), 0.4),
        (1.0, 0.5, 0.1),
    ]


@pytest.mark.parametrize(("shown", "right"), [([], []), ([0.5], [True, False])])
def test_empty_lists_and_lists_of_different_lengths_are_refused(shown: list[float], right: list[bool]) -> None:
    with pytest.raises(InvalidInput, match="one probability for each answer"):
        expected_calibration_error(shown, right)


def test_zero_bins_are_refused() -> None:
    with pytest.raises(InvalidInput, match="bins is 0"):
        reliability([0.5], [True], bins=0)
