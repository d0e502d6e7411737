"""Measures the speed of a reader on the shards: for each input shape, and for one question."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.manifest import Manifest
from qa_cluster.shard_functions import READ_TRIGGER

from ..nodes.all_shards import OnStep
from ..nodes.connect import shards_of
from ..nodes.node import Node, command
from . import shard_readers

LENGTHS = (16, 32, 64, 128, 256, 384)
BATCHES = (1, 8)
SENTENCES = 8
COLUMNS = tuple(str(length) for length in LENGTHS)
_WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """The times of the runs with one input shape: the median and the 95th percentile, in milliseconds. The input shape
    is `batch` rows of `length` tokens.
    """

    batch: int
    length: int
    p50: float
    p95: float


@dataclass(frozen=True)
class ShardBench:
    """The measurements of a reader on one shard, by input shape.

    `reading` is the time for a question with `sentences` sentences; None if the shard has no documents. `notes` are
    texts for the user about figures that are missing.
    """

    shard: str
    runs: list[Timing]
    sentences: int
    reading: Timing | None
    notes: list[str] = field(default_factory=list)


def measure(settings: Settings, url: str, name: str, rounds: int, on_step: OnStep) -> list[ShardBench]:
    """Measure the reader `name` on one shard after the other, with `rounds` runs for each input shape. Return the
    measurements in the order of the shards.
    """
    results = []
    with shards_of(settings, url) as shards:
        for node, client in shards:
            on_step(f"measuring {name} on {node.address}")
            try:
                results.append(_measure(node, client, name, rounds))
            except redis.exceptions.RedisError as error:
                raise ClusterError(f"shard {node.address}: {error}") from error
    return results


def rows(result: ShardBench) -> list[dict[str, object]]:
    """Return the rows of a table: one row for each batch size, with a column for each length. The values are medians in
    milliseconds. The last row is the time for one question, if it was measured.
    """
    found: list[dict[str, object]] = []
    for batch in BATCHES:
        row: dict[str, object] = {"batch": batch, **dict.fromkeys(COLUMNS, "")}
        row |= {str(run.length): f"{run.p50:.2f}" for run in result.runs if run.batch == batch}
        found.append(row)
    if result.reading is not None:
        label = f"a question, {result.sentences} sentences"
        found.append({"batch": label, **dict.fromkeys(COLUMNS, ""), COLUMNS[0]: f"{result.reading.p50:.2f}"})
    return found


def _measure(node: Node, client: redis.Redis, name: str, rounds: int) -> ShardBench:
    key_name = "" if shard_readers.default_on(node, client) == name else name
    text = client.get(keys.manifest_key(node.tag, key_name))
    if not isinstance(text, bytes):
        raise ClusterError(f"shard {node.address} does not store {name} under its tag now: repeat the command later")
    manifest = Manifest.from_json(text)
    notes = []
    runs = []
    for batch in BATCHES:
        for length in LENGTHS:
            if length > manifest.max_tokens:
                notes.append(f"length {length} skipped: {name} reads at most {manifest.max_tokens} tokens")
                continue
            runs.append(_run(client, keys.model_key(node.tag, key_name), manifest, node.tag, batch, length, rounds))
    sentences = _some_sentences(client)
    if not sentences:
        notes.append("reading for a question skipped: the shard has no documents")
    reading = _read(client, name, sentences, rounds) if sentences else None
    return ShardBench(node.address, runs, len(sentences), reading, list(dict.fromkeys(notes)))


def _run(  # noqa: PLR0917 - one call
    client: redis.Redis, model: str, manifest: Manifest, tag: str, batch: int, length: int, rounds: int
) -> Timing:
    """Return the times of `AI.MODELEXECUTE` on stored tensors, whose keys have the tag of the shard."""
    inputs = [f"bench:{name}:{{{tag}}}" for name in manifest.inputs]
    outputs = [f"bench:{name}:{{{tag}}}" for name in manifest.outputs]
    try:
        for name, key in zip(manifest.inputs, inputs, strict=True):
            value = 0 if name == "token_type_ids" else 1
            blob = struct.pack(f"<{batch * length}q", *([value] * (batch * length)))
            command(client, "AI.TENSORSET", key, "INT64", batch, length, "BLOB", blob)

        def run(_: int) -> None:
            command(client, "AI.MODELEXECUTE", model, "INPUTS", len(inputs), *inputs, "OUTPUTS", len(outputs), *outputs)

        return _timed(run, rounds, batch, length)
    finally:
        client.unlink(*inputs, *outputs)


def _read(client: redis.Redis, name: str, sentences: list[SentenceRef], rounds: int) -> Timing:
    """Return the times of the trigger `qa.read`, for questions about `sentences` whose answers are not cached. Remove
    the answers that the questions have added to the cache.
    """
    asked = [f"What is it about, measured {time.time_ns()} {number}?" for number in range(rounds + _WARM_UP)]
    names = [str(sentence) for sentence in sentences]
    before = {sentence: _answers(client, sentence) for sentence in sentences}
    try:
        return _timed(lambda i: command(client, "RG.TRIGGER", READ_TRIGGER, name, asked[i], *names), rounds, 1, 0)
    finally:
        for sentence in sentences:
            if new := _answers(client, sentence) - before[sentence]:
                client.unlink(*new)
                client.srem(keys.answers_key(sentence.document, sentence.tag), *new)


def _answers(client: redis.Redis, sentence: SentenceRef) -> set[bytes | str]:
    """Return the keys of the cached answers for the document of a sentence."""
    return set(client.smembers(keys.answers_key(sentence.document, sentence.tag)))


def _some_sentences(client: redis.Redis) -> list[SentenceRef]:
    """Return at most `SENTENCES` sentences of one partition of the shard, because all keys of a command must be in one
    slot. Return an empty list if the shard has no documents.
    """
    found: list[SentenceRef] = []
    for key in islice(client.scan_iter(match=f"{keys.DOCUMENT_PREFIX}*", count=500), 200):
        parsed = keys.parse_tagged(key.decode(errors="replace"), keys.DOCUMENT_PREFIX)
        if parsed is None or (found and parsed[1] != found[0].tag):
            continue
        for index in range(int(client.hget(key, "sentences") or 0)):
            found.append(SentenceRef(*parsed, index))
            if len(found) == SENTENCES:
                return found
    return found


def _timed(work: Callable[[int], Any], rounds: int, batch: int, length: int) -> Timing:
    for number in range(_WARM_UP):
        work(rounds + number)
    taken = []
    for number in range(rounds):
        begun = time.perf_counter()
        work(number)
        taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    return Timing(batch, length, round(taken[len(taken) // 2], 3), round(taken[int(len(taken) * 0.95)], 3))
