"""Converts text to a reader's tokens, and tokens to the blocks that shards store.

Sentences are tokenized when they are first read, or in bulk. Their tokens include no special tokens, and each token has
the code points that it covers. The module `windows` puts the question before these tokens. The tokenizer's own padding
and truncation are turned off for two reasons: all callers would share these settings, and truncation must be reported
(`QuestionTokens.truncated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from struct import error as StructError

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InvalidInput, ModelError

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class QuestionTokens:
    """The token ids of a question, and whether its end was cut off."""

    ids: IntArray
    truncated: bool


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The token ids of a text without special tokens, and the code points that each token covers.

    Token i covers the code points from `starts[i]` to `ends[i]`, half-open.
    """

    ids: IntArray
    starts: IntArray
    ends: IntArray


class ReaderTokenizer:
    """The tokenizer of a reader of any model family. Several threads may use it.

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
        # Every block stores 31 bits of the tokenizer's digest, so that a reader does not use tokens of a different
        # tokenizer.
        self.fingerprint = int.from_bytes(digest.digest()[:4], "big") >> 1

    def encode_question(self, question: str, max_question_tokens: int) -> QuestionTokens:
        """Return the first ``max_question_tokens`` tokens of a question."""
        try:
            # A batch of one text would wake the library's threads, which costs more than the encoding.
            encoding = self._tokenizer.encode(question, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _not_unicode(question) from error
        ids = np.asarray(encoding.ids, dtype=np.int32)
        return QuestionTokens(ids[:max_question_tokens], len(ids) > max_question_tokens)

    def encode_text(self, text: str) -> TextTokens:
        """Return the tokens of one text: a sentence or a passage."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> list[TextTokens]:
        """Return the tokens of many texts. They are encoded together, without the interpreter lock."""
        return [_text_tokens(encoding) for encoding in self._encode(texts)]

    def encode_words(self, text: str) -> tuple[TextTokens, IntArray]:
        """Return the tokens of a text, and for each token the number of its word; -1 if the tokenizer assigns no
        word.
        """
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


_BLOCK = Struct("<IBHI")
_ESCAPE = 15


def pack_tokens(tokens: Sequence[TextTokens], fingerprint: int) -> bytes:
    """Pack the tokens of consecutive sentences into a block that shards store, with about 3 bytes per token.

    The parts of a block:

    - a header: the fingerprint of the tokenizer (u32), the width of ids (u8: 1 for four bytes, 0 for two), the number
      of sentences (u16) and the number of escapes (u32)
    - the number of tokens of each sentence (u16)
    - all ids
    - one byte per token: its distance from the previous token and its length in code points, four bits each
    - for each escape (a byte with 15 and 15): both numbers as i32
    """
    counts = np.array([len(each.ids) for each in tokens], dtype="<u2")
    ids = np.concatenate([each.ids for each in tokens]) if tokens else np.zeros(0, np.int32)
    gaps = [np.diff(each.starts, prepend=0) - _lengths(each, shifted=True) for each in tokens]
    distances = np.concatenate(gaps) if tokens else ids
    lengths = np.concatenate([_lengths(each) for each in tokens]) if tokens else ids
    escaped = (distances < 0) | (distances >= _ESCAPE) | (lengths < 0) | (lengths >= _ESCAPE)
    positions = np.where(escaped, _ESCAPE << 4 | _ESCAPE, distances << 4 | lengths).astype("u1")
    wide = bool(len(ids)) and int(ids.max()) > 0xFFFF
    head = _BLOCK.pack(fingerprint, wide, len(tokens), int(escaped.sum()))
    escapes = np.stack([distances[escaped], lengths[escaped]], axis=1).astype("<i4")
    arrays = (counts, ids.astype("<u4" if wide else "<u2"), positions, escapes)
    return head + b"".join(array.tobytes() for array in arrays)


def _lengths(tokens: TextTokens, *, shifted: bool = False) -> IntArray:
    """Return the length of each token in code points.

    With `shifted`, return for each token the length of the token before it, and 0 for the first token.
    """
    lengths = tokens.ends - tokens.starts
    return np.concatenate([np.zeros(1, np.int32), lengths[:-1]])[: len(lengths)] if shifted else lengths


def unpack_tokens(blob: bytes, fingerprint: int) -> list[TextTokens] | None:
    """Unpack a block of `pack_tokens` into the tokens of each sentence.

    `fingerprint` is the fingerprint of the tokenizer whose tokens are wanted. The result is None if a different
    tokenizer created the block. InvalidInput if the block is damaged.
    """
    try:
        stamp, wide, sentences, escapes = _BLOCK.unpack_from(blob)
        if stamp != fingerprint:
            return None
        counts = np.frombuffer(blob, "<u2", sentences, _BLOCK.size).astype(np.int64)
        total, at = int(counts.sum()), _BLOCK.size + 2 * sentences
        ids = np.frombuffer(blob, "<u4" if wide else "<u2", total, at).astype(np.int32)
        at += total * (4 if wide else 2)
        positions = np.frombuffer(blob, "u1", total, at)
        extra = np.frombuffer(blob, "<i4", 2 * escapes, at + total).reshape(-1, 2)
        distances, lengths = (positions >> 4).astype(np.int32), (positions & _ESCAPE).astype(np.int32)
        escaped = positions == (_ESCAPE << 4 | _ESCAPE)
        distances[escaped], lengths[escaped] = extra[:, 0], extra[:, 1]
    except (ValueError, StructError) as error:
        raise InvalidInput(f"block of tokens cannot be read: {error}") from error
    found = []
    for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
        part = slice(end - count, end)
        ends = np.cumsum(distances[part] + lengths[part], dtype=np.int32)
        found.append(TextTokens(ids[part], ends - lengths[part], ends))
    return found
