"""Question and context as what a reader sees: `[CLS] question [SEP] window of the context [SEP]`, and padded batches.

A context longer than a window is cut into windows that overlap by `doc_stride` tokens. Offsets are code points of the
context, so `context[start:end]` is the text of a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.manifest import Manifest

Arrays = dict[str, NDArray[np.int64]]
IntArray = NDArray[np.int32]
LENGTH_STEP = 16


@dataclass(frozen=True, slots=True)
class Window:
    """One pair for the reader. `context_start` is the position of the first context token in `input_ids`.

    `starts` and `ends` hold where each token of the window stands in the whole context.
    """

    input_ids: tuple[int, ...]
    context_start: int
    starts: IntArray
    ends: IntArray


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's token ids and where each token stands in it."""

    ids: tuple[int, ...]
    starts: IntArray
    ends: IntArray


_NO_TOKENS = Tokens((), np.empty(0, np.int32), np.empty(0, np.int32))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json` with truncation and padding switched off."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"cannot read tokenizer {str(path)!r}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class PairEncoder:
    """Turns questions and contexts into windows under a manifest's limits. A context's tokens are remembered once."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, *, window_tokens: int, doc_stride: int) -> None:
        if not manifest.max_question_tokens + 4 <= window_tokens <= manifest.max_tokens:
            raise InvalidInput(
                f"window of {window_tokens} tokens, must be from {manifest.max_question_tokens + 4} "
                f"to {manifest.max_tokens}"
            )
        if not 0 <= doc_stride < window_tokens - manifest.max_question_tokens - 3:
            raise InvalidInput(
                f"doc_stride of {doc_stride} tokens, must be from 0 to "
                f"{window_tokens - manifest.max_question_tokens - 4} for windows of {window_tokens}"
            )
        self._tokenizer = tokenizer
        self._manifest = manifest
        self._window_tokens = window_tokens
        self._doc_stride = doc_stride
        self._last_context: tuple[str, Tokens] = ("", _NO_TOKENS)

    def windows(self, question: str, context: str) -> list[Window]:
        """Return the windows of `context` for `question`; none if the context has no token."""
        limits = self._manifest
        ids = self._tokens(question).ids[: limits.max_question_tokens]
        head = (limits.cls_id, *ids, limits.sep_id)
        tokens = self._context_tokens(context)
        room = self._window_tokens - len(head) - 1
        return [
            Window(
                (*head, *tokens.ids[start:end], limits.sep_id),
                len(head),
                tokens.starts[start:end],
                tokens.ends[start:end],
            )
            for start, end in _cuts(len(tokens.ids), room, self._doc_stride)
        ]

    def batch(self, windows: Sequence[Window], *, length_step: int = LENGTH_STEP) -> Arrays:
        """Pad the windows to one length, a multiple of `length_step`, and return the model's inputs."""
        longest = max(len(window.input_ids) for window in windows)
        length = min(-(-longest // length_step) * length_step, self._manifest.max_tokens)
        ids = np.full((len(windows), length), self._manifest.pad_id, np.int64)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for row, window in enumerate(windows):
            used = len(window.input_ids)
            ids[row, :used] = window.input_ids
            mask[row, :used] = 1
            types[row, window.context_start : used] = 1
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: arrays[name] for name in self._manifest.inputs}

    def _tokens(self, text: str) -> Tokens:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return Tokens(tuple(encoding.ids), offsets[:, 0], offsets[:, 1])

    def _context_tokens(self, context: str) -> Tokens:
        if self._last_context[0] != context:  # question sets hold many questions in a row about one context
            self._last_context = (context, self._tokens(context))
        return self._last_context[1]


def batches(windows: Sequence[Window], *, max_batch: int, max_batch_tokens: int) -> Iterator[list[int]]:
    """Yield groups of indices of `windows` of similar length whose padded size stays within the budget."""
    order = sorted(range(len(windows)), key=lambda index: len(windows[index].input_ids))
    group: list[int] = []
    for index in order:
        if group and (len(group) == max_batch or (len(group) + 1) * len(windows[index].input_ids) > max_batch_tokens):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _cuts(total: int, room: int, overlap: int) -> list[tuple[int, int]]:
    if total <= room:
        return [(0, total)] if total else []
    starts = [*range(0, total - room, room - overlap), total - room]
    return [(start, start + room) for start, following in pairwise((*starts, total)) if following > start]
