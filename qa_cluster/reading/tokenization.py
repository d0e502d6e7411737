"""Turns text into a reader's tokens, and tokens into the tensors that shards store.

Sentences are tokenized once, when they are stored, without special tokens and with the code points that each token
covers; `windows` puts the question before them when it is asked. The tokenizer's own padding and truncation stay off:
they would be state shared by all callers, and a question that is cut off must be reported (`QuestionTokens.truncated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from qa_cluster.errors import InvalidInput, ModelError

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class QuestionTokens:
    """The token ids of a question; `truncated` tells whether its end was cut off."""

    ids: IntArray
    truncated: bool


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Token ids of a text without special tokens, and the code points of it that each token covers."""

    ids: IntArray
    starts: IntArray
    ends: IntArray


@dataclass(frozen=True, slots=True)
class StoredSentence:
    """The contents of a sentence's tensor: its place in the document, its tokens, and which tokenizer made them."""

    fingerprint: int
    start: int
    end: int
    tokens: TextTokens


class ReaderTokenizer:
    """The tokenizer of a reader, of any family. Safe to use from several threads.

    >>> tokenizer = ReaderTokenizer(open("tokenizer.json", "rb").read())  # doctest: +SKIP
    >>> tokenizer.encode_text("A cat.").ids.tolist()  # doctest: +SKIP
    [1037, 4937, 1012]
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer cannot be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        digest = blake2b(tokenizer_json, digest_size=8)
        self.digest = digest.hexdigest()
        # 31 bits of the digest are stored with every sentence, so that a reader never gets another tokenizer's tokens.
        self.fingerprint = int.from_bytes(digest.digest()[:4], "big") >> 1

    def encode_question(self, question: str, max_question_tokens: int) -> QuestionTokens:
        """The first ``max_question_tokens`` tokens of a question."""
        try:
            # a batch of one would wake the library's threads, which costs more than the encoding
            encoding = self._tokenizer.encode(question, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _not_unicode(question) from error
        ids = np.asarray(encoding.ids, dtype=np.int32)
        return QuestionTokens(ids[:max_question_tokens], len(ids) > max_question_tokens)

    def encode_text(self, text: str) -> TextTokens:
        """Tokens of one text, a sentence or a passage."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> list[TextTokens]:
        """Tokens of many texts, encoded together outside the interpreter lock."""
        return [_text_tokens(encoding) for encoding in self._encode(texts)]

    def encode_words(self, text: str) -> tuple[TextTokens, IntArray]:
        """Tokens of one text, and the number of each token's word, as the tokenizer splits words; -1 for none."""
        (encoding,) = self._encode([text])
        words = [-1 if word is None else word for word in encoding.word_ids]
        return _text_tokens(encoding), np.asarray(words, dtype=np.int32)

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        try:
            return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _not_unicode(next((text for text in texts if not is_unicode(text)), None)) from error


def _text_tokens(encoding: Encoding) -> TextTokens:
    offsets = np.asarray(encoding.offsets, dtype=np.int32).reshape(-1, 2)
    return TextTokens(np.asarray(encoding.ids, dtype=np.int32), offsets[:, 0].copy(), offsets[:, 1].copy())


def _not_unicode(text: str | None) -> InvalidInput:
    return InvalidInput(f"text is not valid Unicode: {ascii(text)[:100]}")


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded, that is, holds no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def pack_sentence(start: int, end: int, tokens: TextTokens, fingerprint: int) -> tuple[tuple[int, int], bytes]:
    """Shape and bytes of the INT32 tensor that stores a sentence's place in the document and its tokens."""
    tensor = np.zeros((3, 1 + len(tokens.ids)), dtype="<i4")
    tensor[:, 0] = fingerprint, start, end
    tensor[0, 1:], tensor[1, 1:], tensor[2, 1:] = tokens.ids, tokens.starts, tokens.ends
    return (3, tensor.shape[1]), tensor.tobytes()


def unpack_sentence(blob: bytes) -> StoredSentence:
    """The sentence that `pack_sentence` packed."""
    if not blob or len(blob) % 12:
        raise InvalidInput(f"token tensor must be INT32 [3, 1 + tokens], got {len(blob)} bytes")
    tensor = np.frombuffer(blob, dtype="<i4").reshape(3, -1)
    tokens = TextTokens(tensor[0, 1:], tensor[1, 1:], tensor[2, 1:])
    return StoredSentence(int(tensor[0, 0]), int(tensor[1, 0]), int(tensor[2, 0]), tokens)
