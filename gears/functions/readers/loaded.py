"""Holds the readers that are loaded on this shard: which one is the default, and which one a name means.

One of them is the default; requests name any other by its id or by ``id@revision``. They are read from the shard's keys
(`stored`); after the event of a change to such a key, the next use reads the keys again. When keys leave with their
slot, the loaded readers stay in use until the shard's own keys hold them again (`copies` sees to that), or until they
are on no shard any more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qa_cluster.errors import ModelError
from qa_cluster.gears.functions.readers import stored
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.readers.stored import StoredReader
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import tokenizer_key
from qa_cluster.reading.manifest import Manifest, sha256_hex
from qa_cluster.reading.tokenization import ReaderTokenizer

LOOK_AGAIN_SECONDS = 1.0
# A reader is dropped only when its keys have been missing for this long: its slot may have just left.
GONE_SECONDS = 0.5
UNKNOWN_SECONDS = 0.1


@dataclass
class _Loaded:
    default: Reader | None = None
    by_name: dict[str, Reader] = field(default_factory=dict)
    arrivals: int = 0
    looked_at: float = -LOOK_AGAIN_SECONDS
    doubtful: bool = False
    changes: int = 0
    problem: str = ""
    tag: str | None = None
    # The `revisions` for which the cached answers were last checked; None: not yet by this worker.
    answered_by: Mapping[str, str] | None = None


def current() -> Reader:
    """The shard's default reader; ModelError names what is missing."""
    found = if_loaded()
    if found is None:
        tag = slots.current().tag
        where = "the shard has no slots" if tag is None else f"{tokenizer_key(tag)} or its manifest is empty"
        raise ModelError(f"no reader on this shard: {state.of(_Loaded).problem or where}")
    return found


def if_loaded() -> Reader | None:
    """The shard's default reader, or None while there is none."""
    loaded = state.of(_Loaded)
    waiting = loaded.default is None and time.monotonic() - loaded.looked_at > LOOK_AGAIN_SECONDS
    if loaded.doubtful or waiting:
        look()
    return loaded.default


def named(model: str) -> Reader:
    """The reader that `model` names: empty for the default one, else an id or ``id@revision``.

    Of several revisions of an id, it is the default's, else the one exported last. ModelError names what is loaded.
    """
    if not model:
        return current()
    loaded = state.of(_Loaded)
    if loaded.doubtful:
        look()
    found = _meant(model)
    if found is None and time.monotonic() - loaded.looked_at > UNKNOWN_SECONDS:
        look()
        found = _meant(model)
    if found is None:
        names = ", ".join(sorted(loaded.by_name)) or "none"
        raise ModelError(f"model {model[:200]!r} is not loaded on this shard, loaded are: {names}")
    return found


def is_default(reader: Reader) -> bool:
    """Whether it is the default reader, which answers questions that name no reader."""
    return reader is state.of(_Loaded).default


def _meant(model: str) -> Reader | None:
    loaded = state.of(_Loaded)
    found = loaded.by_name.get(model)
    if found is None:
        same_id = [reader for reader in loaded.by_name.values() if reader.manifest.model_id == model]
        found = loaded.default if loaded.default in same_id else max(same_id, key=_age, default=None)
    return found


def _age(reader: Reader) -> tuple[str, int]:
    return reader.manifest.created, reader.arrival


def everyone() -> list[Reader]:
    """All readers, the default one first."""
    loaded = state.of(_Loaded)
    others = sorted((reader for reader in loaded.by_name.values() if reader is not loaded.default), key=_age)
    return [loaded.default, *others] if loaded.default is not None else others


def revisions() -> dict[str, str]:
    """The reading revision of the reader that each possible name means now; the default's name is empty."""
    loaded = state.of(_Loaded)
    found = {name: reader.manifest.reading_revision for name, reader in loaded.by_name.items()}
    for model_id in {reader.manifest.model_id for reader in loaded.by_name.values()}:
        if (reader := _meant(model_id)) is not None:
            found[model_id] = reader.manifest.reading_revision
    if loaded.default is not None:
        found[""] = loaded.default.manifest.reading_revision
    return found


def forget() -> None:
    """Read the keys again at the next use: they may have changed."""
    state.of(_Loaded).doubtful = True


def add(reader: Reader, *, default: bool) -> None:
    """Use this reader, in place of another of its name, until the shard's keys hold another."""
    loaded = state.of(_Loaded)
    before = loaded.by_name.get(reader.name)
    if before is not None and before.model is not None and before.model is not reader.model:
        before.model.release()
    loaded.by_name[reader.name] = reader
    if not reader.arrival:
        loaded.arrivals += 1
        reader.arrival = loaded.arrivals
    if default or (loaded.default is not None and loaded.default.name == reader.name):
        loaded.default = reader
    loaded.changes += 1


def drop(reader: Reader) -> None:
    """Stop using a reader and release its model."""
    loaded = state.of(_Loaded)
    if loaded.by_name.get(reader.name) is reader:
        del loaded.by_name[reader.name]
    if loaded.default is reader:
        loaded.default = None
    if reader.model is not None:
        reader.model.release()
    loaded.changes += 1


