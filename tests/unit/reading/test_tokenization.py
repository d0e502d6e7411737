"""Tokens, offsets and reader inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.reading.tokenization import ReaderTokenizer, TextTokens, pack_tokens, unpack_tokens
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


def same(one: TextTokens, other: TextTokens) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "starts", "ends"))


@settings(deadline=None)
@given(st.lists(texts(3), max_size=5))
def test_blocks_unpack_to_the_packed_tokens(sentences: list[str]) -> None:
    tokens = small_tokenizer().encode_texts(sentences)
    found = unpack_tokens(pack_tokens(tokens, 2**31 - 1), 2**31 - 1)
    assert found is not None
    assert len(found) == len(tokens) and all(map(same, found, tokens))


def test_a_block_holds_any_places_and_ids() -> None:
    """Tokens may be long, distant, empty or overlapping, and offsets may decrease. Ids may need more than two bytes."""
    starts = np.array([0, 14, 30, 46, 40, 5000, 5000], np.int32)
    ends = np.array([14, 15, 45, 62, 41, 5400, 5000], np.int32)
    for highest in (0xFFFF, 0x10000):
        tokens = TextTokens(np.array([0, 1, 2, 3, 4, 5, highest], np.int32), starts, ends)
        found = unpack_tokens(pack_tokens([tokens, tokens], 3), 3)
        assert found is not None and all(same(each, tokens) for each in found)


def test_tokens_take_few_bytes() -> None:
    tokens = small_tokenizer().encode_texts(["the cat sat on the mat"] * 64)
    size = sum(len(each.ids) for each in tokens)
    assert len(pack_tokens(tokens, 1)) <= 3 * size + 2 * 64 + 16


def test_a_block_of_another_tokenizer_is_ignored_and_a_damaged_block_is_refused() -> None:
    block = pack_tokens(small_tokenizer().encode_texts(["the cat sat"] * 3), 1)
    assert unpack_tokens(block, 2) is None
    for end in range(len(block)):
        with pytest.raises(InvalidInput, match="block of tokens"):
            unpack_tokens(block[:end], 1)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        ReaderTokenizer(data)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="udcff"):
        small_tokenizer().encode_text("a\udcff")
