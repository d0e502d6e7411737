"""Tokens, offsets and reader inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.reading.tokenization import ReaderTokenizer, pack_sentence, unpack_sentence
from tests.unit.small_tokenizer import small_tokenizer
from tests.unit.text_strategies import texts


@settings(deadline=None)
@given(texts(5))
def test_offsets_are_code_points_of_the_sentence(text: str) -> None:
    tokens = small_tokenizer().encode_text(text)
    assert len(tokens.ids) == len(tokens.starts) == len(tokens.ends)
    assert all(0 <= a <= b <= len(text) for a, b in zip(tokens.starts, tokens.ends, strict=True))
    assert (np.diff(tokens.starts) >= 0).all()


def test_offsets_of_letters_that_become_two_or_none() -> None:
    text = "😀 Ünhappy\u200b cat"
    tokens = small_tokenizer().encode_text(text)
    assert [text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)][-1] == "cat"


def test_a_batch_gives_what_single_sentences_give() -> None:
    sentences = ["The cat.", "", "Unhappiness is it?", "\x00", "字 cat"]
    for sentence, tokens in zip(sentences, small_tokenizer().encode_texts(sentences), strict=True):
        alone = small_tokenizer().encode_text(sentence)
        assert (tokens.ids.tolist(), tokens.starts.tolist()) == (alone.ids.tolist(), alone.starts.tolist())
    assert small_tokenizer().encode_texts([]) == []


def test_neither_truncation_nor_padding_of_the_file_is_used() -> None:
    assert len(small_tokenizer().encode_text("cat " * 1000).ids) == 1000
    assert len(small_tokenizer().encode_text("cat").ids) == 1


def test_a_long_question_is_truncated_and_says_so() -> None:
    assert not small_tokenizer().encode_question("cat " * 8, 8).truncated
    question = small_tokenizer().encode_question("cat " * 9, 8)
    assert (len(question.ids), question.truncated) == (8, True)


@settings(deadline=None)
@given(texts(3))
def test_tensors_give_back_what_was_packed(text: str) -> None:
    tokens = small_tokenizer().encode_text(text)
    shape, blob = pack_sentence(7, 7 + len(text), tokens, 2**31 - 1)
    assert shape[0] * shape[1] * 4 == len(blob)
    stored = unpack_sentence(blob)
    assert (stored.fingerprint, stored.start, stored.end) == (2**31 - 1, 7, 7 + len(text))
    assert stored.tokens.ids.tolist() == tokens.ids.tolist()
    assert stored.tokens.ends.tolist() == tokens.ends.tolist()


@pytest.mark.parametrize("blob", [b"", b"1234", b"x" * 13])
def test_a_tensor_of_another_shape_is_refused(blob: bytes) -> None:
    with pytest.raises(InvalidInput, match=f"{len(blob)} bytes"):
        unpack_sentence(blob)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        ReaderTokenizer(data)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="udcff"):
        small_tokenizer().encode_text("a\udcff")
