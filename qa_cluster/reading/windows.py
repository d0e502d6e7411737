"""Builds a reader's inputs from a question and a passage, and pads them into batches.

An input has the question, followed by a part of the passage (a *window*). The manifest defines the layout: `[CLS]
question [SEP] passage [SEP]` for BERT. The windows of a long passage overlap by `doc_stride` tokens. A prefix
(`prefix`) precedes the passage in each window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_cluster.errors import InvalidInput

from .manifest import LENGTH_STEP, Manifest
from .prefix import prefix_ids
from .tokenization import QuestionTokens, ReaderTokenizer, TextTokens

LongArray = npt.NDArray[np.int64]
Arrays = dict[str, LongArray]


@dataclass(frozen=True, slots=True)
class Window:
    """One input of the reader: the question and a part of the passage.

    Attributes:
        input_ids: [length] int64, including special tokens.
        passage_start: the position in `input_ids` of the window's first passage token.
        first: the number of the window's first passage token in the passage.
        tokens: the number of passage tokens in the window.
        prefix: the number of prefix tokens before `passage_start`.
    """

    input_ids: LongArray
    passage_start: int
    first: int
    tokens: int
    prefix: int = 0


class PairEncoder:
    """Cuts passages into windows within a manifest's limits, and pads windows into batches.

    >>> encoder = PairEncoder(manifest)
    >>> windows = encoder.windows(tokenizer.encode_question("Who?", 64), tokenizer.encode_text(passage))
    >>> encoder.batch(windows)["input_ids"].shape
    (1, 48)

    Args:
        window_tokens, doc_stride: replace the manifest's values; InvalidInput if they do not fit together.
        max_question_tokens: replaces the manifest's limit of question tokens.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        window_tokens: int | None = None,
        doc_stride: int | None = None,
        max_question_tokens: int | None = None,
    ) -> None:
        self.manifest = manifest
        self.window_tokens = manifest.window_tokens if window_tokens is None else window_tokens
        self.doc_stride = manifest.doc_stride if doc_stride is None else doc_stride
        self.max_question_tokens = manifest.max_question_tokens if max_question_tokens is None else max_question_tokens
        least = self.max_question_tokens + manifest.pair.special_tokens + 1
        if not least <= self.window_tokens <= manifest.max_tokens:
            raise InvalidInput(
                f"the window size is {self.window_tokens} tokens, must be from {least} (a question of "
                f"{self.max_question_tokens} tokens, the special tokens and one more token) to {manifest.max_tokens}"
            )
        room = self.window_tokens - least
        if not 0 <= self.doc_stride <= room:
            raise InvalidInput(
                f"doc_stride is {self.doc_stride} tokens, must be from 0 to {room} for windows of {self.window_tokens}"
            )

    def windows(self, question: QuestionTokens, passage: TextTokens, prefix: Sequence[int] = ()) -> list[Window]:
        """Return the windows of a passage, in order; empty if the passage has no token.

        Args:
            prefix: the ids of the passage's prefix. The prefix is left out if a window with it has room for at most
                `doc_stride` tokens of the passage.

        Raises:
            InvalidInput: the question leaves no room for a token of the passage.
        """
        pair = self.manifest.pair
        head = np.array((*pair.head, *question.ids, *pair.middle), dtype=np.int64)
        room = self.window_tokens - len(head) - len(pair.tail)
        if room < 1:
            raise InvalidInput(
                f"a question of {len(question.ids)} tokens does not fit into a window of {self.window_tokens} tokens"
            )
        if len(prefix) and room - len(prefix) > self.doc_stride:
            head = np.concatenate((head, np.asarray(prefix, dtype=np.int64)))
            room -= len(prefix)
        else:
            prefix = ()
        found = []
        for start, end in _cuts(len(passage.ids), room, self.doc_stride):
            ids = np.concatenate((head, passage.ids[start:end], pair.tail), dtype=np.int64)
            found.append(Window(ids, len(head), start, end - start, len(prefix)))
        return found

    def batch(self, windows: Sequence[Window], *, length_step: int = LENGTH_STEP) -> Arrays:
        """Return the model's inputs by name, each [windows, length] int64.

        All windows are padded to the same length: the length of the longest window, rounded up to a multiple of
        `length_step` tokens, but at most the manifest's `max_tokens`.
        """
        longest = max(len(window.input_ids) for window in windows)
        length = min(-(-longest // length_step) * length_step, self.manifest.max_tokens)
        ids = np.full((len(windows), length), self.manifest.pad_id, np.int64)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for row, window in enumerate(windows):
            used = len(window.input_ids)
            ids[row, :used] = window.input_ids
            mask[row, :used] = 1
            types[row, window.passage_start - window.prefix : used] = self.manifest.pair.context_type
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: arrays[name] for name in self.manifest.inputs}


class TextPairEncoder:
    """Does the same as a `PairEncoder`, for texts instead of tokens.

    The encoder caches the tokens of the last passage, because several questions often share a passage.
    """

    def __init__(self, tokenizer: ReaderTokenizer, pairs: PairEncoder) -> None:
        self.tokenizer = tokenizer
        self.pairs = pairs
        self._last: tuple[str, TextTokens] | None = None

    def windows(self, question: str, passage: str, title: str = "", section: str = "") -> list[Window]:
        """Return the windows of `passage` for `question`. The end of a question that is too long is cut off.

        Args:
            title, section: the document's title and the passage's section. Only readers that were trained with prefixes
                use them.
        """
        asked = self.tokenizer.encode_question(question, self.pairs.max_question_tokens)
        prefix: list[int] = []
        if self.pairs.manifest.passage_prefix:
            prefix = prefix_ids(title, section, lambda text: self.tokenizer.encode_text(text).ids.tolist())
        return self.pairs.windows(asked, self.passage(passage), prefix)

    def passage(self, text: str) -> TextTokens:
        """Return the tokens of a passage."""
        if self._last is None or self._last[0] != text:
            self._last = (text, self.tokenizer.encode_text(text))
        return self._last[1]


def batches(windows: Sequence[Window], *, max_batch: int, max_batch_tokens: int) -> Iterator[list[int]]:
    """Yield groups of indices of `windows`, with similar lengths of the windows in a group.

    A group has at most `max_batch` windows, and at most `max_batch_tokens` tokens with padding. A window that alone has
    more tokens is a group of its own.
    """
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
    """Return the start and end of each window in the passage, in tokens, half-open.

    If there are several windows, all of them have `room` tokens. So the last window may overlap the window before it by
    more than `overlap` tokens.

    Args:
        total: the number of tokens of the passage. If it is 0, there are no windows.
        room: the maximum number of passage tokens in a window.
        overlap: the number of tokens that neighbouring windows share.
    """
    if total <= room:
        return [(0, total)] if total else []
    starts = [*range(0, total - room, room - overlap), total - room]
    return [(start, start + room) for start in dict.fromkeys(starts)]
