"""Rounding with smoothing loses less than rounding each weight alone. The tests use only arrays."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.models.quantization.rounding import BITS, largest_code, to_least_error, to_nearest, weight_scales
from qa_cluster.models.quantization.smoothing import Activations, Range, best_factors


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(8)


def correlated(random: np.random.Generator, rows: int, channels: int) -> np.ndarray:
    """Activations with correlated channels, like those of a network."""
    few = random.normal(size=(rows, channels // 8))
    mixed = few @ random.normal(size=(channels // 8, channels)) + 0.1 * random.normal(size=(rows, channels))
    return mixed.astype(np.float32)


def test_weights_need_every_step_of_their_scale(random: np.random.Generator) -> None:
    weights = random.normal(size=(64, 8)).astype(np.float32)
    codes = to_nearest(weights, weight_scales(weights))
    assert np.abs(codes.astype(int)).max(axis=0).tolist() == [largest_code(BITS)] * 8
    assert np.isfinite(weight_scales(np.zeros((4, 2), np.float32))).all()
    assert not to_nearest(np.zeros((4, 2), np.float32), weight_scales(np.zeros((4, 2), np.float32))).any()


def test_rounding_by_effect_halves_the_error_of_the_outputs(random: np.random.Generator) -> None:
    seen, unseen = np.split(correlated(random, 4000, 256), 2)
    weights = random.normal(size=(256, 32)).astype(np.float32)
    scales = weight_scales(weights)
    energy = (seen.T @ seen).astype(np.float64)
    codes = to_least_error(weights, scales, energy)
    assert codes.dtype == np.int8
    assert np.abs(codes.astype(int)).max() <= largest_code(BITS)

    def error(chosen: np.ndarray) -> float:
        return float(np.square(unseen @ (chosen * scales) - unseen @ weights).mean())

    assert error(codes) < 0.25 * error(to_nearest(weights, scales))


def test_silent_or_independent_channels_are_rounded_to_the_nearest(random: np.random.Generator) -> None:
    weights = random.normal(size=(200, 4)).astype(np.float32)
    scales = weight_scales(weights)
    assert (to_least_error(weights, scales, np.zeros((200, 200))) == to_nearest(weights, scales)).all()
    independent = to_least_error(weights, scales, np.eye(200) * 3.0)
    assert (independent == to_nearest(weights, scales)).all()


def test_a_range_holds_zero_exactly_and_its_own_ends() -> None:
    limits = Range.of(-0.5, 2.0)
    values = np.array([0.0, -0.5, 2.0, 5.0, -5.0], np.float32)
    assert limits.rounded(values) == pytest.approx([0.0, -0.5, 2.0, 2.0, -0.5], abs=limits.scale / 2)
    assert limits.rounded(np.zeros(1, np.float32))[0] == 0
    assert Range.of(1.0, 2.0).zero == 0
    assert Range.of(0.0, 0.0).rounded(np.zeros(1, np.float32))[0] == 0


def test_width_is_the_largest_value_in_root_mean_squares() -> None:
    rows = np.full((10, 4), 2.0, np.float32)
    assert Activations(rows.min(axis=0) - 100, rows.max(axis=0), rows).width == pytest.approx(49.0)
    assert Activations(rows[0] * 0, rows[0] * 0, rows * 0).width == 0


def test_a_wide_channel_is_smoothed_and_even_ones_are_left_alone(random: np.random.Generator) -> None:
    weights = random.normal(size=(64, 16)).astype(np.float32)

    def lost(rows: np.ndarray, factors: np.ndarray) -> float:
        seen = Activations(rows.min(axis=0), rows.max(axis=0), rows)
        divided = weights / factors[:, None]
        scales = weight_scales(divided)
        made = seen.range(factors).rounded(rows * factors) @ (to_nearest(divided, scales) * scales)
        return float(np.square(made - rows @ weights).mean())

    rows = random.normal(size=(500, 64)).astype(np.float32)
    rows[:, 5] *= 60
    factors = best_factors(Activations(rows.min(axis=0), rows.max(axis=0), rows), [weights[:, :10], weights[:, 10:]])
    assert factors[5] < np.median(factors) / 4
    assert lost(rows, factors) < 0.2 * lost(rows, np.ones(64, np.float32))
    even = np.clip(random.normal(size=(500, 64)), -2, 2).astype(np.float32)
    found = best_factors(Activations(even.min(axis=0), even.max(axis=0), even), [weights])
    assert lost(even, found) <= 1.05 * lost(even, np.ones(64, np.float32))
