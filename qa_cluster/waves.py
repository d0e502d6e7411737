"""Waves: the sentences found for a question are read a few at a time, until the reader is sure enough of an answer.

Both halves of the rule are here: how many sentences each wave reads, and after which wave reading stops. Services use
it (`asking/asker.py`), and so does the export, which fits the score that is sure enough (`wave_threshold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

# How many sentences have been read after each wave, unless the setting `waves` says otherwise.
WAVES = (2, 6, 16)


def wave_ends(waves: Sequence[int], sentences: int) -> list[int]:
    """How many of `sentences` have been read after each wave; the last wave reads all that are left.

    >>> wave_ends((2, 6, 16), 8), wave_ends((), 8), wave_ends((2, 6, 16), 0)
    ([2, 6, 8], [8], [])
    """
    return [*(end for end in waves if end < sentences), sentences] if sentences else []


def certainty(orders: Iterable[float]) -> float:
    """How sure the reader is after a wave: the best order (`reading/choosing.py`) of all spans that have been read.

    >>> certainty([-2.5, 7.0, 1.0]), certainty([])
    (7.0, -inf)
    """
    return max(orders, default=-inf)


def is_sure(certainty: float, threshold: float) -> bool:
    """Whether no further wave is read.

    >>> is_sure(7.0, 7.0), is_sure(6.9, 7.0)
    (True, False)
    """
    return certainty >= threshold