def changes() -> int:
    """A counter of the changes of readers and of the default."""
    return state.of(_Loaded).changes


def answered_by() -> Mapping[str, str] | None:
    """The `revisions` for which this shard's cached answers were last checked; None if they have not been yet."""
    return state.of(_Loaded).answered_by


def set_answered_by(revisions: Mapping[str, str]) -> None:
    """Note that all cached answers have been checked and are from these `revisions`."""
    state.of(_Loaded).answered_by = revisions


def answers_are_settled() -> bool:
    """Whether every cached answer on this shard is from the reader that its key names now."""
    return answered_by() == revisions()


def look() -> bool:
    """Load the readers in the shard's keys whose parts belong together; return whether the default one is whole."""
    loaded = state.of(_Loaded)
    loaded.looked_at = time.monotonic()
    loaded.doubtful = False
    tag = slots.current().tag
    if tag is None:
        return False
    found = stored.readers(tag)
    if found is None:
        return False
    loaded.problem = ""
    if tag != loaded.tag:
        # Its slots have changed: a reader that is not under the new tag yet has not been removed.
        loaded.tag = tag
        for known in everyone():
            known.tag = None
    here: dict[str, Reader] = {}
    default: Reader | None = None
    is_whole = False
    for item in found:
        try:
            reader = _take(tag, item, here)
        except ModelError as error:
            loaded.problem = f"{item.where(tag)}: {error}"
            continue
        if reader is not None and here.setdefault(reader.name, reader) is reader and not item.name:
            default, is_whole = reader, item.ref is not None
    if default is not None and default is not loaded.default:
        loaded.default = default
        loaded.changes += 1
    _let_go(tag, list(here.values()))
    return is_whole


def _take(tag: str, item: StoredReader, here: Mapping[str, Reader]) -> Reader | None:
    """The reader in these keys; None if they do not belong together, or if `here` already has one of that name."""
    loaded = state.of(_Loaded)
    known = next((reader for reader in loaded.by_name.values() if reader.manifest_text == item.manifest), None)
    manifest = known.manifest if known is not None else Manifest.from_json(item.manifest)
    if item.name not in ("", manifest.name):
        loaded.problem = f"the manifest of {item.name!r} is that of {manifest.name!r}"
        return None
    if item.mark not in ("", manifest.name):
        # One of them has just been replaced and the other not yet: the event of its change leads to another look.
        loaded.problem = f"the model of {item.where(tag)} is {item.mark!r}, the manifest is that of {manifest.name!r}"
        return None
    if manifest.name in here:
        return None
    if known is None:
        return _first(tag, item, manifest)
    if item.ref is not None:
        known.model, known.tag = _model(known, manifest, item.ref), tag
    return known


def _first(tag: str, item: StoredReader, manifest: Manifest) -> Reader | None:
    """Load a reader that was not known, or whose manifest has changed; None if a part is missing or wrong."""
    loaded = state.of(_Loaded)
    before = loaded.by_name.get(manifest.name)
    if item.ref is None and (item.name or loaded.default is not None):
        return None  # only the first default is taken without its model: documents are tokenized with it
    tokenizer = next(
        (r.tokenizer for r in everyone() if r.manifest.tokenizer_sha256 == manifest.tokenizer_sha256), None
    )
    if tokenizer is None:
        text = stored.tokenizer(tag, item.name)
        if text is None or sha256_hex(text) != manifest.tokenizer_sha256:
            loaded.problem = f"{tokenizer_key(tag, item.name)} is not the tokenizer that {manifest.name!r} names"
            return None
        tokenizer = ReaderTokenizer(text)
    model = _model(before, manifest, item.ref) if item.ref is not None else None
    reader = Reader(tokenizer, item.manifest, model, tag)
    add(reader, default=not item.name)
    return reader


def _model(known: Reader | None, manifest: Manifest, ref: int) -> rg.HeldModel:
    """The model at `ref`; the compiled one stays in use if its bytes are the same."""
    if known is None or known.model is None:
        return rg.HeldModel(ref)
    if known.model.ref == ref:
        return known.model
    if known.manifest.model_sha256 == manifest.model_sha256 and not rg.HeldModel(ref).is_loaded:
        # A copy of the same bytes: from another shard, or from the tag of another slot.
        known.model.same_as(ref)
        return known.model
    known.model.release()
    known.warm = False
    return rg.HeldModel(ref)


def _let_go(tag: str, here: Sequence[Reader]) -> None:
    """Drop the readers whose keys were removed. The default one stays until `copies` gives it up."""
    loaded = state.of(_Loaded)
    now = time.monotonic()
    for reader in everyone():
        if any(reader is other for other in here) or reader.tag != tag:
            reader.gone_since = None
        elif reader is loaded.default:
            reader.tag = None
        elif reader.gone_since is None:
            reader.gone_since = now
        elif now - reader.gone_since > GONE_SECONDS and not slots.is_leaving(tag):
            drop(reader)
