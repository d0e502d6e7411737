"""Cuts stored documents into passages, and makes the encoder's input of each passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.source_map import SourceMap, read_map
from qa_cluster.gears.functions.indexing.document_sentences import DocumentSentences
from qa_cluster.gears.functions.readers.encoder import ShardEncoder
from qa_cluster.reading.tokenization import IntArray
from qa_cluster.vectors.passage_cut import CutPassage, cut_document

# How many sentences are tokenized at once. The tokenizer needs some kilobytes for each sentence of the portion.
TOKENIZED_AT_ONCE = 1000

Name = tuple[str, str]


@dataclass(slots=True)
class PassageInputs:
    """A document in the form that the encoder reads.

    Attributes:
        name: the document's name, and the tag of its partition.
        version, splitter: the version and the splitter to which the vectors belong.
        spans: the sentences of each passage.
        rows: the input of each passage.
        stored: the number of passages whose vectors are already stored.
    """

    name: Name
    version: str
    splitter: str
    spans: list[CutPassage]
    rows: list[IntArray]
    stored: int = field(default=0)


def passage_inputs(name: Name, document: DocumentSentences, encoder: ShardEncoder) -> PassageInputs:
    """Cut a document into passages, and make their inputs. This may take seconds for a long document."""
    record, sentences = document.record, document.sentences
    tokens = _token_ids(sentences, encoder)
    prefixes: dict[str, list[int]] = {}
    budget = encoder.manifest.context_tokens - encoder.manifest.special_tokens

    def prefix_of(section: str) -> list[int]:
        if section not in prefixes:
            prefixes[section] = encoder.prefix(record.title, section)
        return prefixes[section]

    spans = cut_document(
        [len(ids) for ids in tokens],
        [sentence.start for sentence in sentences],
        _source_map(record.metadata),
        lambda section: budget - len(prefix_of(section)),
    )
    rows = [
        encoder.row(
            [
                *prefix_of(span.section),
                *(token for ids in tokens[span.first : span.first + span.sentences] for token in ids.tolist()),
            ]
        )
        for span in spans
    ]
    return PassageInputs(name, record.version, record.splitter, spans, rows)


def _token_ids(sentences: Sequence[LocatedSentence], encoder: ShardEncoder) -> list[IntArray]:
    found: list[IntArray] = []
    for first in range(0, len(sentences), TOKENIZED_AT_ONCE):
        texts = [sentence.text for sentence in sentences[first : first + TOKENIZED_AT_ONCE]]
        found += [tokens.ids for tokens in encoder.tokenizer.encode_texts(texts)]
    return found


def _source_map(metadata: str) -> SourceMap:
    try:
        value = orjson.loads(metadata or b"{}")
    except orjson.JSONDecodeError:  # a client may have written anything into the record
        value = {}
    return read_map(value if isinstance(value, dict) else {})
