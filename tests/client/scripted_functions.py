"""The functions of a scripted shard, which work on real keys.

They split documents at full stops. The answer from a sentence is its first word that is not in the question. Its score
grows with the number of shared words. A sentence with the word "together" is read together with the next sentence.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

from qa_cluster import keys
from qa_cluster.documents import stored
from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.source_map import filter_metadata
from qa_cluster.models.bundle import default_reader
from qa_cluster.ranking.fields import fields_of
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.ranking.postings import pack_sentences
from qa_cluster.reading.manifest import MANIFEST_FILE, Calibration, Manifest
from qa_cluster.routing.connection import Connection
from qa_cluster.tracing import ShardRun, ShardTimes, is_traceparent
from qa_cluster.vectors.encoder_manifest import EncoderManifest

PARTITIONS = 12
_WORD = re.compile(r"\w+")
_STOP = {"the", "a", "of", "is", "was", "who", "what", "where", "in", "did", "does"}


@cache
def manifest(revision: str = "a", model_id: str = "scripted") -> Manifest:
    """A manifest with the no-answer threshold 0 and the wave threshold 6."""
    return replace(
        Manifest.load(default_reader() / MANIFEST_FILE),
        model_id=model_id,
        model_sha256=revision * 64,
        context_tokens=0,
        no_answer_threshold=0.0,
        wave_threshold=6.0,
        calibration=Calibration(0.5, 0.0),
        rank_weight=0.3,
    )


def words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)} - _STOP


async def split(shard: Connection, paragraphs_key: str) -> None:
    """Split a new document, as the worker does after a write."""
    parsed = keys.parse_tagged(paragraphs_key, keys.PARAGRAPHS_PREFIX)
    assert parsed is not None
    key = keys.document_key(*parsed)
    version, tokenized, metadata, title = await shard.execute("HMGET", key, "version", "tokenized", "metadata", "title")
    paragraphs = await shard.execute("GET", paragraphs_key)
    if version == tokenized or paragraphs is None:
        return  # it was split before, or removed
    text = paragraphs.decode()
    spans = [match.span() for match in re.finditer(r"[^.]+\.?", text) if match.group().strip()]
    about = json.loads(metadata)
    sentences = [text[start:end] for start, end in spans]
    fields = fields_of(title.decode(), about, [start for start, _ in spans])
    made = stored.IndexedText("", "", len(spans), pack_offsets(text, spans), pack_sentences(sentences, fields))
    call = stored.index_document(*parsed, version.decode(), made, pack_fields(filter_metadata(about)))
    await shard.execute(*call.command())


async def read(shard: Connection, model: Manifest, question: str, names: list[str]) -> list[bytes]:
    """`qa.read`. A traced call reports 3 ms in total and 2 ms of the model."""
    traced = names[-1] if is_traceparent(names[-1]) else ""
    found = [await _read_one(shard, model, question, name) for name in names[: -1 if traced else None]]
    if not traced:
        return found
    run = ShardRun(100, 200, 2200, len(found), 5, 8, 32, 100)
    times = ShardTimes(traced, 3000, 2500, [("answers", 0, 90)], [run])
    return [*found, json.dumps(times.to_json()).encode()]


async def _read_one(shard: Connection, model: Manifest, question: str, name: str) -> bytes:
    sentence = keys.parse_sentence(name)
    reply = await shard.execute(*stored.read_sentence(sentence, question).command())
    record = stored.parse_sentence_record(sentence.index, reply)
    if record is None:
        return b"-NOTFOUND no such sentence: " + name.encode()
    text, start = record.text, record.start
    found = next((m for m in _WORD.finditer(text) if m.group().casefold() not in words(question) | _STOP), None)
    score = 4.0 * len(words(text) & words(question)) - 3.0
    reading: dict[str, Any] = {
        "spans": [[start + found.start(), start + found.end(), score, sentence.index]] if found else [],
        "document_version": record.version,
        "sentence": text,
        "sentence_start": start,
        "reading_revision": model.reading_revision,
        "truncated": False,
        "windows": 1,
        "cache": "miss",
    }
    if "together" in words(text):
        reading |= {"context": text, "context_start": start, "read": [sentence.index, sentence.index + 1]}
    return json.dumps(reading, ensure_ascii=False).encode()


def listed_encoder(encoder: EncoderManifest) -> dict[str, Any]:
    """An encoder as `qa.models` lists it."""
    facts = {"name": encoder.name, "id": encoder.model_id, "revision": encoder.revision, "kind": "encoder"}
    facts |= {"default": False, "warm": True, "precision": encoder.precision, "bytes": encoder.model_bytes}
    return facts | {"context_tokens": encoder.context_tokens, "manifest": encoder.to_json()}


def listed(model: Manifest, default: bool) -> dict[str, Any]:
    """A model as `qa.models` lists it."""
    return {
        "name": model.name,
        "id": model.model_id,
        "revision": model.revision,
        "default": default,
        "warm": True,
        "precision": model.precision,
        "bytes": model.model_bytes,
        "context_tokens": model.context_tokens,
        "manifest": model.to_json(),
    }
