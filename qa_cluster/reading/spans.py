"""Decodes a reader's logits into spans of a passage. A passage is a sentence with or without neighbours, or any text.

A span's score is relative to the null answer: the logits at the first position (`[CLS]`) of its window. So spans of all
windows, sentences and documents have the same scale. A span is inside the passage, has at most `max_answer_tokens`
tokens, and is widened to whole words. The functions are pure and work on arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InferenceFailed

from .tokenization import TextTokens
from .windows import Window
from .words import can_answer, whole_pairs, whole_words

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
Logits = tuple[npt.ArrayLike, npt.ArrayLike]

# The maximum number of spans per window that are refused because their words cannot be an answer. A window rarely has
# more than one such span.
MAX_REFUSED = 64


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A possible answer: code points ``start`` to ``end`` of a passage.

    Attributes:
        score: the logit minus the null answer's logit. If it is positive, the reader prefers the span to "no answer".
        logit: the start logit plus the end logit.
    """

    start: int
    end: int
    score: float
    logit: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The best spans of one passage, the best first, and the lowest null logit of all windows."""

    spans: list[AnswerSpan]
    null_logit: float


def best_spans(
    windows: Sequence[Window],
    logits: Sequence[Logits],
    tokens: TextTokens,
    passage: str,
    *,
    max_answer_tokens: int,
    n_best: int = 1,
    overlapping: bool = True,
    breaks: Sequence[int] = (),
) -> Reading:
    """Return the best spans of a passage, from the logits of its windows.

    Args:
        windows: the windows of the passage.
        logits: the start and end logits of each window, one value per input token. Position 0 is the null answer.
            Padding at the end is ignored.
        tokens: the tokens of the whole passage.
        passage: the text of the passage, which is needed to complete words.
        max_answer_tokens: the maximum number of tokens in a span.
        n_best: the maximum number of spans; the spans are distinct.
        overlapping: whether spans may share words and may be any text. If false, a span is left out if it overlaps a
            better span or cannot be an answer (`words.can_answer`). No span then starts or ends with half a pair of
            quotation marks or brackets.
        breaks: the numbers of the tokens that start a sentence. No span crosses the start of a sentence.

    Raises:
        InferenceFailed: a logit is infinite or not a number.
    """
    found: list[AnswerSpan] = []
    nulls = []
    edges = [int(tokens.starts[number]) for number in breaks if number < len(tokens.starts)]
    for window, (start_logits, end_logits) in zip(windows, logits, strict=True):
        scores = _WindowScores(window, start_logits, end_logits, tokens, max_answer_tokens, edges=edges)
        nulls.append(scores.null_logit)
        if scores.tokens:
            for number in breaks:
                scores.end_before(number - window.first)
            found += scores.spans(passage, n_best) if overlapping else scores.spans_apart(passage, n_best)
    if len(windows) > 1:
        found = _of_all_windows(found, n_best, overlapping)
    return Reading(found, min(nulls, default=0.0))


def _of_all_windows(spans: list[AnswerSpan], n_best: int, overlapping: bool) -> list[AnswerSpan]:
    """Merge the spans of several windows into the best spans.

    A span that two windows found is kept once, with its better score. If `overlapping` is false, a span that overlaps a
    better span is left out.
    """
    kept: list[AnswerSpan] = []
    for span in sorted(spans, key=lambda span: (-span.score, span.start, span.end)):
        if overlapping:
            fits = all((span.start, span.end) != (other.start, other.end) for other in kept)
        else:
            fits = all(span.end <= other.start or other.end <= span.start for other in kept)
        if fits:
            kept.append(span)
            if len(kept) == n_best:
                break
    return kept


class _WindowScores:
    """The scores of all spans of a window: row i, column k is the score of the span from token i to token i + k.

    `longest` is the maximum number of tokens in a span. Memory grows with the number of tokens times `longest`, not
    with the square of the number of tokens. A span is widened to whole words, but never across one of the `edges`: the
    code points of the passage at which sentences start, ascending.
    """

    def __init__(
        self,
        window: Window,
        start_logits: npt.ArrayLike,
        end_logits: npt.ArrayLike,
        tokens: TextTokens,
        longest: int,
        *,
        edges: Sequence[int],
    ) -> None:
        self._edges = edges
        start_row = np.asarray(start_logits, dtype=np.float32).reshape(-1)
        end_row = np.asarray(end_logits, dtype=np.float32).reshape(-1)
        self.null_logit = float(start_row[0] + end_row[0])
        if not isfinite(self.null_logit):
            raise InferenceFailed(f"the model's null answer has the logit {self.null_logit}, which is not finite")
        first, place = window.first, window.passage_start
        length = min(window.tokens, len(start_row) - place)
        self.tokens = length = max(length, 0)
        if not length:
            return
        self.starts, self.ends = tokens.starts[first : first + length], tokens.ends[first : first + length]
        self.width = width = min(longest, length)
        padded = np.full(length + width - 1, -inf, dtype=np.float32)
        padded[:length] = end_row[place : place + length]
        begin = start_row[place : place + length]
        usable = self.ends > self.starts
        if not usable.all():  # a token without text neither starts nor ends a span
            begin = np.where(usable, begin, -inf)
            padded[:length][~usable] = -inf
        # Row i of this view is padded[i : i + width], as from sliding_window_view, but at a tenth of the cost.
        ends_of = np.ndarray((length, width), np.float32, padded, 0, (padded.itemsize, padded.itemsize))
        with np.errstate(invalid="ignore", over="ignore"):  # `_logit` refuses values that are not finite
            self.scores: FloatArray = begin[:, None] + ends_of

    def spans_apart(self, passage: str, n_best: int) -> list[AnswerSpan]:
        """Return up to `n_best` spans that can be answers and share no word, the best first."""
        found: list[AnswerSpan] = []
        for _ in range(self.tokens + MAX_REFUSED):
            position = int(self.scores.argmax())
            logit = self._logit(position)
            if logit == -inf:
                break
            row, extra = divmod(position, self.width)
            start, end = self._words(passage, row, row + extra)
            if start < end and not can_answer(passage[start:end]):
                self.scores[row, extra] = -inf  # a longer span around this span may be an answer
                continue
            start, end = whole_pairs(passage, start, end, *self._limits(start))
            if start < end and all(end <= other.start or other.end <= start for other in found):
                found.append(AnswerSpan(start, end, logit - self.null_logit, logit))
                if len(found) == n_best:
                    break
            self._take_out(row, row + extra, start, end)
        return found

    def _logit(self, position: int) -> float:
        logit = float(self.scores.flat[position])
        if not isfinite(logit) and logit != -inf:
            raise InferenceFailed("the model's logits are not finite: its precision may be too low for its weights")
        return logit

    def _words(self, passage: str, first: int, last: int) -> tuple[int, int]:
        """Return the start and the end of the whole words to which tokens `first` to `last` (inclusive) belong.

        Start and end are code points of the passage, half-open.
        """
        start, end = int(self.starts[first]), int(self.ends[last])
        return whole_words(passage, start, end, *self._limits(start))

    def _limits(self, start: int) -> tuple[int, int | None]:
        """Return the lowest start and the highest end of a span that contains the code point `start`.

        These are the edges around this code point. An end of None means the end of the passage.
        """
        if not self._edges:
            return 0, None
        following = bisect_right(self._edges, start)
        low = self._edges[following - 1] if following else 0
        return low, self._edges[following] if following < len(self._edges) else None

    def _take_out(self, first: int, last: int, start: int, end: int) -> None:
        """Exclude all spans that have a token from `first` to `last` (inclusive) or a token in a range of code points.

        The range is from `start` to `end`, half-open. An excluded span gets the score minus infinity.
        """
        first = min(first, int(self.ends.searchsorted(start, "right")))
        last = max(last, int(self.starts.searchsorted(end, "left")) - 1)
        self.scores[first : last + 1] = -inf
        self.end_before(first)

    def end_before(self, token: int) -> None:
        """Exclude all spans that start before a token and contain this token.

        `token` is the number of the token in the window. A number outside of the window excludes no span.
        """
        rows = min(token, self.width - 1)
        if rows > 0 and token < self.tokens:
            reaching = _reaching(self.width)[self.width - 1 - rows :]
            np.copyto(self.scores[token - rows : token], -inf, where=reaching)

    def spans(self, passage: str, n_best: int) -> list[AnswerSpan]:
        """Return up to `n_best` different spans, the best first."""
        found: dict[tuple[int, int], AnswerSpan] = {}
        for position in self._best_first(n_best):
            logit = self._logit(position)
            if logit == -inf:
                break
            row, extra = divmod(position, self.width)
            start, end = self._words(passage, row, row + extra)
            if start < end and (start, end) not in found:
                found[start, end] = AnswerSpan(start, end, logit - self.null_logit, logit)
                if len(found) == n_best:
                    break
        return list(found.values())

    def _best_first(self, n_best: int) -> Iterator[int]:
        """Yield positions in the flattened `scores`, the position with the best score first.

        `n_best` is the number of spans that the caller wants. All positions are yielded if needed, because several
        positions may give the same words.
        """
        flat = self.scores.reshape(-1)
        best = int(flat.argmax())
        self._logit(best)  # argmax finds a NaN if there is one; the sort below would put it last
        if n_best == 1:
            yield best
        yielded, wanted = 0, min(len(flat), 4 * n_best + 4)
        while yielded < len(flat):
            yield from _largest(flat, wanted)[yielded:]
            yielded, wanted = wanted, min(len(flat), 4 * wanted)


@lru_cache(maxsize=64)
def _reaching(width: int) -> npt.NDArray[np.bool_]:
    """Return a mask [width - 1, width] of the spans that start before a token and contain the token.

    The mask is for the rows of the scores (`_WindowScores`) of the `width` - 1 tokens before this token.
    """
    distance = np.arange(width - 1, 0, -1)
    mask: npt.NDArray[np.bool_] = np.arange(width)[None, :] >= distance[:, None]
    return mask


def _largest(values: FloatArray, count: int) -> list[int]:
    """Return the positions of the `count` largest values, the largest first.

    Equal values are sorted by their positions.
    """
    top = np.argpartition(-values, count - 1)[:count] if count < len(values) else np.arange(len(values))
    order: list[int] = top[np.lexsort((top, -values[top]))].tolist()
    return order
