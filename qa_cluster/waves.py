"""Waves: the sentences found for a question are read a few at a time, until the reader is sure enough of an answer.

Services read in waves, and the export fits the score that is sure enough (the manifest's `wave_threshold`) to the same.
"""

from __future__ import annotations

from collections.abc import Sequence

# How many sentences have been read after each wave, unless the setting `waves` says otherwise.
WAVES = (1, 3, 8)


def wave_ends(waves: Sequence[int], sentences: int) -> list[int]:
    """How many of so many sentences have been read after each wave; the last one reads all that are left.

    >>> wave_ends((1, 3, 8), 5), wave_ends((), 5), wave_ends((1, 3, 8), 0)
    ([1, 3, 5], [5], [])
    """
    return [*(end for end in waves if end < sentences), sentences] if sentences else []
