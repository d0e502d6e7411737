"""Runs the scripts of the functions on a document, step by step and without a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import redis

from qa_cluster import documents, keys
from qa_cluster.ranking.postings import IndexWriter, pack_sentences
from qa_cluster.reading.tokenization import TextTokens
from qa_cluster.scripts import ScriptCall
from qa_cluster.sentences import split_sentences

TAG = "06S"
_NO_TOKENS = TextTokens(*(np.zeros(0, dtype=np.int32) for _ in range(3)))


def command(client: redis.Redis, *words: object, **options: object) -> Any:
    execute: Any = client.execute_command
    return execute(*words, **options)


def run(client: redis.Redis, call: ScriptCall) -> Any:
    return command(client, *call.command())


def put(
    client: redis.Redis, document_id: str, text: str, if_version: str = documents.ANY_VERSION
) -> documents.PutResult:
    call = documents.put_document(documents.check_document(document_id, text), TAG, if_version)
    return documents.parse_put(run(client, call))


def delete(client: redis.Redis, document_id: str, if_version: str = documents.ANY_VERSION) -> documents.DeleteResult:
    return documents.parse_delete(run(client, documents.delete_document(document_id, TAG, if_version)))


def record(client: redis.Redis, document_id: str) -> documents.DocumentRecord | None:
    return documents.parse_record(command(client, *documents.read_record(document_id, TAG)))


def spans_of(text: str, splitter: str) -> list[tuple[int, int]]:
    """The sentences that a splitter finds; the one called `whole` takes the text for one."""
    return [(0, len(text))] if splitter == "whole" else split_sentences(text)


def split(client: redis.Redis, document_id: str, version: str, text: str, splitter: str = "1") -> str:
    spans = spans_of(text, splitter)
    sentences = [text[a:b] for a, b in spans]
    call = documents.split_document(document_id, TAG, version, spans, sentences, splitter=splitter)
    return str(run(client, call)[0])


def writer(document_id: str, version: str, text: str, splitter: str = "1") -> IndexWriter:
    spans = spans_of(text, splitter)
    return IndexWriter(
        document_id=document_id,
        tag=TAG,
        version=version,
        splitter=splitter,
        tokenizer="none",
        fingerprint=1,
        spans=spans,
        tokens=[_NO_TOKENS] * len(spans),
        packed=pack_sentences([text[a:b] for a, b in spans]),
        fields=b"",
    )


def index(client: redis.Redis, document_id: str, version: str, text: str, splitter: str = "1") -> str:
    """All steps of indexing; the status of the last one."""
    status, attempt = "", ""
    steps = writer(document_id, version, text, splitter)
    for first, last, kind in steps.steps():
        status, attempt = run(client, steps.call(first, last, kind, attempt))
        if status != "stored":
            break
    return status


def store_answer(
    client: redis.Redis, document_id: str, question: str, source: tuple[int, str, str], value: str
) -> bool:
    """Store the answer read from ``source``: number, version and text of a sentence."""
    i, version, text = source
    sentence = keys.SentenceRef(document_id, TAG, i)
    call = documents.store_answer(sentence, question, version=version, text=text, answer=value, ttl_seconds=60)
    return bool(run(client, call))
