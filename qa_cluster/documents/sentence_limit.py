"""The limit of a document's sentences, and whether a text exceeds it.

A shard takes a document into its index in one step, in which it serves nobody else, and that step is as long as the
document has sentences. Eight megabytes of ``a。`` are two million of them. Splitting a text to count them would take
longer than storing it, so most texts are admitted without: by their length, or by the characters that can end a
sentence. Only what may exceed the limit is split, and only until it does.
"""

from __future__ import annotations

import re
from itertools import islice

MAX_SENTENCES = 100_000

# Whatever a sentence or a block of `sentences.py` can end with; what is cut for its length is at least so long.
_MAY_END = re.compile(
    r"[.!?\u2026\n\r\v\f\x1c-\x1e\x85\u2028\u2029\u3002\uff01\uff1f\uff61\uff0e\u203c\u2047\u2048\u2049\u0964\u0965"
    r"\u06d4\u061f\u1362\u1367\u17d5\u104b\u166e]+"
)
_LEAST_PIECE = 64


def most_sentences(text: str, limit: int = MAX_SENTENCES) -> int:
    """A number that the text's sentences do not exceed; above `limit`, it may also be `limit` + 1.

    >>> most_sentences("A cat. No!") >= 2
    True
    """
    pieces = len(text) // _LEAST_PIECE + 1
    return pieces + sum(1 for _ in islice(_MAY_END.finditer(text), max(limit + 1 - pieces, 0)))


def end_of_limit(text: str, limit: int = MAX_SENTENCES) -> int | None:
    """None, or where sentence number `limit` ends (code points) if the text has more sentences than that.

    >>> end_of_limit("A cat. No! Yes.", 2), end_of_limit("A cat. No! Yes.", 3)
    (10, None)
    """
    if len(text) <= limit or most_sentences(text, limit) <= limit:
        return None
    from .sentences import (
        sentence_spans,  # here: its rules take long to load, and few texts need them
    )

    ends = [end for _, end in islice(sentence_spans(text), limit + 1)]
    return ends[limit - 1] if len(ends) > limit else None
