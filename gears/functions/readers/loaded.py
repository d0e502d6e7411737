"""The loaded readers and encoders of this shard: finds the default reader, and the reader with a given name.

One reader is the default. Requests name any other reader by its id or by ``id@revision``. Readers are loaded from the
shard's keys (`stored`). After a change of these keys, the next use reads the keys again. If the keys migrate with their
slot, the loaded readers stay in use, and `copies` stores them in the shard's keys again. A reader is dropped when no
shard has it any more.

An encoder is stored, copied and dropped like a reader. But it is never the default, and it never reads a question.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from qa_cluster.errors import ModelError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.keys import model_key, tokenizer_key
from qa_cluster.manifest_fields import sha256_hex
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.vectors.encoder_manifest import AnyManifest, EncoderManifest, parse_manifest

from .encoder import ShardEncoder
from .reader import Reader
from .reader_model import ReaderModel
from .shard_model import ShardModel
from .stored import StoredReader, StoredReaders

READ_AGAIN_SECONDS = 1.0
# A reader is dropped only if its keys have been missing for this time, because its slot may have just migrated.
GONE_SECONDS = 0.5
UNKNOWN_SECONDS = 0.1


class ShardReaders:
    """The loaded readers and encoders.

    Attributes:
        changes: the number of changes of models and of the default reader.
        answers_checked_for: the value of `revisions` at the last check of this shard's cached answers; None before the
            first check.
    """

    def __init__(self, shard: ShardContext, stored: StoredReaders, models: ModelStore) -> None:
        self._slots = shard.slots
        self._stored = stored
        self._models = models
        self.changes = 0
        self.answers_checked_for: Mapping[str, str] | None = None
        self._default: Reader | None = None
        self._by_name: dict[str, ShardModel] = {}
        self._arrivals = 0
        self._read_at = -READ_AGAIN_SECONDS
        self._may_be_stale = False
        self._problem = ""
        self._tag: str | None = None

    def current(self) -> Reader:
        """Return the shard's default reader. If it is missing, raise ModelError with the reason."""
        found = self.if_loaded()
        if found is None:
            tag = self._slots.current().tag
            where = "the shard has no slots" if tag is None else f"{tokenizer_key(tag)} or its manifest is empty"
            raise ModelError(f"no reader on this shard: {self._problem or where}")
        return found

    def if_loaded(self) -> Reader | None:
        """Return the shard's default reader; None if it is missing."""
        is_due = self._default is None and time.monotonic() - self._read_at > READ_AGAIN_SECONDS
        if self._may_be_stale or is_due:
            self.read_keys()
        return self._default

    def named(self, model: str) -> Reader:
        """Return a reader by its id or ``id@revision``; an empty name means the default reader.

        If several revisions of an id are loaded, return the default reader if it has this id, otherwise the newest
        export. Raises ModelError if the reader is not loaded; the error names the loaded readers.
        """
        if not model:
            return self.current()
        if self._may_be_stale:
            self.read_keys()
        found = self._meant(model)
        if found is None and isinstance(self._by_name.get(model), ShardEncoder):
            raise _is_encoder(model)
        if found is None and time.monotonic() - self._read_at > UNKNOWN_SECONDS:
            self.read_keys()
            found = self._meant(model)
        if found is None:
            if any(model in (encoder.name, encoder.manifest.model_id) for encoder in self._encoders()):
                raise _is_encoder(model)
            names = ", ".join(sorted(reader.name for reader in self._readers())) or "none"
            raise ModelError(f"model {model[:200]!r} is not loaded on this shard, loaded are: {names}")
        return found

    def encoder(self) -> ShardEncoder | None:
        """Return the encoder for vectors; None if no encoder is loaded.

        Of several encoders, all shards choose the newest.
        """
        if self._may_be_stale:
            self.read_keys()
        usable = [encoder for encoder in self._encoders() if encoder.model is not None]
        return max(usable, key=lambda encoder: (encoder.manifest.created, encoder.name), default=None)

    def _encoders(self) -> list[ShardEncoder]:
        return [model for model in self._by_name.values() if isinstance(model, ShardEncoder)]

    def _readers(self) -> list[Reader]:
        return [model for model in self._by_name.values() if isinstance(model, Reader)]

    def is_default(self, reader: ShardModel) -> bool:
        """Return whether this reader reads questions that name no reader."""
        return reader is self._default

    def key_model(self, model: str, reader: Reader) -> str:
        """Return the model's name in the keys of answers, for a request that names `model` and is read by `reader`.

        The result is empty if `model` is the full name (``id@revision``) of the default reader, as for a request that
        names no model. Otherwise the result is `model`.
        """
        return "" if model == reader.name and self.is_default(reader) else model

    def _meant(self, model: str) -> Reader | None:
        exact = self._by_name.get(model)
        found = exact if isinstance(exact, Reader) else None
        if found is None:
            same_id = [reader for reader in self._readers() if reader.manifest.model_id == model]
            found = self._default if self._default in same_id else max(same_id, key=_age, default=None)
        return found

    def all_models(self) -> list[ShardModel]:
        """Return all readers and encoders: first the default reader, then the other models, the oldest export first."""
        others = sorted((reader for reader in self._by_name.values() if reader is not self._default), key=_age)
        return [self._default, *others] if self._default is not None else others

    def revisions(self) -> dict[str, str]:
        """Return the reading revisions of the readers, by each name that a request can use.

        The names are ``id@revision``, the id, and the empty name for the default reader.
        """
        found = {reader.name: reader.manifest.reading_revision for reader in self._readers()}
        for model_id in {reader.manifest.model_id for reader in self._readers()}:
            if (reader := self._meant(model_id)) is not None:
                found[model_id] = reader.manifest.reading_revision
        if self._default is not None:
            found[""] = self._default.manifest.reading_revision
        return found

    def answers_are_settled(self) -> bool:
        """Return whether every cached answer on this shard comes from the reader that its key names."""
        return self.answers_checked_for == self.revisions()

    def forget(self) -> None:
        """Read the keys again at the next use, because they may have changed."""
        self._may_be_stale = True

    def add(self, reader: ShardModel, *, default: bool) -> None:
        """Use this model until the shard's keys contain a different model.

        The model replaces a loaded model with the same name.
        """
        before = self._by_name.get(reader.name)
        if before is not None and before.model is not None and before.model is not reader.model:
            before.model.release()
        self._by_name[reader.name] = reader
        if not reader.arrival:
            self._arrivals += 1
            reader.arrival = self._arrivals
        is_default = default or (self._default is not None and self._default.name == reader.name)
        if is_default and isinstance(reader, Reader):
            self._default = reader
        self.changes += 1

    def drop(self, reader: ShardModel) -> None:
        """Stop using a model and release it."""
        if self._by_name.get(reader.name) is reader:
            del self._by_name[reader.name]
        if self._default is reader:
            self._default = None
        if reader.model is not None:
            reader.model.release()
        self.changes += 1

    def read_keys(self) -> bool:
        """Load the readers and encoders whose keys are under the shard's own tag and belong together.

        Return whether the default reader is complete: its manifest, its tokenizer and its model are in these keys. If
        the keys cannot be read, for example because the shard has no slots, change nothing and return False.
        """
        self._read_at = time.monotonic()
        self._may_be_stale = False
        tag = self._slots.current().tag
        if tag is None:
            return False
        found = self._stored.under(tag)
        if found is None:
            return False
        self._problem = ""
        if tag != self._tag:
            # The shard's tag has changed. A reader that is missing under the new tag was not removed.
            self._tag = tag
            for known in self.all_models():
                known.tag = None
        here: dict[str, ShardModel] = {}
        default: Reader | None = None
        is_whole = False
        for item in found:
            try:
                reader = self._loaded_from(tag, item, here)
            except ModelError as error:
                self._problem = f"{model_key(tag, item.name)}: {error}"
                continue
            is_first = reader is not None and here.setdefault(reader.name, reader) is reader
            if is_first and not item.name and isinstance(reader, Reader):
                default, is_whole = reader, item.ref is not None
        if default is not None and default is not self._default:
            self._default = default
            self.changes += 1
        self._drop_removed(tag, list(here.values()))
        return is_whole

    def _loaded_from(self, tag: str, item: StoredReader, here: Mapping[str, ShardModel]) -> ShardModel | None:
        """Return the model in the keys that `item` describes, and load it if it is new.

        `here` has the models that this read of the keys has found before, by name. Return None if the keys do not
        belong together, or if `here` already has a model of this name.
        """
        known = next((model for model in self._by_name.values() if model.manifest_text == item.manifest), None)
        manifest = known.manifest if known is not None else parse_manifest(item.manifest)
        if not item.name and isinstance(manifest, EncoderManifest):
            self._problem = f"the keys of the default reader contain the encoder {manifest.name!r}"
            return None
        if item.name not in ("", manifest.name):
            self._problem = f"the keys of {item.name!r} contain the manifest of {manifest.name!r}"
            return None
        if item.mark not in ("", manifest.name):
            # A client has replaced only one of the keys so far. The event of the second key causes another read.
            self._problem = (
                f"the model of {model_key(tag, item.name)} is {item.mark!r}, but the manifest names {manifest.name!r}"
            )
            return None
        if manifest.name in here:
            return None
        if known is None:
            return self._load_new(tag, item, manifest)
        if item.ref is not None:
            known.model, known.tag = self._model(known, manifest, item.ref), tag
        return known

    def _load_new(self, tag: str, item: StoredReader, manifest: AnyManifest) -> ShardModel | None:
        """Load a new model or a model with a changed manifest; return None if a part is missing or wrong."""
        before = self._by_name.get(manifest.name)
        if item.ref is None and (item.name or self._default is not None):
            return None  # only the first default reader is loaded without its model: documents need its tokenizer
        tokenizer = next(
            (r.tokenizer for r in self.all_models() if r.manifest.tokenizer_sha256 == manifest.tokenizer_sha256), None
        )
        if tokenizer is None:
            text = self._stored.read(tokenizer_key(tag, item.name))
            if text is None or sha256_hex(text) != manifest.tokenizer_sha256:
                self._problem = f"{tokenizer_key(tag, item.name)} is not the tokenizer that {manifest.name!r} names"
                return None
            tokenizer = ReaderTokenizer(text)
        model = self._model(before, manifest, item.ref) if item.ref is not None else None
        made = loaded_model(tokenizer, item.manifest, model, tag)
        self.add(made, default=not item.name)
        return made

    def _model(self, known: ShardModel | None, manifest: AnyManifest, ref: int) -> ReaderModel:
        """Return the model with the reference `ref`.

        `known` is the loaded model with the same name; None if no such model is loaded. The compiled model of `known`
        is reused if it has the reference `ref`, or if it has the same bytes as `ref` and this worker has not compiled
        `ref` yet. Otherwise it is released.
        """
        if known is None or known.model is None:
            return ReaderModel(self._models, ref)
        if known.model.ref == ref:
            return known.model
        stored = ReaderModel(self._models, ref)
        if known.manifest.model_sha256 == manifest.model_sha256 and not stored.is_loaded:
            # The key is a copy with the same bytes, from another shard or from another slot.
            known.model.same_as(ref)
            return known.model
        known.model.release()
        known.warm = False
        return stored

    def _drop_removed(self, tag: str, here: Sequence[ShardModel]) -> None:
        """Drop the readers and encoders whose keys have been missing under `tag` for `GONE_SECONDS`.

        `here` has the models whose keys were just found under `tag`. The default reader stays until `copies` drops it.
        """
        now = time.monotonic()
        for reader in self.all_models():
            if any(reader is other for other in here) or reader.tag != tag:
                reader.gone_since = None
            elif reader is self._default:
                reader.tag = None
            elif reader.gone_since is None:
                reader.gone_since = now
            elif now - reader.gone_since > GONE_SECONDS and not self._slots.is_leaving(tag):
                self.drop(reader)


def loaded_model(
    tokenizer: ReaderTokenizer, manifest_text: bytes, model: ReaderModel | None, tag: str | None
) -> ShardModel:
    """Return the reader or the encoder that a manifest describes."""
    kind = ShardEncoder if isinstance(parse_manifest(manifest_text), EncoderManifest) else Reader
    return kind(tokenizer, manifest_text, model, tag)


def _is_encoder(model: str) -> ModelError:
    return ModelError(
        f"model {model[:200]!r} is an encoder, which makes vectors and answers no question: name a reader"
    )


def _age(reader: ShardModel) -> tuple[str, int]:
    return reader.manifest.created, reader.arrival
