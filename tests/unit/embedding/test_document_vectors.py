"""Embedding of documents against a scripted shard: portions, stale documents, failures, the pace and the quarantine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import SPLITTER_VERSION, split_sentences
from qa_cluster.documents.stored import RECORD_FIELDS
from qa_cluster.errors import InferenceFailed, QAError
from qa_cluster.gears.functions.embedding import quarantine as quarantine_module
from qa_cluster.gears.functions.embedding.document_vectors import EMBEDDED, PORTION, STALE, DocumentVectors
from qa_cluster.gears.functions.embedding.pace import RUN_TOKENS, SHARED_RUN_TOKENS, Pace
from qa_cluster.gears.functions.embedding.quarantine import Quarantine
from qa_cluster.gears.functions.readers.encoder import ShardEncoder
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.scripts.calls import ScriptCall
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from tests.harness.packed_vectors import unpack_passages

TAG = "06S"
DIMS = 8


class Shard:
    """The keys of documents, and the passages that the script has stored."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[str, str]] = {}
        self.stored: dict[str, list[tuple[int, int]]] = {}
        self.done: dict[str, list[tuple[int, int]]] = {}
        self.calls = 0
        self.refuse = ""
        self.logged: list[str] = []

    def put(self, name: str, text: str, version: str = "1" * 16) -> None:
        self.texts[name] = (text, version)

    def execute_many(self, commands: Sequence[Sequence[object]], *, keep_errors: bool = False) -> list[Any]:
        return [self._execute(*map(str, command)) for command in commands]

    def _execute(self, command: str, key: str, *_: str) -> Any:
        name = key.partition(":")[2].rpartition(":")[0]
        text, version = self.texts.get(name, ("", ""))
        spans = split_sentences(text)
        if command == "HMGET":
            if not version:
                return [None] * len(RECORD_FIELDS)
            values = {"id": name, "version": version, "sentences": len(spans), "splitter": SPLITTER_VERSION}
            values |= {"tokenized": version, "analyzer": "1", "title": "A title"}
            return [None if field not in values else str(values[field]) for field in RECORD_FIELDS]
        return text if key.startswith("paragraphs:") else bytearray(pack_offsets(text, spans))

    def run_scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        self.calls += 1
        replies: list[Any] = []
        for call in calls:
            assert call.script == "embed_document"
            version, splitter, _digest, dims, done, total, blob = call.args
            name = call.keys[0].partition(":")[2].rpartition(":")[0]
            if self.refuse:
                replies.append(GearsError(self.refuse))
            elif self.texts[name][1] != version or splitter != SPLITTER_VERSION:
                replies.append(["stale"])
            else:
                found = [(passage.first, passage.sentences) for passage in unpack_passages(bytes(blob), int(dims))]  # type: ignore[arg-type]
                self.stored[name] = found if not done else self.stored[name] + found
                self.done.setdefault(name, []).append((int(done), int(total)))
                replies.append(["stored"])
        return replies

    def log(self, text: str, level: str = "notice") -> None:
        self.logged.append(text)


class Model:
    """An encoder that records its runs, and fails for a row with the token `poison`."""

    def __init__(self, poison: int = -1) -> None:
        self.runs: list[tuple[int, int]] = []
        self.poison = poison
        self.before: Any = lambda: None

    async def run_in_background(self, inputs: Sequence[Any]) -> list[Any]:
        self.before()
        await asyncio.sleep(0)
        ids, mask = inputs
        self.runs.append(ids.shape)
        if self.poison in ids:
            raise InferenceFailed("poison")
        sums = (ids * mask).sum(axis=1, keepdims=True)
        return [np.sin(sums * np.arange(1, DIMS + 1)).astype(np.float32)]


@pytest.fixture(scope="module")
def tokenizer() -> ReaderTokenizer:
    return ReaderTokenizer((bundled_encoder() / TOKENIZER_FILE).read_bytes())


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def encoder(tokenizer: ReaderTokenizer, model: Model) -> ShardEncoder:
    manifest = replace(EncoderManifest.load(bundled_encoder() / MANIFEST_FILE), dims=DIMS)
    return ShardEncoder(tokenizer, manifest.to_json().encode(), model, TAG)  # type: ignore[arg-type]


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def vectors(shard: Shard) -> DocumentVectors:
    context: Any = SimpleNamespace(commands=shard)
    return DocumentVectors(context, Pace(lambda: False, lambda: False))


def text_of(sentences: int, word: str = "stone") -> str:
    return " ".join(f"Sentence number {number} is about a {word} that lies here." for number in range(sentences))


def covered(passages: list[tuple[int, int]]) -> list[int]:
    return [number for first, count in passages for number in range(first, first + count)]


