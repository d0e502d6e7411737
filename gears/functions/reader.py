"""The reader of this shard as the functions need it: its tokenizer, its manifest and the question tokens kept for it.

Both files are read from the shard's keys once; the event of a change to one of them makes the next use read them again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from qa_cluster.gears import api as rg

from qa_cluster.errors import ModelError
from qa_cluster.keys import manifest_key, model_key, tokenizer_key
from qa_cluster.manifest import Manifest, sha256_hex
from qa_cluster.terms import ANALYZER_VERSION
from qa_cluster.tokenization import QuestionTokens, ReaderTokenizer

MAX_QUESTIONS = 4096
LOOK_AGAIN_SECONDS = 1.0


class Reader:
    """A loaded tokenizer and its manifest."""

    def __init__(self, shard_tag: str, tokenizer: ReaderTokenizer, manifest: Manifest) -> None:
        self.model_key = model_key(shard_tag)
        self.tokenizer = tokenizer
        self.manifest = manifest
        # Names what tokens and postings were made with; a document made with something else is made again.
        self.tokenizer_id = f"{tokenizer.digest}-{ANALYZER_VERSION}"
        self._questions: OrderedDict[str, QuestionTokens] = OrderedDict()

    def question(self, text: str) -> QuestionTokens:
        """The tokens of a question, of the last few thousand from memory."""
        tokens = self._questions.get(text)
        if tokens is None:
            tokens = self.tokenizer.encode_question(text, self.manifest.max_question_tokens)
            self._questions[text] = tokens
            if len(self._questions) > MAX_QUESTIONS:
                self._questions.popitem(last=False)
        else:
            self._questions.move_to_end(text)
        return tokens


class _Loaded:
    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.looked_at = 0.0


_loaded = _Loaded()


def current() -> Reader:
    """The shard's reader; ModelError says what is missing."""
    found = if_loaded()
    if found is None:
        raise ModelError(f"no reader on this shard: {tokenizer_key(rg.hashtag())} or its manifest is empty")
    return found


def if_loaded() -> Reader | None:
    """The shard's reader, or None while there is none."""
    if _loaded.reader is None and time.monotonic() - _loaded.looked_at > LOOK_AGAIN_SECONDS:
        _loaded.looked_at = time.monotonic()
        _loaded.reader = _load()
    return _loaded.reader


def forget() -> None:
    """The files may have changed, or moved to another shard: read them again at the next use."""
    _loaded.reader = None
    _loaded.looked_at = 0.0


def _load() -> Reader | None:
    shard_tag = rg.hashtag()
    tokenizer, manifest = rg.execute_many([("GET", tokenizer_key(shard_tag)), ("GET", manifest_key(shard_tag))])
    if tokenizer is None or manifest is None:
        return None
    tokenizer_json = _bytes(tokenizer)
    checked = Manifest.from_json(_bytes(manifest))
    if sha256_hex(tokenizer_json) != checked.tokenizer_sha256:
        # One of the two has just been replaced and the other not yet: its event makes us look again.
        raise ModelError(
            f"{tokenizer_key(shard_tag)} is not the tokenizer that the manifest of {checked.model_id!r} names"
        )
    return Reader(shard_tag, ReaderTokenizer(tokenizer_json), checked)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
