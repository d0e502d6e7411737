"""The reader of this shard as the functions need it: tokenizer, manifest, model, and the question tokens kept for it.

It is read from the shard's keys; the event of a change to one of them makes the next use look again. A key that has
left with its slot takes nothing away: what was loaded is used until another reader, or a copy of this one, is in the
shard's own keys (`reader_copies` sees to that), or until there is none on any shard.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from qa_cluster.gears import api as rg
from qa_cluster.gears.functions import slots
from qa_cluster.gears.held_model import HeldModel, reference

from qa_cluster.errors import ModelError
from qa_cluster.keys import manifest_key, model_key, tokenizer_key
from qa_cluster.manifest import Manifest, sha256_hex
from qa_cluster.terms import ANALYZER_VERSION
from qa_cluster.tokenization import QuestionTokens, ReaderTokenizer
from qa_cluster.windows import PairEncoder

MAX_QUESTIONS = 4096
LOOK_AGAIN_SECONDS = 1.0


class Reader:
    """A loaded tokenizer with its manifest and model. `tag` is that of its keys, None while it is in none."""

    def __init__(
        self, tokenizer: ReaderTokenizer, manifest_text: bytes, model: HeldModel | None, tag: str | None
    ) -> None:
        self.tag = tag
        self.tokenizer = tokenizer
        self.manifest_text = manifest_text
        self.manifest = Manifest.from_json(manifest_text)
        self.pairs = PairEncoder(self.manifest)
        self.model = model
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
        self.looked_at = -LOOK_AGAIN_SECONDS
        self.doubtful = False
        self.changes = 0


_loaded = _Loaded()


def current() -> Reader:
    """The shard's reader; ModelError says what is missing."""
    found = if_loaded()
    if found is None:
        tag = slots.current().tag
        where = "the shard has no slots" if tag is None else f"{tokenizer_key(tag)} or its manifest is empty"
        raise ModelError(f"no reader on this shard: {where}")
    return found


def if_loaded() -> Reader | None:
    """The shard's reader, or None while there is none."""
    waiting = _loaded.reader is None and time.monotonic() - _loaded.looked_at > LOOK_AGAIN_SECONDS
    if _loaded.doubtful or waiting:
        look()
    return _loaded.reader


def forget() -> None:
    """The keys may have changed: look at them at the next use."""
    _loaded.doubtful = True


def use(reader: Reader | None) -> None:
    """Take this one, or none, until the shard's keys hold another."""
    _loaded.reader = reader
    _loaded.changes += 1


def changes() -> int:
    """How often the reader has become another."""
    return _loaded.changes


def look() -> bool:
    """Take up what the shard's keys hold, if it belongs together; whether a whole reader is there."""
    _loaded.looked_at = time.monotonic()
    _loaded.doubtful = False
    tag = slots.current().tag
    if tag is None:
        return False
    try:
        tokenizer, manifest, model = slots.read(
            [("GET", tokenizer_key(tag)), ("GET", manifest_key(tag)), ("EXISTS", model_key(tag))]
        )
        if tokenizer is None or manifest is None:
            return False
        ref, marked = _stored_model(tag) if model else (None, "")
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return False
    return _take(tag, as_bytes(tokenizer), as_bytes(manifest), ref, marked)


def _stored_model(tag: str) -> tuple[int | None, str]:
    """Reference and TAG of the model of this shard."""
    (meta,) = slots.read([("AI.MODELGET", model_key(tag), "META")])
    fields = dict(zip(meta[::2], meta[1::2], strict=True))
    return reference(model_key(tag)), str(fields.get("tag") or "")


def _take(tag: str, tokenizer: bytes, manifest_text: bytes, ref: int | None, marked: str) -> bool:
    manifest = Manifest.from_json(manifest_text)
    known = _loaded.reader
    name = f"{manifest.model_id}@{manifest.revision}"
    problem = ""
    if sha256_hex(tokenizer) != manifest.tokenizer_sha256:
        problem = f"{tokenizer_key(tag)} is not the tokenizer that the manifest of {manifest.model_id!r} names"
    elif marked not in ("", name):
        problem = f"{model_key(tag)} is {marked!r}, the manifest is that of {name!r}"
    if problem:
        # One of them has just been replaced and the other not yet: its event makes us look again.
        if known is None:
            raise ModelError(problem)
        return False
    if known is None or (ref is not None and known.manifest_text != manifest_text):
        use(Reader(ReaderTokenizer(tokenizer), manifest_text, _model(known, manifest, tag, ref), tag))
    elif ref is not None and known.manifest_text == manifest_text:
        known.model = _model(known, manifest, tag, ref)
        known.tag = tag
    return ref is not None


def _model(known: Reader | None, manifest: Manifest, tag: str, ref: int | None) -> HeldModel | None:
    """The model at `ref`; what is compiled stays in use where it is of the same bytes."""
    if ref is None:
        return None
    if known is not None and known.model is not None:
        if known.model.ref == ref:
            return known.model
        if known.tag != tag and known.manifest.model_sha256 == manifest.model_sha256:
            # The shard's lowest slot is another one, or it has its first: this is a copy of what it held.
            known.model.same_as(ref)
            return known.model
        known.model.release()
    return HeldModel(ref)


def as_bytes(value: Any) -> bytes:
    """A value of a key as it is stored."""
    return value.encode() if isinstance(value, str) else bytes(value)


async def on_reader(_arguments: list[Any]) -> str:
    """Trigger ``qa.reader``: the manifest of the reader that answers on this shard now, empty without one.

    It is in memory while the keys it came from are on another shard and a copy is on its way.
    """
    found = if_loaded()
    return "" if found is None or found.model is None else found.manifest_text.decode()