async def test_all_sentences_of_all_documents_get_a_passage(
    shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder, model: Model
) -> None:
    names = []
    for number, sentences in enumerate((1, 30, 3, 90, 0, 17)):
        shard.put(f"d{number}", text_of(sentences))
        names.append((f"d{number}", TAG))
    outcomes = await vectors.embed(names, encoder)
    assert outcomes == {name: EMBEDDED if name[0] != "d4" else outcomes[name] for name in names}
    for number, sentences in enumerate((1, 30, 3, 90)):
        assert covered(shard.stored[f"d{number}"]) == list(range(sentences))
    assert max(length for _, length in model.runs) <= 128
    assert max(rows * length for rows, length in model.runs) <= RUN_TOKENS


@pytest.mark.parametrize("start", ["\n", "   ", "\u00a0 "])
async def test_a_text_that_starts_with_white_space_gets_vectors(
    start: str, shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder
) -> None:
    """A fixed fault: the search for sentences started at the first byte of the text, so the document stayed stale."""
    shard.put("d", start + text_of(3))
    assert await vectors.embed([("d", TAG)], encoder) == {("d", TAG): EMBEDDED}
    assert covered(shard.stored["d"]) == [0, 1, 2]


async def test_a_long_document_is_stored_in_portions(
    shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder
) -> None:
    shard.put("long", text_of(1500))
    assert await vectors.embed([("long", TAG)], encoder) == {("long", TAG): EMBEDDED}
    assert covered(shard.stored["long"]) == list(range(1500))
    done, totals = zip(*shard.done["long"], strict=True)
    assert len(set(totals)) == 1
    assert list(done) == list(range(0, totals[0], PORTION))


async def test_a_document_that_changes_is_stale_and_the_others_are_stored(
    shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder, model: Model
) -> None:
    shard.put("changed", text_of(600))
    shard.put("same", text_of(5))
    model.before = lambda: shard.put("changed", text_of(600), "2" * 16)
    outcomes = await vectors.embed([("changed", TAG), ("same", TAG), ("missing", TAG)], encoder)
    assert outcomes == {("changed", TAG): STALE, ("same", TAG): EMBEDDED, ("missing", TAG): STALE}
    assert "changed" not in shard.stored


async def test_a_bad_document_fails_alone(
    shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder, model: Model, tokenizer: ReaderTokenizer
) -> None:
    model.poison = int(tokenizer.encode_text("poison").ids[0])
    shard.put("good", text_of(9))
    shard.put("bad", text_of(9, "poison"))
    shard.put("other", text_of(9))
    outcomes = await vectors.embed([("good", TAG), ("bad", TAG), ("other", TAG)], encoder)
    assert outcomes[("good", TAG)] == outcomes[("other", TAG)] == EMBEDDED
    assert isinstance(outcomes[("bad", TAG)], QAError)
    assert covered(shard.stored["good"]) == covered(shard.stored["other"]) == list(range(9))


async def test_the_work_ends_when_the_slot_has_moved(
    shard: Shard, vectors: DocumentVectors, encoder: ShardEncoder
) -> None:
    shard.put("gone", text_of(3))
    shard.refuse = "MOVED 0 127.0.0.1:7001"
    with pytest.raises(GearsError, match="MOVED"):
        await vectors.embed([("gone", TAG)], encoder)


async def test_while_questions_arrive_a_run_is_short_and_a_pause_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    alone, shared = Pace(lambda: False, lambda: False), Pace(lambda: True, lambda: False)
    assert (await alone.turn(), await shared.turn()) == (RUN_TOKENS, SHARED_RUN_TOKENS)
    await alone.rest(0.01)
    assert slept == []
    await shared.rest(0.01)
    assert slept == [pytest.approx(0.08)]


async def test_embedding_waits_for_indexing_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qa_cluster.gears.functions.embedding.pace.INDEXING_SECONDS", 0.1)
    indexing = iter([True, True, False, False])
    before = time.monotonic()
    assert await Pace(lambda: False, lambda: next(indexing)).turn() == RUN_TOKENS
    assert await Pace(lambda: False, lambda: True).turn() == SHARED_RUN_TOKENS
    assert 0.1 <= time.monotonic() - before < 60


def test_a_failed_document_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(quarantine_module, "time", SimpleNamespace(monotonic=lambda: now))
    shard: Any = Shard()
    quarantine, name = Quarantine(shard), ("bad", TAG)
    assert quarantine.allows(name)
    pauses = []
    for _ in range(12):
        quarantine.add(name, QAError("poison"))
        assert not quarantine.allows(name)
        pauses.append(float(shard.logged[-1].partition("next try is in ")[2].partition(" s")[0]))
        now += pauses[-1]
        assert quarantine.allows(name)
    assert pauses[:3] == [60, 120, 240]
    assert pauses[-1] == 6 * 3600
    quarantine.add(name, QAError("poison"))
    quarantine.forget([name])  # a new version
    assert quarantine.allows(name)
    assert "'bad' gets no vectors: poison" in shard.logged[-1]
