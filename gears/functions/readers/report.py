"""Reports which readers this shard has: the triggers `qa.models` and `qa.reader`."""

from __future__ import annotations

from typing import Any

import orjson

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.shard_functions import MODELS_TRIGGER, WITH_MANIFESTS


async def on_models(arguments: list[Any]) -> str:
    """Trigger ``qa.models [manifests]``: a JSON list of the readers, the default one first.

    Each has ``name``, ``id``, ``revision``, ``reading_revision``, ``default``, ``warm`` (every shape of its manifest
    has been run), ``precision``, ``bytes`` (of its ONNX file), ``context_tokens``, ``stored`` (in keys of this shard's
    tag), ``settled`` (all cached answers on this shard are from the readers that their keys name), ``problem`` (why it
    cannot be loaded) and, if asked for, ``manifest``, its text.
    """
    asked = arguments[1:]
    if asked not in ([], [WITH_MANIFESTS]):
        raise InvalidInput(f"{MODELS_TRIGGER} takes nothing or {WITH_MANIFESTS!r}, got {asked!r}"[:200])
    loaded.if_loaded()  # looks at the keys if they may have changed
    settled = loaded.answers_are_settled()
    return orjson.dumps([_entry(reader, settled, manifest=bool(asked)) for reader in loaded.everyone()]).decode()


def _entry(reader: Reader, settled: bool, *, manifest: bool) -> dict[str, object]:
    about = reader.manifest
    entry: dict[str, object] = {
        "name": about.name,
        "id": about.model_id,
        "revision": about.revision,
        "reading_revision": about.reading_revision,
        "default": loaded.is_default(reader),
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


async def on_reader(_arguments: list[Any]) -> str:
    """Trigger ``qa.reader``: the manifest of the reader that answers on this shard now, empty if there is none.

    That reader may be only in memory, while its keys have left with their slot and a copy is being made.
    """
    found = loaded.if_loaded()
    return "" if found is None or found.model is None else found.manifest_text.decode()
