"""Runs the scripts of the own functions on a document, step by step and without a worker."""

from __future__ import annotations

from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.documents import stored
from qa_cluster.documents.sentence_offsets import pack_offsets
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.documents.stored import IndexedText
from qa_cluster.ranking.postings import pack_sentences
from qa_cluster.scripts.calls import Call

TAG = "06S"


def command(client: redis.Redis, *words: object, **options: object) -> Any:
    execute: Any = client.execute_command
    return execute(*words, **options)


def run(client: redis.Redis, call: Call) -> Any:
    return command(client, *call.command())


def run_binary(client: redis.Redis, call: Call) -> Any:
    """Run a script and return its reply as bytes, because sentence offsets are not text."""
    return command(client, *call.command(), NEVER_DECODE=True)


def put(client: redis.Redis, document_id: str, text: str, if_version: str = stored.ANY_VERSION) -> stored.PutResult:
    call = stored.put_document(stored.check_document(document_id, text), TAG, if_version)
    return stored.parse_put(run(client, call))


def delete(client: redis.Redis, document_id: str, if_version: str = stored.ANY_VERSION) -> stored.ChangeResult:
    return stored.parse_delete(run(client, stored.delete_document(document_id, TAG, if_version)))


def record(client: redis.Redis, document_id: str) -> stored.DocumentRecord | None:
    return stored.parse_record(command(client, *stored.read_record(document_id, TAG)))


def spans_of(text: str, splitter: str) -> list[tuple[int, int]]:
    """The sentences that a splitter finds. For the splitter `whole`, the whole text is one sentence."""
    return [(0, len(text))] if splitter == "whole" else split_sentences(text)


def index(client: redis.Redis, document_id: str, version: str, text: str, splitter: str = "1") -> str:
    """Index a document with the sentences of a splitter; return the status."""
    spans = spans_of(text, splitter)
    packed = pack_sentences([text[a:b] for a, b in spans])
    made = IndexedText(splitter, "1", len(spans), pack_offsets(text, spans), packed)
    return str(run(client, stored.index_document(document_id, TAG, version, made, b""))[0])


def read(client: redis.Redis, document_id: str, i: int, *, around: int = 0) -> stored.SentenceRecord | None:
    """The record of a sentence as a worker reads it."""
    call = stored.read_sentence(keys.SentenceRef(document_id, TAG, i), "Other?", around=around)
    return stored.parse_sentence_record(i, run_binary(client, call))


def store_answer(
    client: redis.Redis, document_id: str, question: str, source: tuple[int, str, str], value: str
) -> bool:
    """Store the answer read from ``source``: number, version and text of a sentence."""
    i, version, text = source
    sentence = keys.SentenceRef(document_id, TAG, i)
    call = stored.store_answer(sentence, question, version=version, text=text, answer=value, ttl_seconds=3600)
    return bool(run(client, call))
