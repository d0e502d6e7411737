"""Windows cover the context and keep its offsets; batches have the padding of the model's training."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from qa_cluster.errors import InvalidInput
from qa_cluster.reading.manifest import TOKENIZER_FILE, Manifest
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder, Window, batches

TEXT = "Zoë naïvely paid 5 € for 東京 - “really”? 👩🏽‍🚀 said Ἀθήνα. "


def small(encoder: TextPairEncoder, window: int = 80, stride: int = 8) -> TextPairEncoder:
    pairs = PairEncoder(encoder.pairs.manifest, window_tokens=window, doc_stride=stride)
    return TextPairEncoder(encoder.tokenizer, pairs)


def places(encoder: TextPairEncoder, window: Window, text: str) -> list[tuple[int, int]]:
    passage, until = encoder.passage(text), window.first + window.tokens
    return list(zip(passage.starts[window.first : until], passage.ends[window.first : until], strict=True))


def test_a_pair_is_laid_out_as_the_tokenizer_would(reader: Path, encoder: TextPairEncoder) -> None:
    (window,) = encoder.windows("Who paid?", TEXT)
    expected = Tokenizer.from_file(str(reader / TOKENIZER_FILE)).encode("Who paid?", TEXT)
    arrays = encoder.pairs.batch([window], length_step=1)
    assert arrays["input_ids"][0].tolist() == expected.ids
    assert arrays["token_type_ids"][0].tolist() == expected.type_ids
    assert arrays["attention_mask"][0].tolist() == expected.attention_mask


def test_offsets_are_code_points(encoder: TextPairEncoder) -> None:
    (window,) = encoder.windows("Who paid?", TEXT)
    words = [TEXT[start:end] for start, end in places(encoder, window, TEXT)]
    assert words[:5] == ["Zoë", "naïve", "ly", "paid", "5"]
    assert "東" in words
    assert "".join("".join(words).split()) == "".join(word for word in TEXT.split())


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("stride", [0, 8])
@pytest.mark.parametrize("question", ["Who paid?", "why " * 300])
def test_windows_cover_every_token_with_the_requested_overlap(
    reader: Path, encoder: TextPairEncoder, copies: int, stride: int, question: str
) -> None:
    encoder = small(encoder, stride=stride)
    text = TEXT * copies
    windows = encoder.windows(question, text)
    whole = Tokenizer.from_file(str(reader / TOKENIZER_FILE)).encode(text, add_special_tokens=False).offsets
    seen = [(int(a), int(b)) for window in windows for a, b in places(encoder, window, text)]
    assert list(dict.fromkeys(seen)) == list(dict.fromkeys(whole))
    assert all(len(window.input_ids) <= 80 for window in windows)
    for left, right in pairwise(windows):
        shared = set(places(encoder, left, text)) & set(places(encoder, right, text))
        assert len(shared) >= stride // 2  # several tokens may have the offsets of one emoji


def test_long_questions_are_cut_and_empty_contexts_have_no_window(encoder: TextPairEncoder, manifest: Manifest) -> None:
    (window,) = encoder.windows("why " * 500, "Because.")
    assert window.passage_start == manifest.max_question_tokens + 2
    assert encoder.windows("Why?", " ") == []


def test_batches_pad_to_the_step_and_stay_within_the_budget(encoder: TextPairEncoder) -> None:
    windows = [window for n in (1, 9, 3, 30, 2, 14) for window in encoder.windows("Who?", "word " * n)]
    arrays = encoder.pairs.batch(windows)
    assert arrays["input_ids"].shape == (6, 48)
    assert arrays["attention_mask"].sum(axis=1).tolist() == [len(window.input_ids) for window in windows]
    assert all(array.dtype == np.int64 for array in arrays.values())
    groups = list(batches(windows, max_batch=4, max_batch_tokens=60))
    assert sorted(index for group in groups for index in group) == list(range(6))
    assert all(
        len(group) == 1 or len(group) * max(len(windows[index].input_ids) for index in group) <= 60 for group in groups
    )
    assert all(len(group) <= 4 for group in groups)


@pytest.mark.parametrize(("window", "stride"), [(67, 0), (513, 0), (80, 13), (80, -1)])
def test_impossible_sizes_are_refused(encoder: TextPairEncoder, window: int, stride: int) -> None:
    with pytest.raises(InvalidInput, match=r"must be from"):
        small(encoder, window, stride)
