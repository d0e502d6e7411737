"""Builds the encoder's inputs for the passages of a document. Workers and clients both use this module."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.source_map import SourceMap, read_map
from qa_cluster.reading.prefix import prefix_ids
from qa_cluster.reading.tokenization import IntArray, ReaderTokenizer

from .encoder_manifest import EncoderManifest
from .passage_cut import CutPassage, cut_document

# The number of sentences that are tokenized at once. The tokenizer needs some kilobytes of memory for each.
TOKENIZED_AT_ONCE = 1000

LongArray = npt.NDArray[np.int64]


def document_passages(
    title: str,
    metadata: str,
    sentences: Sequence[LocatedSentence],
    manifest: EncoderManifest,
    tokenizer: ReaderTokenizer,
) -> tuple[list[CutPassage], list[IntArray]]:
    """Cut a document; return its passages and the input of each. This may take seconds for a long document.

    `metadata` is JSON; its source map says where sections start.
    """
    tokens = _token_ids(sentences, tokenizer)
    prefixes: dict[str, list[int]] = {}
    budget = manifest.context_tokens - manifest.special_tokens

    def prefix_of(section: str) -> list[int]:
        if section not in prefixes:
            prefixes[section] = _prefix(title, section, manifest, tokenizer)
        return prefixes[section]

    spans = cut_document(
        [len(ids) for ids in tokens],
        [sentence.start for sentence in sentences],
        _source_map(metadata),
        lambda section: budget - len(prefix_of(section)),
    )
    rows = [
        encoder_row(
            [
                *prefix_of(span.section),
                *(token for ids in tokens[span.first : span.first + span.sentences] for token in ids.tolist()),
            ],
            manifest,
        )
        for span in spans
    ]
    return spans, rows


def encoder_row(tokens: IntArray | Sequence[int], manifest: EncoderManifest) -> IntArray:
    """Return the encoder's input for a text with these tokens. Tokens beyond the budget of a passage are cut off."""
    limit = manifest.context_tokens - manifest.special_tokens
    return np.array([*manifest.head, *tokens[:limit], *manifest.tail], np.int32)


def encoder_arrays(rows: Sequence[IntArray], manifest: EncoderManifest) -> dict[str, LongArray]:
    """Return the encoder's inputs by name, for several results of `encoder_row`, padded to the longest row."""
    longest = max(map(len, rows))
    arrays = {
        "input_ids": np.full((len(rows), longest), manifest.pad_id, np.int64),
        "attention_mask": np.zeros((len(rows), longest), np.int64),
        "token_type_ids": np.zeros((len(rows), longest), np.int64),
    }
    for number, row in enumerate(rows):
        arrays["input_ids"][number, : len(row)] = row
        arrays["attention_mask"][number, : len(row)] = 1
    return {name: arrays[name] for name in manifest.inputs}


def _prefix(title: str, section: str, manifest: EncoderManifest, tokenizer: ReaderTokenizer) -> list[int]:
    """Return the tokens of the title and the section path; empty if the encoder was trained without prefixes."""
    if not manifest.passage_prefix:
        return []
    return prefix_ids(title, section, lambda text: tokenizer.encode_text(text).ids.tolist())


def _token_ids(sentences: Sequence[LocatedSentence], tokenizer: ReaderTokenizer) -> list[IntArray]:
    found: list[IntArray] = []
    for first in range(0, len(sentences), TOKENIZED_AT_ONCE):
        texts = [sentence.text for sentence in sentences[first : first + TOKENIZED_AT_ONCE]]
        found += [tokens.ids for tokens in tokenizer.encode_texts(texts)]
    return found


def _source_map(metadata: str) -> SourceMap:
    try:
        value = orjson.loads(metadata or b"{}")
    except orjson.JSONDecodeError:  # a client may have written anything into the record
        value = {}
    return read_map(value if isinstance(value, dict) else {})
