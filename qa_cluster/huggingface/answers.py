"""The steps before and after the model in the question-answering pipeline of transformers.

transformers removed this pipeline in release 5.3. Windows, scores and the merging of equal answers follow release
4.57.6 of transformers (`transformers/pipelines/question_answering.py`), so that users get the same answers as before.

The local pipeline and the shards share this module, but each runs the model itself. The functions are pure: they work
on text and arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InputTooLong, InvalidInput, ModelError
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.tokenization import QuestionTokens, ReaderTokenizer, TextTokens
from qa_cluster.reading.windows import Window

from .parameters import Parameters

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
Answer = dict[str, float | int | str]

# The defaults of release 4.57.6. If the model's limit (`Manifest.max_tokens`) is lower than `WINDOW_TOKENS`, the limit
# replaces it. By default, neighbouring windows share at most half of a window.
WINDOW_TOKENS = 384
STRIDE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class TokenizedContext:
    """The tokens of a context. `words` has the number of each token's word; -1 for a token that belongs to no word."""

    text: str
    tokens: TextTokens
    words: IntArray


@dataclass(frozen=True, slots=True)
class Prepared:
    """A question and a context as input of the reader. There are no windows if the context has no token."""

    context: TokenizedContext
    windows: list[Window]
    question_truncated: bool


