"""Scales the channels of an activation so that int8 loses little (SmoothQuant: Xiao et al., 2022, arXiv:2211.10438).

An int8 activation has one step (the difference between the values of two neighbouring codes) for all channels, but a
few channels of transformers are many times as wide as the others. SmoothQuant multiplies each channel by a factor, and
divides the weights of the channel by the same factor. The factors are proportional to
`weight_max ** (1 - strength) / activation_max ** strength`. So wide channels get small factors, and a higher strength
moves more of the range into the weights. The best strength depends on the activation. So the strength is chosen for
each activation by the error of the outputs on a sample. All functions are pure functions on arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .rounding import BITS, to_nearest, weight_scales

FloatArray = NDArray[np.float32]

STRENGTHS = (0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)
STEPS = 255
_SMALLEST = 1e-5
# The share of the squared error of the weights that remains after `rounding`. It removes about half of the error, which
# is three quarters of the squared error.
_WEIGHT_ERROR_LEFT = 0.25


@dataclass(frozen=True, slots=True)
class Range:
    """The conversion of values to uint8: `value / scale + zero`, rounded and limited to 0 to 255."""

    scale: float
    zero: int

    @classmethod
    def of(cls, lowest: float, highest: float) -> "Range":
        """Return the range from `lowest` to `highest`, widened to contain 0."""
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
    """The recorded values of a tensor: the minimum and the maximum of each channel, [channels], and some rows, [rows,
    channels].
    """

    least: FloatArray
    greatest: FloatArray
    rows: FloatArray

    @property
    def width(self) -> float:
        """The largest absolute value divided by the root mean square of the rows."""
        widest = max(float(np.abs(self.least).max()), float(np.abs(self.greatest).max()))
        return widest / max(float(np.sqrt(np.square(self.rows).mean())), float(np.finfo(np.float32).tiny))

    def range(self, factors: FloatArray) -> Range:
        """Return the common range of all channels after each channel is multiplied by its factor in `factors`
        [channels].
        """
        return Range.of(float((self.least * factors).min()), float((self.greatest * factors).max()))


def best_factors(seen: Activations, weights: Sequence[FloatArray], bits: int = BITS) -> FloatArray:
    """Return [channels] float32, the factors of the activation. The rows of the weights must be divided by these
    factors.

    Args:
        seen: the float32 activation.
        weights: the matrices [channels, outputs] by which the activation is multiplied.
        bits: the number of bits of a weight's code.
    """
    matrix = np.concatenate(list(weights), axis=1)
    wide = np.maximum(np.maximum(np.abs(seen.least), np.abs(seen.greatest)), _SMALLEST)
    heavy = np.maximum(np.abs(matrix).max(axis=1), _SMALLEST)
    expected = seen.rows @ matrix
    found, least = np.ones_like(wide), np.inf
    for strength in (None, *STRENGTHS):
        factors = np.ones_like(wide) if strength is None else heavy ** (1 - strength) / wide**strength
        factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        error = _error(seen, matrix, expected, factors, bits)
        if error < least:
            found, least = factors, error
    return found


def _error(seen: Activations, matrix: FloatArray, expected: FloatArray, factors: FloatArray, bits: int) -> float:
    """Return the mean squared error of the outputs that int8 with these factors gives, compared with `expected`, the
    float32 outputs.

    The error of the weights counts only in part, because `rounding` removes some of it.
    """
    scaled, divided = seen.rows * factors, matrix / factors[:, None]
    scales = weight_scales(divided, bits)
    of_activation = seen.range(factors).rounded(scaled) @ divided - expected
    of_weights = scaled @ (to_nearest(divided, scales, bits) * scales) - expected
    return float(np.square(of_activation).mean() + _WEIGHT_ERROR_LEFT * np.square(of_weights).mean())
