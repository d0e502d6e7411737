"""Makes the token arrays for training from examples: tokenized once, in windows, with the answers' places in tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .labelled import NO_ANSWER, Labelled

_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of examples, ragged: row `i` is `[bounds[i]:bounds[i + 1]]` of `ids` and `types`.

    `ids` int32 and `types` uint8 [tokens]; `bounds` int64 [windows + 1]; `starts` and `ends` int32 [windows], the
    positions of the answer's first and last token, 0 and 0 if the window does not hold it; `owners` int32 [windows],
    the example of each; `spans` int32 [tokens, 2], code points of the context, -1 for tokens outside the context.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    owners: NDArray[np.int32]
    spans: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each window."""
        return np.diff(self.bounds)

    @property
    def unanswered(self) -> int:
        """How many windows do not hold an answer."""
        return int(np.count_nonzero(self.ends == 0))


class Encoder:
    """Turns questions and contexts into windows with a Hugging Face fast tokenizer, whatever its pair layout."""

    def __init__(self, tokenizer: Any, *, max_tokens: int, doc_stride: int, max_question_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._doc_stride = doc_stride
        self._max_question_tokens = max_question_tokens

    def windows(self, examples: Sequence[Labelled]) -> Windows:
        """Return all windows of all examples, in order."""
        ids: list[NDArray[np.int32]] = []
        types: list[NDArray[np.uint8]] = []
        spans: list[NDArray[np.int32]] = []
        labels: list[tuple[int, int, int]] = []
        for owner, encoding in self._encodings(examples):
            span = _context_spans(encoding)
            ids.append(np.array(encoding.ids, np.int32))
            types.append(np.array(encoding.type_ids, np.uint8))
            spans.append(span)
            labels.append((*_label(span, examples[owner]), owner))
        columns = np.array(labels, np.int32).reshape(-1, 3).T.copy()
        return Windows(
            ids=np.concatenate(ids),
            types=np.concatenate(types),
            bounds=np.concatenate(([0], np.cumsum([len(row) for row in ids], dtype=np.int64))),
            starts=columns[0],
            ends=columns[1],
            owners=columns[2],
            spans=np.concatenate(spans),
        )

    def _encodings(self, examples: Sequence[Labelled]) -> Iterator[tuple[int, Any]]:
        for first in range(0, len(examples), _CHUNK):
            chunk = examples[first : first + _CHUNK]
            encoded = self._tokenizer(
                self._short_questions(chunk),
                [example.context for example in chunk],
                truncation="only_second",
                max_length=self._max_tokens,
                stride=self._doc_stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for owner, encoding in zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True):
                yield first + owner, encoding

    def _short_questions(self, examples: Sequence[Labelled]) -> list[str]:
        questions = [example.question.strip() for example in examples]
        encoded = self._tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        limit = self._max_question_tokens
        return [
            question if len(offsets) <= limit else question[: offsets[limit - 1][1]]
            for question, offsets in zip(questions, encoded["offset_mapping"], strict=True)
        ]


def _context_spans(encoding: Any) -> NDArray[np.int32]:
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    spans[[sequence != 1 for sequence in encoding.sequence_ids]] = -1
    return spans


def _label(spans: NDArray[np.int32], example: Labelled) -> tuple[int, int]:
    """Return the positions of the first and last token of the answer; (0, 0) unless the window holds all of it."""
    if example.answer_start == NO_ANSWER:
        return 0, 0
    # White space at the answer's ends belongs to no token: an answer at the end of a window would seem to be cut off.
    begin = example.answer_start + len(example.answer) - len(example.answer.lstrip())
    end = begin + len(example.answer.strip())
    touched = np.flatnonzero((spans[:, 1] > begin) & (spans[:, 0] < end) & (spans[:, 0] >= 0))
    if not len(touched):
        return 0, 0
    first, last = int(touched[0]), int(touched[-1])
    context = np.flatnonzero(spans[:, 0] >= 0)
    cut_before = first == context[0] and spans[first, 0] > begin
    cut_after = last == context[-1] and spans[last, 1] < end
    return (0, 0) if cut_before or cut_after else (first, last)


def batches(
    lengths: NDArray[np.int64], *, batch_size: int, batch_tokens: int, seed: list[int]
) -> list[NDArray[np.int64]]:
    """Return one epoch's batches as arrays of row numbers: each of windows of similar length, in random order.

    A batch has `batch_size` rows, or fewer to keep its padded size within `batch_tokens`. The batches depend on the
    lengths and `seed` only.
    """
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(lengths))
    found: list[NDArray[np.int64]] = []
    pool = batch_size * 64
    for first in range(0, len(shuffled), pool):
        part = shuffled[first : first + pool]
        found.extend(_cut(part[np.argsort(lengths[part], kind="stable")], lengths, batch_size, batch_tokens))
    return [found[number] for number in random.permutation(len(found))]


def _cut(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, batch_tokens: int
) -> Iterator[NDArray[np.int64]]:
    first = 0
    for last in range(1, len(rows) + 1):
        size = last - first
        if last == len(rows) or size == batch_size or (size + 1) * lengths[rows[last]] > batch_tokens:
            yield rows[first:last]
            first = last
