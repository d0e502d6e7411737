"""Tokenizes training examples: windows of tokens, with the positions of the answers."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.reading.prefix import prefix_ids

from ..examples.labelled import ALONE, UNLABELLED, Labelled
from .settings import TrainingSettings

OUTSIDE = -1
PREFIX = -2
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of examples, in one array. Window `i` has the tokens from `bounds[i]` up to, but not including,
    `bounds[i + 1]`.

    Attributes:
        ids, types: int32 and uint8 [tokens], the ids and the types of the tokens of all windows.
        bounds: int64 [windows + 1].
        starts, ends: int32 [windows], the positions of the answer's first and last token in the window; both are 0 if
            the window has no answer.
        owners: int32 [windows], the number of the window's example, from 0.
        spans: int32 [tokens, 2], the code points of a token in the context; `PREFIX` for tokens of the prefix,
            `OUTSIDE` for all others.
        groups: int32 [windows], the number of the example's group, ascending.
        labelled: bool [windows], whether the label is known.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    owners: NDArray[np.int32]
    spans: NDArray[np.int32]
    groups: NDArray[np.int32]
    labelled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each window."""
        return np.diff(self.bounds)

    @property
    def unanswered(self) -> int:
        """The number of windows without an answer."""
        return int(np.count_nonzero(self.ends == 0))


@dataclass(frozen=True, slots=True)
class _Row:
    """The tokens of one window. `owner` is the number of the example that the window belongs to."""

    owner: int
    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    spans: NDArray[np.int32]


