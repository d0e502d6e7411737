"""Builds the passage of a sentence from the stored sentences and tokens, and lets a model read the passage.

Here, the *passage* of a sentence is the sentence with the neighbours that the model reads together with it
(`qa_cluster/reading/passages.py`). The encoder's passages are different: each of them gets one vector.

Two sentences may have the same passage. The model then reads the passage once for both, even if the second request is
in a later wave.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qa_cluster.documents.metadata_limits import readable_metadata
from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.source_map import SourceMap, read_map
from qa_cluster.documents.stored import BLOCK_SENTENCES, SentenceRecord
from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.inference.served import RunTimes
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.passages import PassageSentence, ReadingPassage, around
from qa_cluster.reading.prefix import SEPARATOR
from qa_cluster.reading.spans import Reading, best_spans
from qa_cluster.reading.tokenization import TextTokens, unpack_tokens
from qa_cluster.reading.windows import Window

N_BEST = 3
"""The maximum number of spans in the reading of a passage."""
MAX_RECENT = 256
MAX_SOURCE_MAPS = 256
_STEP = 2

# The key of a reading in memory. It has these items: document, tag of the partition, version of the document; start of
# the passage, starts of its sentences, its text; section; question; number of the reader (`Reader.arrival`). A sentence
# number instead of the starts would be ambiguous, because a different splitter divides the same version into different
# sentences.
_PassageKey = tuple[str, str, str, int, tuple[int, ...], str, str, str, int]


@dataclass(frozen=True, slots=True)
class PassageReading:
    """The best spans of a passage, without overlaps, and the runs of the model, one for each window."""

    best: Reading
    runs: Sequence[RunTimes]

    @property
    def windows(self) -> int:
        """The number of model runs: one for each window of the passage."""
        return len(self.runs)


def passage_of(record: SentenceRecord, reader: Reader) -> ReadingPassage:
    """Build the passage of a sentence. Compute tokens that are missing or from a different tokenizer."""
    stored = _StoredTokens(record, reader)
    own = LocatedSentence(record.index, record.text, record.start)
    (tokens,) = reader.sentences([own.text], stored.among([own]))
    budget = reader.manifest.context_tokens
    space = budget - len(tokens.ids)
    sides = (_within(record.left, space), _within(record.right, space))
    parts: tuple[list[PassageSentence], list[PassageSentence]] = ([], [])
    # Tokenize the nearest neighbours first, a few at a time. Their tokens show whether more neighbours fit.
    while near := [
        each
        for side, made in zip(sides, parts, strict=True)
        if sum(len(part.tokens.ids) for part in made) <= space
        for each in side[len(made) : len(made) + _STEP]
    ]:
        found = reader.sentences([each.text for each in near], stored.among(near))
        for each, made_tokens in zip(near, found, strict=True):
            parts[each.index > own.index].append(PassageSentence(each.text, each.start, made_tokens))
    return around(PassageSentence(own.text, own.start, tokens), *parts, index=own.index, budget=budget)


def _within(side: Sequence[LocatedSentence], space: int) -> Sequence[LocatedSentence]:
    """Return the nearest neighbours on one side that together have at most `space` words.

    Each word has at least one token. So the neighbours that are left out cannot fit into `space` tokens, and need not
    be tokenized. `side` has the nearest neighbour first.
    """
    for count, each in enumerate(side):
        space -= len(each.text.split())
        if space < 0:
            return side[:count]
    return side


class _StoredTokens:
    """The stored tokens of a sentence and its neighbours.

    Tokens are stored in blocks of `BLOCK_SENTENCES` sentences. A block is unpacked at its first use.
    """

    def __init__(self, record: SentenceRecord, reader: Reader) -> None:
        self._record = record
        self._fingerprint = reader.tokenizer.fingerprint
        self._blocks: dict[int, list[TextTokens]] = {}

    def among(self, sentences: Sequence[LocatedSentence]) -> Callable[[int], TextTokens | None]:
        """Return a function that takes a position in `sentences` and returns the stored tokens of the sentence there,
        or None.
        """
        return lambda position: self._of(sentences[position])

    def _of(self, sentence: LocatedSentence) -> TextTokens | None:
        """Return the tokens of a sentence; None if no tokens from this tokenizer are stored."""
        block, position = divmod(sentence.index, BLOCK_SENTENCES)
        if block not in self._blocks:
            number = block - self._record.first_block
            blob = self._record.blocks[number] if number < len(self._record.blocks) else b""
            self._blocks[block] = (unpack_tokens(blob, self._fingerprint) or []) if blob else []
        if position >= len(self._blocks[block]):
            return None
        tokens = self._blocks[block][position]
        # Return copies, because all sentences of a block share the arrays of the block. Without a copy, one cached
        # sentence would keep the whole block in memory.
        return TextTokens(tokens.ids.copy(), tokens.starts.copy(), tokens.ends.copy())


@lru_cache(MAX_SOURCE_MAPS)
def _source_map(metadata: str) -> SourceMap:
    return read_map(readable_metadata(metadata))


def _section(record: SentenceRecord) -> str:
    """Return the path of headings above a sentence, in the form that `prefix_ids` needs."""
    return SEPARATOR.join(_source_map(record.metadata).section_at(record.start))


class PassageReader:
    """Reads passages, and remembers the last `MAX_RECENT` readings of passages that have several sentences."""

    def __init__(self, readers: ShardReaders) -> None:
        self._readers = readers
        # Finished and running readings. The least recently used reading is first.
        self._recent: OrderedDict[_PassageKey, asyncio.Task[PassageReading]] = OrderedDict()

    async def read(
        self, sentence: SentenceRef, record: SentenceRecord, passage: ReadingPassage, question: str, reader: Reader
    ) -> PassageReading:
        """Return the reader's reading of a passage, or its cached reading of the same passage."""
        section = _section(record) if reader.manifest.passage_prefix else ""
        if not passage.breaks:
            return await self._read(passage, question, reader, reader.prefix(record.title, section))
        document = (sentence.document, sentence.tag, record.version, passage.start, passage.begins)
        key = (*document, passage.text, section, question, reader.arrival)
        task = self._recent.get(key)
        if task is None:
            # The reading has its own task, because the first client may disconnect while other clients still wait.
            reading = self._read(passage, question, reader, reader.prefix(record.title, section))
            task = asyncio.get_running_loop().create_task(reading)
            self._recent[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
            if len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(key)
        return await asyncio.shield(task)

    def _finished(self, key: _PassageKey, task: asyncio.Task[PassageReading]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._recent.get(key) is task:
            del self._recent[key]

    async def _read(
        self, passage: ReadingPassage, question: str, reader: Reader, prefix: Sequence[int]
    ) -> PassageReading:
        windows = reader.pairs.windows(reader.question(question), passage.tokens, prefix)
        outputs = await asyncio.gather(*(self.run_window(reader, window) for window in windows))
        reading = best_spans(
            windows,
            [logits for logits, _ in outputs],
            passage.tokens,
            passage.text,
            max_answer_tokens=reader.manifest.max_answer_tokens,
            n_best=N_BEST,
            overlapping=False,
            breaks=passage.breaks,
        )
        return PassageReading(reading, [run for _, run in outputs])

    async def run_window(self, reader: Reader, window: Window) -> tuple[tuple[Any, Any], RunTimes]:
        """Run a window in a batch with other windows; return its start logits, its end logits, and the times of the
        run.
        """
        arrays = reader.pairs.batch([window], length_step=1)  # the device queue adds the padding of a batch
        if reader.model is None:
            raise ModelError(
                f"no model on this shard: it has only the tokenizer and the manifest of {reader.manifest.model_id!r}"
            )
        try:
            outputs, times = await reader.model.run_measured([arrays[name] for name in reader.manifest.inputs])
        except GearsError as error:
            self._readers.forget()
            raise InferenceFailed(f"model of {reader.manifest.model_id!r} could not be run: {error}") from error
        start, end = (output.reshape(-1) for output in outputs[:2])
        return (start, end), times
