"""Concurrent and later requests for a passage share one reading. Failures are not cached."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qa_cluster.documents.source_map import write_map
from qa_cluster.documents.stored import SentenceRecord
from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.functions.answering import passage as reading
from qa_cluster.gears.inference.served import RunTimes
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.passages import PassageSentence, ReadingPassage, around
from qa_cluster.reading.windows import PairEncoder
from tests.unit.small_tokenizer import small_tokenizer

TEXTS = ("The cat sat.", "Who is it?", "The dog.")
RECORD = SentenceRecord(0, "", 0, "v", "d", "", "")


class CountingReader:
    """A reader whose model prefers the last token, counts its runs, and waits or fails on demand."""

    def __init__(self, manifest: Manifest, arrival: int = 1) -> None:
        self.manifest = replace(manifest, context_tokens=64)
        self.pairs = PairEncoder(self.manifest)
        self.arrival = arrival
        self.model: Any = self
        self.runs = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self.read: list[list[int]] = []

    def prefix(self, title: str, section: str = "") -> list[int]:
        path = " > ".join(part for part in (title, section) if part)
        return small_tokenizer().encode_text(f"{path} |").ids.tolist() if self.manifest.passage_prefix else []

    def question(self, text: str) -> Any:
        return small_tokenizer().encode_question(text, 64)

    async def run_measured(self, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], RunTimes]:
        self.runs += 1
        self.read += arrays[0].tolist()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        row = np.zeros_like(arrays[0], dtype=np.float32)
        row[:, -2] = 5
        return [row, row], RunTimes(0.0, None)


@pytest.fixture
def passages() -> reading.PassageReader:
    """A reader of passages with an empty cache."""
    readers: Any = SimpleNamespace(forget=lambda: None)
    return reading.PassageReader(readers)


def passage_for(index: int, texts: tuple[str, ...] = TEXTS) -> ReadingPassage:
    starts = [sum(len(text) + 1 for text in texts[:i]) for i in range(len(texts))]
    parts = [
        PassageSentence(text, start, small_tokenizer().encode_text(text))
        for text, start in zip(texts, starts, strict=True)
    ]
    return around(parts[index], parts[:index][::-1], parts[index + 1 :], index=index, budget=64)


async def read(
    passages: reading.PassageReader, reader: CountingReader, index: int = 0, *, texts: Any = TEXTS, **changed: Any
) -> Any:
    """The reading of a sentence. The default question is `who`, and the default record is `RECORD`."""
    asked = {"question": "who", "record": RECORD} | changed
    as_reader: Any = reader
    passage, sentence = passage_for(index, texts), SentenceRef("d", "t", index)
    return await passages.read(sentence, asked["record"], passage, asked["question"], as_reader)


async def test_one_run_for_all_sentences_of_a_passage(passages: reading.PassageReader, manifest: Manifest) -> None:
    reader = CountingReader(manifest)
    at_once = await asyncio.gather(*(read(passages, reader, index) for index in (0, 1, 2)))
    later = await read(passages, reader, 1)
    assert reader.runs == 1
    assert all(found == later for found in at_once)
    assert (later.best.spans[0].end, later.windows) == (len(" ".join(TEXTS)), 1)


async def test_a_changed_text_is_read_again(passages: reading.PassageReader, manifest: Manifest) -> None:
    reader, other = CountingReader(manifest), CountingReader(manifest, arrival=2)
    await read(passages, reader)
    await read(passages, reader, question="what")
    await read(passages, reader, record=replace(RECORD, version="w"))
    await read(passages, other)
    assert (reader.runs, other.runs) == (3, 1)
    await read(passages, reader, texts=TEXTS[:1])  # a single sentence: no other sentence shares this passage
    await read(passages, reader, texts=TEXTS[:1])
    assert reader.runs == 5
    assert len(passages._recent) == 4


async def test_sentences_of_another_splitter_are_read_again(
    passages: reading.PassageReader, manifest: Manifest
) -> None:
    reader = CountingReader(manifest)
    for texts in (TEXTS, ("The cat sat. Who", "is it?", "The dog."), ("The cat sat.", "Who is it?", "A dog.")):
        await read(passages, reader, texts=texts)
    assert reader.runs == 3


async def test_a_failure_reaches_all_requests_and_is_not_cached(
    passages: reading.PassageReader, manifest: Manifest
) -> None:
    reader = CountingReader(manifest)
    reader.error = GearsError("ERR no memory")
    failed = await asyncio.gather(*(read(passages, reader, index) for index in (0, 1)), return_exceptions=True)
    assert [type(error) for error in failed] == [InferenceFailed] * 2
    assert "no memory" in str(failed[0])
    reader.error = None
    assert (await read(passages, reader)).best.spans
    assert reader.runs == 2


async def test_a_missing_model_is_an_error(passages: reading.PassageReader, manifest: Manifest) -> None:
    reader = CountingReader(manifest)
    reader.model = None
    with pytest.raises(ModelError, match="no model on this shard"):
        await read(passages, reader)


async def test_a_cancelled_request_does_not_cancel_the_shared_reading(
    passages: reading.PassageReader, manifest: Manifest
) -> None:
    reader = CountingReader(manifest)
    reader.go_on.clear()
    first, second = asyncio.create_task(read(passages, reader, 0)), asyncio.create_task(read(passages, reader, 1))
    while not reader.runs:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    reader.go_on.set()
    assert (await second).best.spans
    assert reader.runs == 1


async def test_the_number_of_cached_readings_is_limited(
    passages: reading.PassageReader, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_RECENT", 3)

    reader = CountingReader(manifest)
    for question in ("who", "what", "is", "it", "who"):
        await read(passages, reader, question=question)
    assert (reader.runs, len(passages._recent)) == (5, 3)


async def test_long_passages_are_read_in_windows(passages: reading.PassageReader, manifest: Manifest) -> None:
    reader = CountingReader(manifest)
    reader.pairs = PairEncoder(manifest, window_tokens=70, doc_stride=2)
    passage = passage_for(0, ("the cat sat " * 60,))
    assert len(passage.tokens.ids) == 180
    as_reader: Any = reader
    found = await passages.read(SentenceRef("d", "t", 0), RECORD, passage, "who is it", as_reader)
    assert found.windows == reader.runs == 3
    assert len(found.best.spans) == reading.N_BEST


async def test_the_title_stands_before_passages_for_readers_that_know_titles(
    passages: reading.PassageReader, manifest: Manifest
) -> None:
    """This holds for passages of one sentence and of several sentences."""
    titled = replace(RECORD, title="the cat")
    without = CountingReader(replace(manifest, passage_prefix=False))
    with_it = CountingReader(replace(manifest, passage_prefix=True), 2)
    for reader in (without, with_it):
        await read(passages, reader, record=titled)
        await read(passages, reader, record=titled, texts=("The dog.",))
    prefix = small_tokenizer().encode_text("the cat |").ids.tolist()
    assert len(without.read) == len(with_it.read) == 2
    for plain, found in zip(without.read, with_it.read, strict=True):
        place = next(at for at in range(len(found)) if found[at : at + len(prefix)] == prefix)
        assert found[:place] + found[place + len(prefix) :] == plain


async def test_the_section_of_the_sentence_stands_after_the_title(
    passages: reading.PassageReader, manifest: Manifest
) -> None:
    sections = [(0, ["the mat"]), (TEXTS[0].index("sat"), ["the mat", "the dog"])]
    metadata = json.dumps({"_source": write_map("a.rst", "rst", 1, sections)})
    record = replace(RECORD, title="the cat", metadata=metadata)
    later = replace(record, start=sections[1][0])
    for texts in (TEXTS, ("The dog.",)):  # a passage of several sentences, and of one sentence
        reader = CountingReader(replace(manifest, passage_prefix=True), arrival=len(texts))
        for each in (record, later, record):
            await read(passages, reader, record=each, texts=texts)
        expected = [
            small_tokenizer().encode_text(f"the cat > the mat{path} |").ids.tolist() for path in ("", " > the dog")
        ]
        for prefix, found in zip(expected, reader.read, strict=False):
            assert any(found[at : at + len(prefix)] == prefix for at in range(len(found)))


@pytest.mark.parametrize("metadata", ["{", '{"_source": {"sections": [[0, 9, "x"]]}}'])
async def test_a_map_that_cannot_be_read_gives_no_section(
    passages: reading.PassageReader, manifest: Manifest, metadata: str
) -> None:
    reader = CountingReader(replace(manifest, passage_prefix=True))
    await read(passages, reader, record=replace(RECORD, title="the cat", metadata=metadata), texts=("The dog.",))
    prefix = small_tokenizer().encode_text("the cat |").ids.tolist()
    assert any(reader.read[0][at : at + len(prefix)] == prefix for at in range(len(reader.read[0])))
