"""A BERT tokenizer with a small vocabulary: words, their pieces, and single characters."""

from __future__ import annotations

import string
from functools import cache

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from qa_cluster.reading.tokenization import ReaderTokenizer

_WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "dog",
    "who",
    "what",
    "is",
    "it",
    "un",
    "happy",
    "##happi",
    "##ness",
    "##ly",
)


@cache
def tokenizer_json(lowercase: bool = True) -> bytes:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_WORDS]
    tokens += [*string.ascii_letters, *string.digits, *string.punctuation, *(f"##{c}" for c in string.ascii_letters)]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    # A tokenizer file may enable these; they must have no effect.
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=16)
    return tokenizer.to_str().encode()


@cache
def small_tokenizer() -> ReaderTokenizer:
    return ReaderTokenizer(tokenizer_json())
