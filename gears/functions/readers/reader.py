"""The readers of this shard as the functions need them: tokenizer, manifest, model, and the question tokens kept.

One of them is the default; any other is asked for by its id or by ``id@revision``. They are read from the shard's keys
(`reader_keys`); the event of a change to one of them makes the next use look again. A key that has left with its slot
takes nothing away: what was loaded is used until the shard's own keys hold it again (`reader_copies` sees to that), or
until it is on no shard any more. All state is the event loop's.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from qa_cluster.errors import ModelError
from qa_cluster.gears.functions.readers import keys as reader_keys
from qa_cluster.gears.functions.readers.keys import Stored
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.scripting.held_model import HeldModel
from qa_cluster.keys import tokenizer_key
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.reading.manifest import Manifest, sha256_hex
from qa_cluster.reading.tokenization import QuestionTokens, ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder

MAX_QUESTIONS = 4096
LOOK_AGAIN_SECONDS = 1.0
# A reader whose keys are gone is let go of only then: what looks like that may be a slot that has just left.
GONE_SECONDS = 0.5
UNKNOWN_SECONDS = 0.1

_arrivals = itertools.count(1)


class Reader:
    """A loaded tokenizer with its manifest and model. `tag` is that of its keys, None while it is in none."""

    def __init__(
        self, tokenizer: ReaderTokenizer, manifest_text: bytes, model: HeldModel | None, tag: str | None
    ) -> None:
        self.tag = tag
        self.tokenizer = tokenizer
        self.manifest_text = manifest_text
        self.manifest = Manifest.from_json(manifest_text)
        self.name = self.manifest.name
        self.pairs = PairEncoder(self.manifest)
        self.model = model
        # Every shape of the manifest has been run; `problem` says why the model cannot be.
        self.warm = False
        self.problem = ""
        self.gone_since: float | None = None
        self.arrival = next(_arrivals)
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
        self.default: Reader | None = None
        self.by_name: dict[str, Reader] = {}
        self.looked_at = -LOOK_AGAIN_SECONDS
        self.doubtful = False
        self.changes = 0
        self.problem = ""
        self.tag: str | None = None


_loaded = _Loaded()


def current() -> Reader:
    """The shard's default reader; ModelError says what is missing."""
    found = if_loaded()
    if found is None:
        tag = slots.current().tag
        where = "the shard has no slots" if tag is None else f"{tokenizer_key(tag)} or its manifest is empty"
        raise ModelError(f"no reader on this shard: {_loaded.problem or where}")
    return found


def if_loaded() -> Reader | None:
    """The shard's default reader, or None while there is none."""
    waiting = _loaded.default is None and time.monotonic() - _loaded.looked_at > LOOK_AGAIN_SECONDS
    if _loaded.doubtful or waiting:
        look()
    return _loaded.default


def named(model: str) -> Reader:
    """The reader that `model` means: empty the default one, else an id or ``id@revision``.

    Of several revisions of an id it is the default's, else the one exported last. ModelError names what is loaded.
    """
    if not model:
        return current()
    if _loaded.doubtful:
        look()
    found = _meant(model)
    if found is None and time.monotonic() - _loaded.looked_at > UNKNOWN_SECONDS:
        look()
        found = _meant(model)
    if found is None:
        loaded = ", ".join(sorted(_loaded.by_name)) or "none"
        raise ModelError(f"model {model[:200]!r} is not loaded on this shard, loaded are: {loaded}")
    return found


def is_default(reader: Reader) -> bool:
    """Whether it answers those who name none."""
    return reader is _loaded.default


def _meant(model: str) -> Reader | None:
    found = _loaded.by_name.get(model)
    if found is None:
        same_id = [reader for reader in _loaded.by_name.values() if reader.manifest.model_id == model]
        found = _loaded.default if _loaded.default in same_id else max(same_id, key=_age, default=None)
    return found


def _age(reader: Reader) -> tuple[str, int]:
    return reader.manifest.created, reader.arrival


def everyone() -> list[Reader]:
    """All readers, the default one first."""
    others = sorted((reader for reader in _loaded.by_name.values() if reader is not _loaded.default), key=_age)
    return [_loaded.default, *others] if _loaded.default is not None else others


def revisions() -> dict[str, str]:
    """What every name that can be asked for means now: the reading revision of its reader."""
    found = {name: reader.manifest.reading_revision for name, reader in _loaded.by_name.items()}
    for model_id in {reader.manifest.model_id for reader in _loaded.by_name.values()}:
        if (reader := _meant(model_id)) is not None:
            found[model_id] = reader.manifest.reading_revision
    if _loaded.default is not None:
        found[""] = _loaded.default.manifest.reading_revision
    return found


def forget() -> None:
    """The keys may have changed: look at them at the next use."""
    _loaded.doubtful = True


