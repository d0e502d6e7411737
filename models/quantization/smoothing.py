"""Scales the channels of an activation so that quantizing it and its weights to int8 loses least.

An activation becomes int8 with one step for all its channels, and a few channels of transformers are many times as wide
as the rest. SmoothQuant (Xiao et al., 2022, arXiv:2211.10438) divides wide channels and multiplies their weights by the
same: the factors are `weight_max ** (1 - strength) / activation_max ** strength`, and a greater strength moves more of
the range into the weights. The best strength differs much between the places of a network, so it is searched for each
of them, by the error of the outputs on a sample. Pure functions on arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .rounding import to_nearest, weight_scales

FloatArray = NDArray[np.float32]

STRENGTHS = (0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)
STEPS = 255
_SMALLEST = 1e-5
# `rounding` later removes about half of the weights' error, and so three quarters of its square
_WEIGHT_ERROR_LEFT = 0.25


@dataclass(frozen=True, slots=True)
class Range:
    """How values become uint8: `value / scale + zero`, rounded and cut off at 0 and 255."""

    scale: float
    zero: int

    @classmethod
    def of(cls, lowest: float, highest: float) -> "Range":
        """The range from `lowest` to `highest`, widened to hold 0."""
        low, high = min(lowest, 0.0), max(highest, 0.0)
        scale = max((high - low) / STEPS, float(np.finfo(np.float32).tiny))
        return cls(scale, round(-low / scale))

    def rounded(self, values: FloatArray) -> FloatArray:
        """Return `values` converted to uint8 and back."""
        codes = np.clip(np.rint(values / np.float32(self.scale)) + self.zero, 0, STEPS)
        values = (codes - self.zero) * self.scale
        return values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Activations:
    """The recorded values of a tensor: the least and greatest of each channel [channels], and some rows."""

    least: FloatArray
    greatest: FloatArray
    rows: FloatArray

    @property
    def width(self) -> float:
        """The largest absolute value, in multiples of the root mean square of the rows."""
        widest = max(float(np.abs(self.least).max()), float(np.abs(self.greatest).max()))
        return widest / max(float(np.sqrt(np.square(self.rows).mean())), float(np.finfo(np.float32).tiny))

    def range(self, factors: FloatArray) -> Range:
        """The range of all its channels after multiplication by `factors` [channels]."""
        return Range.of(float((self.least * factors).min()), float((self.greatest * factors).max()))


def best_factors(seen: Activations, weights: Sequence[FloatArray]) -> FloatArray:
    """Return [channels] float32: the factors for the activation, by which the weights' rows are to be divided.

    Args:
        seen: the activation in float32.
        weights: the matrices [channels, outputs] that it is multiplied by.
    """
    matrix = np.concatenate(list(weights), axis=1)
    wide = np.maximum(np.maximum(np.abs(seen.least), np.abs(seen.greatest)), _SMALLEST)
    heavy = np.maximum(np.abs(matrix).max(axis=1), _SMALLEST)
    expected = seen.rows @ matrix
    found, least = np.ones_like(wide), np.inf
    for strength in (None, *STRENGTHS):
        factors = np.ones_like(wide) if strength is None else heavy ** (1 - strength) / wide**strength
        factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        error = _error(seen, matrix, expected, factors)
        if error < least:
            found, least = factors, error
    return found


def _error(seen: Activations, matrix: FloatArray, expected: FloatArray, factors: FloatArray) -> float:
    """The mean squared error of the outputs, with the weights' part reduced by what `rounding` will remove."""
    scaled, divided = seen.rows * factors, matrix / factors[:, None]
    scales = weight_scales(divided)
    of_activation = seen.range(factors).rounded(scaled) @ divided - expected
    of_weights = scaled @ (to_nearest(divided, scales) * scales) - expected
    return float(np.square(of_activation).mean() + _WEIGHT_ERROR_LEFT * np.square(of_weights).mean())
