"""Reports the readers of this shard: the triggers `qa.models` and `qa.reader`."""

from __future__ import annotations

import orjson

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.shard_functions import MODELS_TRIGGER, WITH_MANIFESTS
from qa_cluster.vectors.encoder_manifest import EncoderManifest

from .encoder import ShardEncoder
from .loaded import ShardReaders
from .shard_model import ShardModel


class ReaderReports:
    """Handles the triggers `qa.models` and `qa.reader`."""

    def __init__(self, readers: ShardReaders) -> None:
        self._readers = readers

    async def on_models(self, call: TriggerCall) -> str:
        """Trigger ``qa.models [manifests]``: return a JSON list of the readers and encoders, the default reader first.

        Each entry has:

        - ``kind``: ``reader`` or ``encoder``;
        - ``name``, ``id``, ``revision``, ``default``, ``precision``, ``context_tokens``;
        - ``reading_revision``: a digest of everything that the reader's answers depend on, or that the encoder's
          vectors depend on;
        - ``warm``: whether the model has run in every shape of its manifest;
        - ``bytes``: the size of its ONNX file;
        - ``stored``: whether the reader is in keys with this shard's tag;
        - ``settled``: whether all cached answers on this shard come from the readers that their keys name;
        - ``problem``: why the last try to load the reader and run its shapes failed; empty without a failure;
        - ``manifest``: the text of its manifest, if the call has the argument ``manifests``.
        """
        asked = list(call.arguments)
        if asked not in ([], [WITH_MANIFESTS]):
            raise InvalidInput(f"{MODELS_TRIGGER} takes nothing or {WITH_MANIFESTS!r}, got {asked!r}"[:200])
        self._readers.if_loaded()  # reads changed keys
        settled = self._readers.answers_are_settled()
        entries = [self._entry(reader, settled, manifest=bool(asked)) for reader in self._readers.all_models()]
        return orjson.dumps(entries).decode()

    def _entry(self, reader: ShardModel, settled: bool, *, manifest: bool) -> dict[str, object]:
        about = reader.manifest
        entry: dict[str, object] = {
            "name": about.name,
            "kind": "encoder" if isinstance(reader, ShardEncoder) else "reader",
            "id": about.model_id,
            "revision": about.revision,
            "reading_revision": about.digest.hex() if isinstance(about, EncoderManifest) else about.reading_revision,
            "default": self._readers.is_default(reader),
            "warm": reader.warm,
            "precision": about.precision,
            "bytes": about.model_bytes,
            "context_tokens": about.context_tokens,
            "stored": reader.tag is not None and reader.gone_since is None,
            "settled": settled,
            "problem": reader.problem,
        }
        if manifest:
            entry["manifest"] = reader.manifest_text.decode()
        return entry

    async def on_reader(self, _call: TriggerCall) -> str:
        """Trigger ``qa.reader``: return the manifest of the shard's default reader; empty if the reader or its
        model is missing.

        After the keys of the reader have migrated with their slot, the reader is only in memory until its copy is
        complete.
        """
        found = self._readers.if_loaded()
        return "" if found is None or found.model is None else found.manifest_text.decode()
