"""Reads the sentences of an indexed document for the steps after indexing: tokens and vectors."""

from __future__ import annotations

from dataclasses import dataclass

from qa_cluster.documents.sentence_offsets import LocatedSentence, cut_sentences, first_byte
from qa_cluster.documents.stored import DocumentRecord, parse_record, read_record
from qa_cluster.gears.shard.commands import ShardCommands, as_bytes
from qa_cluster.keys import offsets_key, paragraphs_key


@dataclass(frozen=True, slots=True)
class DocumentSentences:
    """All sentences of a version of a document."""

    record: DocumentRecord
    sentences: list[LocatedSentence]


def read_sentences(shard: ShardCommands, name: tuple[str, str]) -> DocumentSentences | None:
    """Return the sentences of a document; None if it is missing, is changing now, or is not indexed."""
    commands = [read_record(*name), ("GET", offsets_key(*name)), ("GET", paragraphs_key(*name))]
    reply, packed, text = shard.execute_many(commands)
    record, offsets = parse_record(reply), as_bytes(packed)
    if record is None or not record.tokenized or not record.analyzer or not offsets:
        return None
    width, records = offsets[0], offsets[1:]
    data = as_bytes(text)[first_byte(width, records) :]
    sentences = [found for found in cut_sentences(0, width, records, data) if found is not None]
    return DocumentSentences(record, sentences) if len(sentences) == record.sentences else None
