"""Makes the passage of a sentence from the stored sentences and tokens, and has a model read it.

Two sentences may have the same passage; the model reads it once for both, also if they are asked for one after the
other, as in waves.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents import Neighbour, SentenceRecord
from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.passages import Part, Passage, around
from qa_cluster.reading.spans import Reading, best_spans
from qa_cluster.reading.tokenization import unpack_sentence
from qa_cluster.reading.windows import Window

N_BEST = 3
"""Most spans that are kept of a passage."""
MAX_RECENT = 256

# Document, partition, version; where the passage and each of its sentences begin; its text; question; reader. The
# number of a sentence would not identify the passage: the same version of a document can be split differently.
_PassageKey = tuple[str, str, str, int, tuple[int, ...], str, str, int]


@dataclass
class _Recent:
    """The readings of passages of several sentences, finished or under way, least recently used first."""

    tasks: OrderedDict[_PassageKey, asyncio.Task[tuple[Reading, int]]] = field(default_factory=OrderedDict)


def passage_of(sentence: SentenceRef, record: SentenceRecord, reader: Reader) -> Passage:
    """The passage of a sentence, from the stored tokens; missing ones and another tokenizer's are made anew."""
    own = _part(record.text, record.tensor, sentence.index, record, reader)
    left = _parts(record.left, sentence.index, -1, record, reader)
    right = _parts(record.right, sentence.index, 1, record, reader)
    return around(own, left, right, index=sentence.index, budget=reader.manifest.context_tokens)


def _parts(side: Sequence[Neighbour], index: int, step: int, record: SentenceRecord, reader: Reader) -> list[Part]:
    return [
        _part(neighbour.text, neighbour.tensor, index + step * distance, record, reader)
        for distance, neighbour in enumerate(side, start=1)
    ]


def _part(text: str, tensor: bytes | None, index: int, record: SentenceRecord, reader: Reader) -> Part:
    if tensor is not None:
        stored = unpack_sentence(tensor)
        if stored.fingerprint == reader.tokenizer.fingerprint and stored.end - stored.start == len(text):
            return Part(text, stored.start, stored.tokens)
        start = stored.start
    else:
        spans = json.loads(record.spans or "[]")
        start = spans[index][0] if index < len(spans) else 0
    return Part(text, start, reader.tokenizer.encode_text(text))


async def read_passage(
    sentence: SentenceRef, record: SentenceRecord, passage: Passage, question: str, reader: Reader
) -> tuple[Reading, int]:
    """The best spans of a passage, without overlaps, and the number of windows in which it was read."""
    if not passage.breaks:
        return await _read(passage, question, reader)
    place = (sentence.document, sentence.tag, record.version, passage.start, passage.begins)
    key = (*place, passage.text, question, reader.arrival)
    recent = state.of(_Recent).tasks
    task = recent.get(key)
    if task is None:
        # It has a task of its own, because the first client may go away while others still wait.
        task = asyncio.get_running_loop().create_task(_read(passage, question, reader), context=Context())
        recent[key] = task
        task.add_done_callback(lambda done: _finished(key, done))
        if len(recent) > MAX_RECENT:
            recent.popitem(last=False)
    else:
        recent.move_to_end(key)
    return await asyncio.shield(task)


def _finished(key: _PassageKey, task: asyncio.Task[tuple[Reading, int]]) -> None:
    recent = state.of(_Recent).tasks
    if (task.cancelled() or task.exception() is not None) and recent.get(key) is task:
        del recent[key]


async def _read(passage: Passage, question: str, reader: Reader) -> tuple[Reading, int]:
    windows = reader.pairs.windows(reader.question(question), passage.tokens)
    outputs = await asyncio.gather(*(run_window(reader, window) for window in windows))
    reading = best_spans(
        windows,
        outputs,
        passage.tokens,
        passage.text,
        max_answer_tokens=reader.manifest.max_answer_tokens,
        n_best=N_BEST,
        overlapping=False,
        breaks=passage.breaks,
    )
    return reading, len(windows)


async def run_window(reader: Reader, window: Window) -> tuple[Any, Any]:
    """The start and end logits of a window; in the shard's queue it shares batches with others."""
    arrays = reader.pairs.batch([window], length_step=1)  # the batcher pads
    if reader.model is None:
        raise ModelError(
            f"no model on this shard: only tokenizer and manifest of {reader.manifest.model_id!r} are here"
        )
    try:
        outputs = await reader.model.run([arrays[name] for name in reader.manifest.inputs])
    except rg.error as error:
        loaded.forget()
        raise InferenceFailed(f"model of {reader.manifest.model_id!r} could not be run: {error}") from error
    start, end = (output.reshape(-1) for output in outputs[:2])
    return start, end
