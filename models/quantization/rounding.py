"""Rounds a weight matrix to int8 so that the outputs change little (GPTQ: Frantar et al., 2022, arXiv:2210.17323).

The input channels are rounded one after the other, the channels with most energy first. The error of each channel is
compensated in the channels that are not rounded yet. In the bundled reader, the error of the outputs is half of that
with rounding to the nearest. Pure functions on arrays.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

LARGEST = 127
_DAMPING = 0.01  # this share of the mean energy is added to every channel, because inputs seldom span all directions
_BLOCK = 128  # number of channels whose compensation is applied to all later channels at once


def weight_scales(weights: FloatArray) -> FloatArray:
    """Return [outputs] float32, the int8 step of each output, from `weights` [inputs, outputs]."""
    smallest = np.finfo(np.float32).tiny * LARGEST
    widest: FloatArray = np.maximum(np.abs(weights).max(axis=0), smallest).astype(np.float32)
    return widest / np.float32(LARGEST)


def to_nearest(weights: FloatArray, scales: FloatArray) -> NDArray[np.int8]:
    """Return [inputs, outputs] int8, each weight rounded to the nearest code."""
    codes: NDArray[np.int8] = np.clip(np.rint(weights / scales), -LARGEST, LARGEST).astype(np.int8)
    return codes


def to_least_error(weights: FloatArray, scales: FloatArray, energy: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return [inputs, outputs] int8, rounded so that the outputs change little.

    Args:
        weights: [inputs, outputs] float32.
        scales: [outputs], the step of each output's weights.
        energy: [inputs, inputs], the sum of the outer products of the input rows.
    """
    order = np.argsort(-np.diag(energy), kind="stable")
    damped = energy[np.ix_(order, order)]
    mean = float(np.diag(damped).mean())
    if mean <= 0:
        return to_nearest(weights, scales)
    damped[np.diag_indices(len(damped))] += _DAMPING * mean
    # row i of this factor shows how the channels after i best compensate an error in channel i
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    left = weights[order].astype(np.float32)
    codes = np.empty(left.shape, np.int8)
    for first in range(0, len(left), _BLOCK):
        last = min(first + _BLOCK, len(left))
        errors = np.empty((last - first, left.shape[1]), np.float32)
        for row in range(first, last):
            codes[row] = to_nearest(left[row], scales)
            error = (left[row] - codes[row] * scales) / factor[row, row]
            left[row:last] -= np.outer(factor[row, row:last], error)
            errors[row - first] = error
        left[last:] -= factor[first:last, last:].T @ errors
    restored = np.empty_like(codes)
    restored[order] = codes
    return restored
