"""The inputs of a model: windows, token types and batches, also if several threads tokenize.

Each test covers a fault of an earlier reader, which its docstring names.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.stored import SentenceRecord
from qa_cluster.gears.functions.answering.passage import passage_of
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.reading.manifest import Manifest, PairLayout
from qa_cluster.reading.readings import parse_readings
from qa_cluster.reading.spans import best_spans
from qa_cluster.reading.tokenization import pack_tokens
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder
from tests.unit.small_tokenizer import small_tokenizer

LAYOUTS = {
    "bert": (PairLayout((101,), (102,), (102,), 1), [0, 0, 0, 0, 1, 1, 1]),
    "roberta": (PairLayout((0,), (2, 2), (2,), 0), [0, 0, 0, 0, 0, 0, 0, 0]),
    "distilbert": (PairLayout((101,), (102,), (102,), 0), [0, 0, 0, 0, 0, 0, 0]),
    "deberta": (PairLayout((1,), (2,), (2,), 1), [0, 0, 0, 0, 1, 1, 1]),
}


@pytest.mark.parametrize("family", list(LAYOUTS))
def test_the_reader_is_told_which_tokens_are_the_context(manifest: Manifest, family: str) -> None:
    """Haystack called the model without `token_type_ids`, so BERT and ELECTRA readers got zeros for all tokens."""
    pair, expected = LAYOUTS[family]
    pairs = PairEncoder(replace(manifest, pair=pair))
    question = small_tokenizer().encode_question("who is", 64)
    (found,) = pairs.windows(question, small_tokenizer().encode_text("the cat"))
    arrays = pairs.batch([found])
    length = len(expected)
    assert arrays["token_type_ids"][0, :length].tolist() == expected
    assert not arrays["token_type_ids"][0, length:].any()
    assert arrays["input_ids"][0, :length].tolist() == [
        *pair.head,
        *question.ids,
        *pair.middle,
        *small_tokenizer().encode_text("the cat").ids,
        *pair.tail,
    ]
    assert arrays["attention_mask"][0].tolist() == [1] * length + [0] * (arrays["attention_mask"].shape[1] - length)


def test_an_empty_text_does_not_shift_the_answers_of_other_texts(encoder: TextPairEncoder) -> None:
    """Haystack dropped documents without content but kept their questions, so answers belonged to other documents."""
    texts = ["The cat sat.", "", " ", "The dog sat."]
    windows = [encoder.windows("Who sat?", text) for text in texts]
    assert [len(found) for found in windows] == [1, 0, 0, 1]
    readings = [
        best_spans(found, [(np.zeros(99), np.zeros(99))] * len(found), encoder.passage(text), text, max_answer_tokens=4)
        for found, text in zip(windows, texts, strict=True)
    ]
    assert [bool(reading.spans) for reading in readings] == [True, False, False, True]
    names = [f"d:{{t}}:{i}" for i in range(3)]
    value = {
        "spans": [], "document_version": "v", "sentence": "s", "sentence_start": 0, "reading_revision": "m",
        "cache": "miss", "windows": 1, "truncated": False,
    }  # fmt: skip
    replies = [orjson.dumps(value), b"-NOTFOUND gone", orjson.dumps(value)]
    parsed = parse_readings(names, replies, "shard")
    assert [reading and reading.sentence.index for reading in parsed] == [0, None, 2]


def test_eight_threads_share_one_tokenizer(encoder: TextPairEncoder) -> None:
    """tokenizers #537, Haystack #1229, transformers #47085: "Already borrowed", because each call set a truncation."""
    tokenizer = encoder.tokenizer
    texts = [f"Text {number}: {'Zoë sat on the mat. ' * number}" for number in range(1, 9)]
    expected = [tokenizer.encode_text(text).ids.tolist() for text in texts]
    ready = threading.Barrier(8)

    def work(number: int) -> bool:
        ready.wait(120)
        for turn in range(40):
            limit = 1 + (number + turn) % 16
            question = tokenizer.encode_question(texts[number], limit)
            whole = tokenizer.encode_texts(texts)
            assert len(question.ids) == min(limit, len(expected[number]))
            assert [tokens.ids.tolist() for tokens in whole] == expected
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


class _NoTokenizer:
    """It has the fingerprint of the stored tokens' tokenizer, and cannot tokenize."""

    fingerprint = 5


class _Reader(Reader):
    """A reader that can make no tokens."""

    def __init__(self) -> None:
        self.tokenizer: Any = _NoTokenizer()
        self.manifest: Any = SimpleNamespace(context_tokens=50)
        self._sentences = OrderedDict()


def test_stored_texts_are_not_tokenized_again() -> None:
    """transformers #4748, #3007, #11126: tokenizing the context for every question took most of the time."""
    texts = ["The cat sat.", "Who is it?", "The dog."]
    left, own, right = (
        LocatedSentence(i, text, start) for i, (text, start) in enumerate(zip(texts, [0, 13, 24], strict=True))
    )
    block = pack_tokens(small_tokenizer().encode_texts(texts), _NoTokenizer.fingerprint)
    record = SentenceRecord(1, own.text, own.start, "v", "d", "", "", (left,), (right,), (block,))
    reader = _Reader()
    passage = passage_of(record, reader)
    assert passage.text == "The cat sat. Who is it? The dog."
    assert passage.tokens.ids.tolist() == [
        i for text in texts for i in small_tokenizer().encode_text(text).ids.tolist()
    ]
    # tokens stay in memory after they were unpacked once
    again = passage_of(replace(record, blocks=()), reader)
    assert again.tokens.ids.tolist() == passage.tokens.ids.tolist()