class WindowEncoder:
    """Divides questions and contexts into windows, with a Hugging Face fast tokenizer of any pair layout.

    `title_share` is the share of questions whose windows include the prefix of their context (title and section).
    `seed` selects these questions.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int,
        doc_stride: int,
        max_question_tokens: int,
        title_share: float = 0.0,
        seed: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._doc_stride = doc_stride
        self._max_question_tokens = max_question_tokens
        self._title_share = title_share
        self._seed = seed

    @classmethod
    def of(cls, tokenizer: Any, settings: TrainingSettings, *, title_share: float, seed: str = "") -> "WindowEncoder":
        """Return an encoder whose sizes in tokens come from these settings."""
        sizes = {name: getattr(settings, name) for name in ("max_tokens", "doc_stride", "max_question_tokens")}
        return cls(tokenizer, **sizes, title_share=title_share, seed=seed)

    def windows(self, examples: Sequence[Labelled]) -> Windows:
        """Return all windows of all examples, in order."""
        rows = list(self._rows(examples))
        labels = np.array([_label(row.spans, examples[row.owner]) for row in rows], np.int32).reshape(-1, 2)
        owners = np.array([row.owner for row in rows], np.int32)
        known = np.array([example.answer_start != UNLABELLED for example in examples])
        return Windows(
            ids=np.concatenate([row.ids for row in rows]),
            types=np.concatenate([row.types for row in rows]),
            bounds=np.concatenate(([0], np.cumsum([len(row.ids) for row in rows], dtype=np.int64))),
            starts=labels[:, 0].copy(),
            ends=labels[:, 1].copy(),
            owners=owners,
            spans=np.concatenate([row.spans for row in rows]),
            groups=_group_numbers(examples)[owners],
            labelled=known[owners],
        )

    def _rows(self, examples: Sequence[Labelled]) -> Iterator[_Row]:
        for first in range(0, len(examples), _CHUNK):
            chunk = examples[first : first + _CHUNK]
            prefixes = [self._prefix(example) for example in chunk]
            found: list[list[_Row]] = [[] for _ in chunk]
            by_length: defaultdict[int, list[int]] = defaultdict(list)
            for number, prefix in enumerate(prefixes):
                by_length[len(prefix)].append(number)
            for length, numbers in by_length.items():
                for owner, encoding in self._encodings([chunk[number] for number in numbers], length):
                    number = numbers[owner]
                    found[number].append(_with_prefix(first + number, encoding, prefixes[number]))
            for rows in found:
                yield from rows

    def _prefix(self, example: Labelled) -> list[int]:
        """Return the token ids of the prefix of an example's context; an empty list if the context gets no prefix.

        Either all contexts of a question have a prefix, or no context has one.
        """
        share = self._title_share
        if share <= 0 or (share < 1 and random.Random(f"{self._seed}:title:{example.question}").random() >= share):
            return []
        ids_of = lambda text: self._tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
        return prefix_ids(example.title, example.section, ids_of)

    def _encodings(self, examples: Sequence[Labelled], reserved: int) -> Iterator[tuple[int, Any]]:
        """Yield the windows of the examples. Each window comes after the number of its example in `examples`. It has
        space for `reserved` more tokens.
        """
        encoded = self._tokenizer(
            self._short_questions(examples),
            [example.context for example in examples],
            truncation="only_second",
            max_length=self._max_tokens - reserved,
            stride=self._doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        return zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True)

    def _short_questions(self, examples: Sequence[Labelled]) -> list[str]:
        questions = [example.question.strip() for example in examples]
        encoded = self._tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        limit = self._max_question_tokens
        return [
            question if len(offsets) <= limit else question[: offsets[limit - 1][1]]
            for question, offsets in zip(questions, encoded["offset_mapping"], strict=True)
        ]


def _with_prefix(owner: int, encoding: Any, prefix: Sequence[int]) -> _Row:
    """Return the tokens of a window, with the ids `prefix` inserted between question and context. `owner` is the number
    of the window's example.
    """
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    spans[[sequence != 1 for sequence in encoding.sequence_ids]] = OUTSIDE
    ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.uint8)
    context = np.flatnonzero(spans[:, 0] >= 0)
    if prefix and len(context):
        first = int(context[0])
        ids = np.insert(ids, first, prefix)
        types = np.insert(types, first, [types[first]] * len(prefix))
        spans = np.insert(spans, first, np.full((len(prefix), 2), PREFIX), axis=0)
    return _Row(owner, ids.astype(np.int32), types.astype(np.uint8), spans.astype(np.int32))


def _group_numbers(examples: Sequence[Labelled]) -> NDArray[np.int32]:
    """Return the number of each example's group, from 0, int32 [examples]. Neighbouring examples with the same `group`
    are one group. An example without a group is a group of its own.
    """
    fresh = [
        number == 0 or example.group == ALONE or example.group != examples[number - 1].group
        for number, example in enumerate(examples)
    ]
    return (np.cumsum(fresh) - 1).astype(np.int32)


def _label(spans: NDArray[np.int32], example: Labelled) -> tuple[int, int]:
    """Return the positions of the answer's first and last token in a window; (0, 0) if the example has no answer, or if
    the window lacks a part of it. `spans` has the code points of the window's tokens.
    """
    if example.answer_start < 0:
        return 0, 0
    # Ignore white space at the answer's ends, which belongs to no token. Otherwise, an answer at the end of a window
    # would seem to be cut off.
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


def group_rows(windows: Windows, *, batch_size: int, batch_tokens: int) -> list[NDArray[np.int64]]:
    """Return, for each group, the numbers of its windows (rows), ascending. A group gets at most as many rows as fit
    into one training step: `batch_size` windows and `batch_tokens` padded tokens.

    If a group has more rows, its last rows without an answer are left out. If that is not enough, its last rows with an
    answer are left out, too.
    """
    edges = np.flatnonzero(np.diff(windows.groups)) + 1
    found = []
    for rows in np.split(np.arange(len(windows), dtype=np.int64), edges):
        room = max(1, min(batch_size, batch_tokens // int(windows.lengths[rows].max())))
        kept = rows[np.argsort(windows.ends[rows] == 0, kind="stable")][:room]
        found.append(np.sort(kept))
    return found


def group_batches(
    groups: Sequence[NDArray[np.int64]],
    lengths: NDArray[np.int64],
    *,
    batch_size: int,
    batch_tokens: int,
    seed: list[int],
) -> list[NDArray[np.int64]]:
    """Return the batches of one epoch in random order, as arrays of row numbers. A batch has whole groups. `groups` has
    the rows of each group (`group_rows`), and `lengths` has the number of tokens of each row.

    Groups of similar length share a batch of at most `batch_size` windows and `batch_tokens` padded tokens.
    """
    random_ = np.random.default_rng(seed)
    longest = np.array([lengths[rows].max() for rows in groups])
    shuffled = random_.permutation(len(groups))
    mean = sum(map(len, groups)) / len(groups)
    pool = max(1, round(batch_size * 64 / mean))
    found: list[NDArray[np.int64]] = []
    for first in range(0, len(shuffled), pool):
        part = shuffled[first : first + pool]
        taken: list[NDArray[np.int64]] = []
        size = 0
        for number in part[np.argsort(longest[part], kind="stable")]:
            rows = groups[number]
            if taken and (size + len(rows) > batch_size or (size + len(rows)) * longest[number] > batch_tokens):
                found.append(np.concatenate(taken))
                taken, size = [], 0
            taken.append(rows)
            size += len(rows)
        found.append(np.concatenate(taken))
    return [found[number] for number in random_.permutation(len(found))]
