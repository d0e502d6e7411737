"""Checks whether a text exceeds the limit of sentences per document.

A shard indexes a document in one step, during which it serves no other client. Each sentence makes the step longer, and
8 MB of ``a。`` have two million sentences. Counting sentences needs a split, which takes longer than storing the text.
So most texts are accepted without a split, because their length, or the number of their characters that can end a
sentence, shows that they are within the limit. Only a text that may exceed the limit is split, and only up to the
limit.
"""

from __future__ import annotations

import re
from itertools import islice

MAX_SENTENCES = 100_000

# All characters that can end a sentence or a block in `sentences.py`.
_MAY_END = re.compile(
    r"[.!?\u2026\n\r\v\f\x1c-\x1e\x85\u2028\u2029\u3002\uff01\uff1f\uff61\uff0e\u203c\u2047\u2048\u2049\u0964\u0965"
    r"\u06d4\u061f\u1362\u1367\u17d5\u104b\u166e]+"
)
# The pieces that are cut from long sentences have at least this length on average, in code points.
_LEAST_PIECE = 64


def most_sentences(text: str, limit: int = MAX_SENTENCES) -> int:
    """Return an upper bound of the number of sentences of a text.

    The count stops as soon as the bound exceeds `limit`. A result above `limit` therefore says only that the text may
    have more than `limit` sentences.

    >>> most_sentences("A cat. No!") >= 2
    True
    """
    pieces = len(text) // _LEAST_PIECE + 1
    return pieces + sum(1 for _ in islice(_MAY_END.finditer(text), max(limit + 1 - pieces, 0)))


def end_of_limit(text: str, limit: int = MAX_SENTENCES) -> int | None:
    """Return the end of sentence number `limit` (counted from 1), in code points; None if no sentence follows it.

    >>> end_of_limit("A cat. No! Yes.", 2), end_of_limit("A cat. No! Yes.", 3)
    (10, None)
    """
    if len(text) <= limit or most_sentences(text, limit) <= limit:
        return None
    # A late import: the rules take long to load, and few texts need them.
    from .sentences import sentence_spans

    ends = [end for _, end in islice(sentence_spans(text), limit + 1)]
    return ends[limit - 1] if len(ends) > limit else None