class Preparer:
    """Splits pairs of question and context into windows.

    It caches the tokens of the last context, because successive questions often have the same context.

    >>> prepared = Preparer(tokenizer, manifest).prepare("Who?", "Ada Lovelace wrote it.", Parameters())
    >>> len(prepared.windows)
    1
    """

    def __init__(self, tokenizer: ReaderTokenizer, manifest: Manifest) -> None:
        self._tokenizer = tokenizer
        self._manifest = manifest
        self._last: TokenizedContext | None = None

    def prepare(
        self, question: str, context: str, parameters: Parameters, *, max_windows: int | None = None
    ) -> Prepared:
        """Return the windows of one pair of question and context.

        Raises:
            InvalidInput: the question is too long for the model, the parameters leave no tokens for the context, or
                `doc_stride` is too large.
            InputTooLong: there are more than `max_windows` windows; None means no limit.
        """
        asked = self._question(question, parameters)
        tokenized = self.tokenized(context)
        cuts = self._cuts(len(asked.ids), len(tokenized.tokens.ids), parameters)
        if max_windows is not None and len(cuts) > max_windows:
            raise InputTooLong(
                f"context of {len(tokenized.tokens.ids)} tokens takes {len(cuts)} windows, the limit is {max_windows}: "
                "a smaller doc_stride or a larger max_seq_len reduces their number"
            )
        pair = self._manifest.pair
        head = np.array((*pair.head, *asked.ids, *pair.middle), dtype=np.int64)
        windows = []
        for start, end in cuts:
            ids = np.concatenate((head, tokenized.tokens.ids[start:end], pair.tail), dtype=np.int64)
            windows.append(Window(ids, len(head), start, end - start))
        return Prepared(tokenized, windows, asked.truncated)

    def tokenized(self, text: str) -> TokenizedContext:
        """Return the tokens of a context. If it equals the last context, its tokens are not computed again."""
        last = self._last
        if last is None or last.text != text:
            last = self._last = TokenizedContext(text, *self._tokenizer.encode_words(text))
        return last

    def _question(self, question: str, parameters: Parameters) -> QuestionTokens:
        """Return the tokens of a question. As in release 4.57.6, a question is cut off only if `max_question_len` is
        set.
        """
        limit = self._manifest.max_tokens if parameters.max_question_len is None else parameters.max_question_len
        asked = self._tokenizer.encode_question(question, limit)
        if asked.truncated and parameters.max_question_len is None:
            raise InvalidInput(
                f"question has more than {limit} tokens, the limit of this model: shorten it, or set"
                " max_question_len to have its end cut off"
            )
        return asked

    def _cuts(self, question: int, context: int, parameters: Parameters) -> list[tuple[int, int]]:
        """Return the start and end (exclusive) of each window, in tokens of the context.

        `question` and `context` are the numbers of tokens of the question and of the context. As in release 4.57.6, the
        last window may be short.
        """
        longest = self._manifest.max_tokens
        asked = WINDOW_TOKENS if parameters.max_seq_len is None else parameters.max_seq_len
        window = min(asked, longest)  # release 4.57.6 failed on texts that filled a longer window
        stride = min(window // 2, STRIDE_TOKENS) if parameters.doc_stride is None else parameters.doc_stride
        if stride > max(asked, window):
            raise InvalidInput(f"doc_stride is {stride}, larger than max_seq_len {asked}")
        room = window - question - self._manifest.pair.special_tokens
        if room < 1:
            raise InvalidInput(
                f"question of {question} tokens leaves no tokens for the context in max_seq_len {window}, of which"
                f" {self._manifest.pair.special_tokens} are special tokens"
            )
        if context <= room:
            return [(0, context)] if context else []
        if stride >= room:
            if parameters.doc_stride is not None:
                raise InvalidInput(
                    f"doc_stride is {stride}, must be less than {room}: the tokens that max_seq_len {window}"
                    f" leaves for the context with a question of {question} tokens"
                )
            stride = room // 2  # release 4.57.6 panicked here
        last = max(0, -(-(context - room) // (room - stride)))
        starts = range(0, (last + 1) * (room - stride), room - stride)
        return [(start, min(start + room, context)) for start in starts]


class Answers:
    """Collects the answers to a pair of question and context from the logits of its windows, which must come in order.

    The score of a candidate is the probability of its start times the probability of its end. The probabilities are
    softmaxes of the start logits and of the end logits, over the window's context tokens and its null position: the
    first token, which means "no answer". Candidates whose texts differ only in case are one answer. Their scores are
    added up and can exceed 1, as in transformers.
    """

    def __init__(self, prepared: Prepared, parameters: Parameters) -> None:
        self._context = prepared.context
        self._parameters = parameters
        self._found: dict[str, Answer] = {}
        self._null_score: float | None = None

    def add(self, window: Window, start_logits: npt.ArrayLike, end_logits: npt.ArrayLike) -> None:
        """Add the logits of the next window: one start and one end logit for each token. Logits of padding are
        ignored.
        """
        parameters = self._parameters
        starts = _probabilities(start_logits, window)
        ends = _probabilities(end_logits, window)
        if parameters.handle_impossible_answer:
            null_score = float(starts[0] * ends[0])
            self._null_score = null_score if self._null_score is None else min(self._null_score, null_score)
        # more candidates than answers: alignment merges some of them
        wanted = parameters.top_k * 2 + 10 if parameters.align_to_words else parameters.top_k
        for score, first, last in _best(starts[1:], ends[1:], parameters.max_answer_len, wanted):
            start, end = self._place(window, first, last)
            text = self._context.text[start:end]
            known = self._found.get(text.lower())
            if known is None:
                self._found[text.lower()] = {"score": score, "start": start, "end": end, "answer": text}
            else:
                known["score"] = float(known["score"]) + score

    def result(self) -> Answer | list[Answer]:
        """Return the only answer without a list, or a list of up to `top_k` answers, the best first."""
        answers = list(self._found.values())
        if self._parameters.handle_impossible_answer:
            # without context tokens, the null answer has all the probability
            answers.append(_empty(1.0 if self._null_score is None else self._null_score))
        elif not answers:
            answers.append(_empty(0.0))
        answers.sort(key=lambda answer: float(answer["score"]), reverse=True)
        del answers[self._parameters.top_k :]
        return answers[0] if len(answers) == 1 else answers

    def _place(self, window: Window, first: int, last: int) -> tuple[int, int]:
        """Return the start and end (exclusive) of a span of context tokens, in code points of the context.

        `first` and `last` (inclusive) count from the first token of the context in the window.
        If answers are aligned to words, the span is widened to whole words, as far as the window contains them.
        """
        low, high = window.first, window.first + window.tokens
        first, last = low + first, low + last
        words = self._context.words
        if self._parameters.align_to_words and words[first] >= 0 and words[last] >= 0:
            while first > low and words[first - 1] == words[first]:
                first -= 1
            while last + 1 < high and words[last + 1] == words[last]:
                last += 1
        return int(self._context.tokens.starts[first]), int(self._context.tokens.ends[last])


def _empty(score: float) -> Answer:
    return {"score": score, "start": 0, "end": 0, "answer": ""}


def _probabilities(logits: npt.ArrayLike, window: Window) -> FloatArray:
    """Return the softmax over the logits of the null position and of the context. The null position is first."""
    row = np.asarray(logits, dtype=np.float32).reshape(-1)
    context = row[window.passage_start : window.passage_start + window.tokens]
    chosen = np.concatenate((row[:1], context))
    if len(context) != window.tokens or not np.isfinite(chosen).all():
        raise ModelError(
            f"model gave {len(row)} logits for {len(window.input_ids)} tokens"
            if len(context) != window.tokens
            else "model gave logits that are not finite numbers"
        )
    raised = np.exp(chosen - chosen.max())
    result: FloatArray = raised / raised.sum()
    return result


def _best(starts: FloatArray, ends: FloatArray, longest: int, wanted: int) -> Sequence[tuple[float, int, int]]:
    """Return the `wanted` most probable spans of at most `longest` tokens, the best first.

    `starts` and `ends` have the probabilities of each context token in the window. A span is its score, its first token
    and its last token (inclusive).
    """
    count = len(starts)
    width = min(longest, count)
    # row i has the ends i .. i + width - 1 that a span starting at i may have
    padded = np.concatenate((ends, np.zeros(width - 1, dtype=np.float32)))
    scores = starts[:, None] * np.lib.stride_tricks.sliding_window_view(padded, width)
    within = np.arange(count)[:, None] + np.arange(width) < count
    flat = np.where(within, scores, np.float32(-1)).reshape(-1)
    if wanted == 1:
        order = [int(flat.argmax())]
    else:
        top = np.argpartition(-flat, wanted)[:wanted] if wanted < len(flat) else np.arange(len(flat))
        order = top[np.lexsort((top, -flat[top]))].tolist()
    best = [(float(flat[position]), *divmod(position, width)) for position in order if flat[position] >= 0]
    return [(score, first, first + extra) for score, first, extra in best]
