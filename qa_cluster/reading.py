"""Decodes a reader's logits into spans of a sentence.

A span is scored against the null answer, the logits at ``[CLS]``; it lies within the sentence's tokens, is at most
``max_answer_tokens`` long, and begins and ends at whole words. Pure functions on arrays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .windows import Window

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

# Scripts whose words are not separated: a word there cannot be completed by looking for its edges.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Span:
    """One reading of a sentence: code points ``start`` to ``end`` of it.

    Attributes:
        score: logit over the null answer's; positive means that the reader prefers this span to no answer.
        logit: start logit plus end logit.
    """

    start: int
    end: int
    score: float
    logit: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The best spans of one passage, best first, and the score of the null answer: the least of its windows'."""

    spans: list[Span]
    null_logit: float


def best_spans(
    start_logits: npt.ArrayLike,
    end_logits: npt.ArrayLike,
    offsets: tuple[IntArray, IntArray],
    sentence: str,
    *,
    sentence_start: int,
    max_answer_tokens: int,
    n_best: int = 1,
) -> Reading:
    """Best spans of a sentence whose tokens begin at position ``sentence_start`` of the logits.

    Args:
        start_logits, end_logits: one value per input token; position 0 is ``[CLS]``. Padding at the end is ignored.
        offsets: first and last code point of each sentence token; as many tokens as are in the input.
        sentence: its text, to complete words.
        n_best: how many distinct spans to return at most.
    """
    start_row = np.asarray(start_logits, dtype=np.float32).reshape(-1)
    end_row = np.asarray(end_logits, dtype=np.float32).reshape(-1)
    null_logit = float(start_row[0] + end_row[0])
    starts, ends = offsets
    length = min(len(starts), len(start_row) - sentence_start)
    if length < 1:
        return Reading([], null_logit)
    usable = ends[:length] > starts[:length]
    begin = np.where(usable, start_row[sentence_start : sentence_start + length], -np.inf)
    finish = np.where(usable, end_row[sentence_start : sentence_start + length], -np.inf)
    # Row i holds the ends i .. i + width - 1 that a span starting at i may have.
    width = min(max_answer_tokens, length)
    padded = np.concatenate([finish, np.full(width - 1, -np.inf, dtype=np.float32)])
    scores = begin[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    flat = scores.reshape(-1)
    # Several token spans may complete to the same words, so a few more are looked at than asked for.
    wanted = min(len(flat), 4 * n_best + 4) if n_best > 1 else 1
    order = [int(flat.argmax())] if wanted == 1 else _largest(flat, wanted)
    spans: dict[tuple[int, int], Span] = {}
    for position in order:
        logit = float(flat[position])
        if not np.isfinite(logit):
            break
        first, extra = divmod(position, width)
        edges = whole_words(sentence, int(starts[first]), int(ends[first + extra]))
        if edges not in spans and edges[0] < edges[1]:
            spans[edges] = Span(*edges, logit - null_logit, logit)
            if len(spans) == n_best:
                break
    return Reading(list(spans.values()), null_logit)


def best_of_windows(
    windows: Sequence[Window],
    logits: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
    offsets: tuple[IntArray, IntArray],
    passage: str,
    *,
    max_answer_tokens: int,
    n_best: int = 1,
) -> Reading:
    """Best spans of a passage that was read in windows, on one scale: each over the null answer of its own window.

    Args:
        windows, logits: the windows, and start and end logits of each.
        offsets: first and last code point of each token of the whole passage.
        passage, max_answer_tokens, n_best: as in `best_spans`.
    """
    starts, ends = offsets
    readings = [
        best_spans(
            start,
            end,
            (starts[window.first : window.first + window.tokens], ends[window.first : window.first + window.tokens]),
            passage,
            sentence_start=window.passage_start,
            max_answer_tokens=max_answer_tokens,
            n_best=n_best,
        )
        for window, (start, end) in zip(windows, logits, strict=True)
    ]
    if len(readings) == 1:
        return readings[0]
    best: dict[tuple[int, int], Span] = {}
    for span in sorted((span for reading in readings for span in reading.spans), key=lambda span: -span.score):
        best.setdefault((span.start, span.end), span)
    null_logit = min((reading.null_logit for reading in readings), default=0.0)
    return Reading(list(best.values())[:n_best], null_logit)


def _largest(values: npt.NDArray[np.float32], count: int) -> list[int]:
    """Positions of the largest values, largest first, the earlier one first among equals."""
    top = np.argpartition(-values, count - 1)[:count] if count < len(values) else np.arange(len(values))
    order: list[int] = top[np.lexsort((top, -values[top]))].tolist()
    return order


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """A span of text widened to the words it begins and ends in, without white space at its ends.

    >>> whole_words("unhappiness rules", 2, 5)
    (0, 11)
    """
    end = min(end, len(text))
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start >= end:
        return start, start
    while start > 0 and _same_word(text[start - 1], text[start]):
        start -= 1
    while end < len(text) and _same_word(text[end - 1], text[end]):
        end += 1
    return start, end


def _same_word(left: str, right: str) -> bool:
    if not (left.isalnum() and right.isalnum()):
        return False
    return (left.isascii() and right.isascii()) or not (_UNSPACED.match(left) or _UNSPACED.match(right))
