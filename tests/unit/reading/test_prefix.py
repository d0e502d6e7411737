"""The prefix of a passage: title and section path, bounded, in every window, and never an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.errors import ModelError
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest
from qa_cluster.reading.prefix import MAX_PREFIX_TOKENS, prefix_ids
from qa_cluster.reading.spans import best_spans
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder

WORDS: dict[str, int] = {}


def ids_of(text: str) -> list[int]:
    """The token ids of a text, one per word."""
    return [WORDS.setdefault(word, len(WORDS)) for word in text.split()]


def words(title: str, section: str) -> str:
    by_id = {number: word for word, number in WORDS.items()}
    found = prefix_ids(title, section, ids_of)
    by_id |= {number: word for word, number in WORDS.items()}
    return " ".join(by_id[number] for number in found)


def test_the_prefix_names_title_and_sections() -> None:
    assert words("The  manual\n", "Options > Output") == "The manual > Options > Output |"
    assert words("The manual", "") == "The manual |"
    assert words("", "Options > Output") == "Options > Output |"
    assert words(" ", " > ") == ""


def test_a_long_path_loses_its_first_sections_then_its_end() -> None:
    sections = " > ".join(f"part {number} of it all" for number in range(9))
    found = words("The manual", sections)
    assert found.startswith("The manual > part ")
    assert found.endswith("> part 8 of it all |")
    assert len(ids_of(found)) <= MAX_PREFIX_TOKENS
    long = " ".join(f"w{number}" for number in range(60))
    assert words(long, "last").split() == [*long.split()[: MAX_PREFIX_TOKENS - 1], "|"]
    assert words("", f"{long} > last") == "last |"


def test_every_window_has_the_prefix_with_the_type_of_the_context(encoder: TextPairEncoder) -> None:
    manifest = encoder.pairs.manifest
    pairs = PairEncoder(manifest, window_tokens=120, doc_stride=8)
    tokenizer: ReaderTokenizer = encoder.tokenizer
    text = "Ada Lovelace wrote the first program in 1843. " * 20
    prefix = prefix_ids("Ada", "Works", lambda part: tokenizer.encode_text(part).ids.tolist())
    question = tokenizer.encode_question("Who wrote it?", 64)
    windows = pairs.windows(question, tokenizer.encode_text(text), prefix)
    assert len(windows) > 1
    arrays = pairs.batch(windows)
    first = windows[0].passage_start
    for row, window in enumerate(windows):
        assert window.input_ids[window.passage_start - len(prefix) : window.passage_start].tolist() == prefix
        assert len(window.input_ids) <= 120
        types = arrays["token_type_ids"][row, : len(window.input_ids)]
        assert types.tolist() == [0] * (first - len(prefix)) + [manifest.pair.context_type] * (
            len(types) - first + len(prefix)
        )
    plain = pairs.windows(question, tokenizer.encode_text(text))
    assert {window.first for window in windows} != {window.first for window in plain}
    assert pairs.windows(question, tokenizer.encode_text(text), [1] * 119)[0].prefix == 0


def test_no_span_begins_in_the_prefix(encoder: TextPairEncoder) -> None:
    tokenizer = encoder.tokenizer
    tokens = tokenizer.encode_text("He was born in Rome.")
    prefix = tokenizer.encode_text("Ada |").ids.tolist()
    (window,) = encoder.pairs.windows(tokenizer.encode_question("Who?", 64), tokens, prefix)
    row = np.zeros(len(window.input_ids), np.float32)
    row[window.passage_start - len(prefix) : window.passage_start] = 99
    row[window.passage_start] = 1
    (span,) = best_spans([window], [(row, row)], tokens, "He was born in Rome.", max_answer_tokens=30).spans
    assert (span.start, span.end) == (0, 2)


def test_a_manifest_says_whether_a_reader_knows_the_prefix(reader: Path) -> None:
    without = replace(Manifest.load(reader / MANIFEST_FILE), passage_prefix=False)
    assert "passage_prefix" not in json.loads(without.to_json())  # earlier versions refuse unknown fields
    with_it = replace(without, passage_prefix=True)
    assert Manifest.from_json(with_it.to_json()) == with_it
    assert with_it.reading_revision != without.reading_revision
    document = {**json.loads(without.to_json()), "passage_prefix": "yes"}
    with pytest.raises(ModelError, match="'passage_prefix' is \"yes\", must be true or false"):
        Manifest.from_json(json.dumps(document))


def test_only_a_reader_that_knows_the_prefix_gets_it(reader: Path, encoder: TextPairEncoder) -> None:
    """The local encoder and the shard make the same tokens."""
    without = replace(Manifest.load(reader / MANIFEST_FILE), passage_prefix=False)
    text = "He was born in Rome."
    (plain,) = TextPairEncoder(encoder.tokenizer, PairEncoder(without)).windows("Who?", text, "Ada", "Works")
    assert plain.prefix == 0
    with_it = replace(without, passage_prefix=True)
    (window,) = TextPairEncoder(encoder.tokenizer, PairEncoder(with_it)).windows("Who?", text, "Ada", "")
    on_shard = [Reader(encoder.tokenizer, manifest.to_json().encode(), None, None) for manifest in (without, with_it)]
    assert on_shard[0].prefix("Ada") == []
    expected = on_shard[1].prefix("Ada")
    assert window.input_ids[window.passage_start - window.prefix : window.passage_start].tolist() == expected
    assert encoder.tokenizer.encode_text("Ada |").ids.tolist() == expected
    (placed,) = TextPairEncoder(encoder.tokenizer, PairEncoder(with_it)).windows("Who?", text, "Ada", "Life > Youth")
    in_section = on_shard[1].prefix("Ada", "Life > Youth")
    assert placed.input_ids[placed.passage_start - placed.prefix : placed.passage_start].tolist() == in_section