def add(reader: Reader, *, default: bool) -> None:
    """Use this one, in place of another of its name, until the shard's keys say otherwise."""
    before = _loaded.by_name.get(reader.name)
    if before is not None and before.model is not None and before.model is not reader.model:
        before.model.release()
    _loaded.by_name[reader.name] = reader
    if default or (_loaded.default is not None and _loaded.default.name == reader.name):
        _loaded.default = reader
    _loaded.changes += 1


def drop(reader: Reader) -> None:
    """It is on no shard any more."""
    if _loaded.by_name.get(reader.name) is reader:
        del _loaded.by_name[reader.name]
    if _loaded.default is reader:
        _loaded.default = None
    if reader.model is not None:
        reader.model.release()
    _loaded.changes += 1


def changes() -> int:
    """How often there has been another reader, or another default."""
    return _loaded.changes


def look() -> bool:
    """Take up what the shard's keys hold, where it belongs together; whether a whole default reader is there."""
    _loaded.looked_at = time.monotonic()
    _loaded.doubtful = False
    tag = slots.current().tag
    if tag is None:
        return False
    stored = reader_keys.stored(tag)
    if stored is None:
        return False
    _loaded.problem = ""
    if tag != _loaded.tag:
        # Its slots have changed: what is not under the new tag yet has not been removed by anybody.
        _loaded.tag = tag
        for known in everyone():
            known.tag = None
    here: dict[str, Reader] = {}
    default: Reader | None = None
    is_whole = False
    for item in stored:
        try:
            reader = _take(tag, item, here)
        except ModelError as error:
            _loaded.problem = f"{item.where(tag)}: {error}"
            continue
        if reader is not None and here.setdefault(reader.name, reader) is reader and not item.name:
            default, is_whole = reader, item.ref is not None
    if default is not None and default is not _loaded.default:
        _loaded.default = default
        _loaded.changes += 1
    _let_go(tag, list(here.values()))
    return is_whole


def _take(tag: str, item: Stored, here: Mapping[str, Reader]) -> Reader | None:
    """The reader of these keys; None while they do not belong together, or when `here` has one of that name already."""
    known = next((reader for reader in _loaded.by_name.values() if reader.manifest_text == item.manifest), None)
    manifest = known.manifest if known is not None else Manifest.from_json(item.manifest)
    if item.name not in ("", manifest.name):
        _loaded.problem = f"the manifest of {item.name!r} is that of {manifest.name!r}"
        return None
    if item.mark not in ("", manifest.name):
        # One of them has just been replaced and the other not yet: its event makes us look again.
        _loaded.problem = f"the model of {item.where(tag)} is {item.mark!r}, the manifest is that of {manifest.name!r}"
        return None
    if manifest.name in here:
        return None
    if known is None:
        return _first(tag, item, manifest)
    if item.ref is not None:
        known.model, known.tag = _model(known, manifest, item.ref), tag
    return known


def _first(tag: str, item: Stored, manifest: Manifest) -> Reader | None:
    """A reader that was not known, or has another manifest than before."""
    before = _loaded.by_name.get(manifest.name)
    if item.ref is None and (item.name or _loaded.default is not None):
        return None  # only where there is no reader at all documents are tokenized without its model
    tokenizer = next(
        (r.tokenizer for r in everyone() if r.manifest.tokenizer_sha256 == manifest.tokenizer_sha256), None
    )
    if tokenizer is None:
        text = reader_keys.tokenizer(tag, item.name)
        if text is None or sha256_hex(text) != manifest.tokenizer_sha256:
            _loaded.problem = f"{tokenizer_key(tag, item.name)} is not the tokenizer that {manifest.name!r} names"
            return None
        tokenizer = ReaderTokenizer(text)
    model = _model(before, manifest, item.ref) if item.ref is not None else None
    reader = Reader(tokenizer, item.manifest, model, tag)
    add(reader, default=not item.name)
    return reader


def _model(known: Reader | None, manifest: Manifest, ref: int) -> HeldModel:
    """The model at `ref`; what is compiled stays in use where it is of the same bytes."""
    if known is None or known.model is None:
        return HeldModel(ref)
    if known.model.ref == ref:
        return known.model
    if known.manifest.model_sha256 == manifest.model_sha256 and not HeldModel(ref).is_loaded:
        # A copy of what it held: from another shard, or from when the shard's lowest slot was another one.
        known.model.same_as(ref)
        return known.model
    known.model.release()
    known.warm = False
    return HeldModel(ref)


def _let_go(tag: str, here: Sequence[Reader]) -> None:
    """Drop the readers whose keys were removed. The default one stays until `reader_copies` gives it up."""
    now = time.monotonic()
    for reader in everyone():
        if any(reader is other for other in here) or reader.tag != tag:
            reader.gone_since = None
        elif reader is _loaded.default:
            reader.tag = None
        elif reader.gone_since is None:
            reader.gone_since = now
        elif now - reader.gone_since > GONE_SECONDS and not slots.is_leaving(tag):
            drop(reader)
