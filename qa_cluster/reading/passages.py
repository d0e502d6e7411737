"""Builds the passage that the model reads for a sentence: alone, or with its neighbours, up to a budget of tokens.

Neighbours are whole sentences. They are added alternately before and after the sentence. Each side ends at the first
sentence that does not fit. The passage is built from the stored sentences and their tokens, so nothing is tokenized
again. Each white-space character between two sentences becomes a space, because only the length of the gap is known.
The functions do no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .tokenization import TextTokens

MAX_NEIGHBOURS = 16
"""The maximum number of neighbours on each side."""
MAX_GAP = 64
"""The maximum length of the gap between two sentences that are read together, in code points."""


@dataclass(frozen=True, slots=True)
class PassageSentence:
    """One sentence: its text, its offset in the document in code points, and its tokens."""

    text: str
    start: int
    tokens: TextTokens


@dataclass(frozen=True, slots=True)
class ReadingPassage:
    """A part of a document as the model reads it.

    Attributes:
        text: the text of the sentences. Each white-space character between two sentences is a space.
        start: the offset of the text in the document, in code points.
        tokens: the tokens of all sentences, with their offsets in `text`.
        first: the number of its first sentence in the document.
        begins: the offset of each sentence in `text`.
        breaks: the first token of each sentence except the first sentence. No answer crosses the end of a sentence.
    """

    text: str
    start: int
    tokens: TextTokens
    first: int
    begins: tuple[int, ...] = (0,)
    breaks: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The number of the passage's last sentence in the document."""
        return self.first + len(self.begins) - 1

    def sentence_of(self, position: int) -> int:
        """Return the number of the sentence that contains a code point of `text`; for a gap, the sentence before it."""
        return self.first + bisect_right(self.begins, position) - 1


def around(
    own: PassageSentence, left: Sequence[PassageSentence], right: Sequence[PassageSentence], *, index: int, budget: int
) -> ReadingPassage:
    """Build the passage that is read for a sentence.

    Args:
        own: the sentence.
        left, right: its neighbours, the nearest first; neighbours that do not fit are ignored.
        index: the number of the sentence in the document.
        budget: the maximum number of tokens in the passage; a longer sentence is read alone.
    """
    before, after = reach(
        len(own.tokens.ids),
        [len(part.tokens.ids) for part in left[: _adjacent(own, left, -1)]],
        [len(part.tokens.ids) for part in right[: _adjacent(own, right, 1)]],
        budget,
    )
    return _join([*reversed(left[:before]), own, *right[:after]], index - before)


def reach(own: int, left: Sequence[int], right: Sequence[int], budget: int) -> tuple[int, int]:
    """Return how many neighbours on each side are read with the sentence.

    Args:
        own: the number of tokens of the sentence.
        left, right: the numbers of tokens of its neighbours, the nearest first.
        budget: the maximum number of tokens.

    >>> reach(10, [10, 10], [10, 50, 10], 40)
    (2, 1)
    """
    sides = (left[:MAX_NEIGHBOURS], right[:MAX_NEIGHBOURS])
    taken = [0, 0]
    is_open = [True, True]
    left_over = budget - own
    side = 0
    while any(is_open) and left_over >= 0:
        if is_open[side]:
            following = sides[side][taken[side] :]
            is_open[side] = bool(following) and following[0] <= left_over
            if is_open[side]:
                left_over -= following[0]
                taken[side] += 1
        side = 1 - side
    return taken[0], taken[1]


def _adjacent(own: PassageSentence, side: Sequence[PassageSentence], step: int) -> int:
    """Return how many neighbours on one side can be read with `own`.

    `side` has the neighbours on this side, the nearest first. `step` is 1 for the neighbours after `own`, and -1 for
    the neighbours before `own`. The count ends before the first neighbour that overlaps the sentence next to it, or
    that is separated from this sentence by a gap longer than `MAX_GAP`.
    """
    near = own
    for count, far in enumerate(side):
        low, high = (near, far) if step > 0 else (far, near)
        if not 0 <= high.start - low.start - len(low.text) <= MAX_GAP:
            return count
        near = far
    return len(side)


def _join(parts: Sequence[PassageSentence], first: int) -> ReadingPassage:
    start = parts[0].start
    if len(parts) == 1:
        return ReadingPassage(parts[0].text, start, parts[0].tokens, first)
    pieces: list[str] = []
    end = start
    for part in parts:
        pieces += (" " * (part.start - end), part.text)
        end = part.start + len(part.text)
    begins = [part.start - start for part in parts]
    tokens = TextTokens(
        np.concatenate([part.tokens.ids for part in parts]),
        np.concatenate([part.tokens.starts + begin for part, begin in zip(parts, begins, strict=True)]),
        np.concatenate([part.tokens.ends + begin for part, begin in zip(parts, begins, strict=True)]),
    )
    breaks = np.cumsum([len(part.tokens.ids) for part in parts[:-1]]).tolist()
    return ReadingPassage("".join(pieces), start, tokens, first, tuple(begins), tuple(breaks))
