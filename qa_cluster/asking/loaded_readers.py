"""Finds the readers that the shards have loaded: the default reader, and other readers by name.

The manifest of the default reader is read when the engine opens, and again whenever a shard reports that a manifest has
changed. Other manifests are read when a request or a plan names their reader. A question is sent to the shards with the
full name of its reader. So all shards read it with the same reader, even while the default reader is being replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import orjson

from qa_cluster.errors import ClusterError, InvalidInput, ModelError, NotFound, ReplyError
from qa_cluster.hashtags import shard_tag
from qa_cluster.keys import manifest_key
from qa_cluster.manifest_fields import ENCODER_KIND
from qa_cluster.reading.manifest import Manifest
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import ShardDown, Shards
from qa_cluster.shard_functions import MODELS_TRIGGER, READER_TRIGGER, WITH_MANIFESTS
from qa_cluster.topology import Shard
from qa_cluster.types import LoadedModel
from qa_cluster.vectors.encoder_manifest import EncoderManifest

# The list of the shards' models is read again for an unknown name, because a reader with this name may be new. This is
# the shortest time between two such reads.
ASK_AGAIN_SECONDS = 0.2
# The shortest time between two reads for the reader of a later stage. This time is longer, because every question looks
# for the reader while the reader is not loaded.
STAGE_ASK_AGAIN_SECONDS = 10.0
SHARD_TIMEOUT_SECONDS = 2.0


class LoadedReaders:
    """Finds the manifests of the readers on the shards.

    Attributes:
        default_or_none: the manifest of the default reader; None if no shard has one.
    """

    def __init__(self, shards: Shards, default: Manifest | None) -> None:
        self._shards = shards
        self.default_or_none = default
        self._named: dict[str, Manifest] | None = None
        self._encoders: Sequence[EncoderManifest] = ()
        self._asked_at = -STAGE_ASK_AGAIN_SECONDS
        self._asking = asyncio.Lock()

    @property
    def default(self) -> Manifest:
        """The manifest of the default reader; ModelError if no shard has one."""
        if self.default_or_none is None:
            raise ModelError("no shard has a model: load one with qa-cluster model load")
        return self.default_or_none

    async def find(self, model: str, ask_again_seconds: float = ASK_AGAIN_SECONDS) -> Manifest:
        """Return the manifest of the reader that `model` names: an id or ``id@revision``; empty for the default reader.

        If an id has several revisions, the default reader has priority, then the revision that was exported last. The
        shards are asked about an unknown name at most once in `ask_again_seconds`.

        Raises:
            NotFound: no such reader is loaded; the error lists the loaded readers.
            InvalidInput: `model` names an encoder.
            ModelError: `model` is empty, and no shard has a default reader.
        """
        if not model:
            return self.default
        found = self._match(model)
        if found is None:
            async with self._asking:
                found = self._match(model)
                if found is None and monotonic() - self._asked_at >= ask_again_seconds:
                    self._named, self._encoders = await read_named(self._shards)
                    self._asked_at = monotonic()
                    found = self._match(model)
        if found is None and any(model in (encoder.name, encoder.model_id) for encoder in self._encoders):
            raise InvalidInput(
                f"model {model[:200]!r} is an encoder, which cannot answer questions: name a reader",
                place="model",
            )
        if found is None:
            loaded = ", ".join(sorted({manifest.name for manifest in self._all()})) or "none"
            raise NotFound(f"model {model[:200]!r} is not loaded, loaded are: {loaded}")
        return found

    async def reread(self) -> None:
        """Read the manifest of the default reader now, and the manifests of other readers at their next use.

        Call this method if a shard lacks the reader with which a question was to be read.
        """
        self.default_or_none = await read_manifest(self._shards)
        self._named = None
        self._asked_at = -STAGE_ASK_AGAIN_SECONDS

    def _all(self) -> list[Manifest]:
        default = [] if self.default_or_none is None else [self.default_or_none]
        return [*default, *(self._named or {}).values()]

    def _match(self, model: str) -> Manifest | None:
        matching = [manifest for manifest in self._all() if model in (manifest.name, manifest.model_id)]
        exact = [manifest for manifest in matching if model == manifest.name]
        if exact or self.default_or_none in matching:
            return (exact or matching)[0]
        # While `_named` is None, this process knows only the default reader, which does not match. `find` then asks the
        # shards.
        return max(matching, key=lambda manifest: manifest.created, default=None) if self._named is not None else None


async def read_manifest(shards: Shards) -> Manifest | None:
    """Return the manifest of the default reader; None if no shard has one.

    Raises:
        ModelError: the manifest is unusable.
        ShardDown: all shards are down.
    """
    for shard in shards.up:
        try:
            raw = await shard_manifest(shards, shard)
        except ShardDown:  # the shard has just gone down
            continue
        if raw is not None:
            return Manifest.from_json(raw)
    for shard in shards.up:
        raw = await manifest_in_use(shards, shard)
        if raw is not None:
            return Manifest.from_json(raw)
    if shards.down and not shards.up:
        raise ShardDown(shards.why_down(shards.down))
    return None


async def shard_manifest(shards: Shards, shard: Shard, name: str = "") -> bytes | None:
    """Return the text of a manifest on one shard; None if it is missing. An empty `name` means the default reader."""
    key = manifest_key(shard_tag(shards.topology.ranges_of(shard)), name)
    try:
        raw = await shards.execute(key, "GET", key)
    except ReplyError as error:
        raise ClusterError(f"shard {shard.address} refused to show its model: {error}") from error
    return raw if isinstance(raw, bytes) else None


async def manifest_in_use(shards: Shards, shard: Shard) -> bytes | None:
    """Return the manifest of the reader that a shard's worker uses now; None if it has no reader or the call fails.

    Use this function if the shard does not have the manifest's key. While slots migrate, the key may already be on
    another shard.
    """
    found = await _ask(shards, shard, READER_TRIGGER)
    return found or None


async def read_named(shards: Shards) -> tuple[dict[str, Manifest], Sequence[EncoderManifest]]:
    """Return the manifests of all readers by name, including the default reader, and the manifests of the encoders.

    The first shard that answers provides them. Shards whose workers are known to be unable to answer are asked last.

    Raises:
        ClusterError: no shard answers.
    """
    for shard in sorted(shards.up, key=lambda shard: shard.address in shards.readiness.workers):
        entries = await _entries(shards, shard, WITH_MANIFESTS)
        if entries is None:
            continue
        found: dict[str, Manifest] = {}
        encoders = [EncoderManifest.from_json(entry["manifest"]) for entry in entries if _is_encoder(entry)]
        for entry in entries:
            if _is_encoder(entry):
                continue
            # Use the manifest in the key. It may be newer than the reader that the worker has loaded; the worker then
            # loads the newer reader soon.
            stored = None if entry["default"] else await shard_manifest(shards, shard, entry["name"])
            manifest = Manifest.from_json(stored if stored is not None else entry["manifest"])
            found[manifest.name] = manifest
        return found, encoders
    raise ClusterError("no shard reports its models")


async def read_encoder(shards: Shards) -> EncoderManifest | None:
    """Return the manifest of the encoder that the shards use: the newest encoder; None if they have no encoder.

    ClusterError if no shard answers.
    """
    _, encoders = await read_named(shards)
    return max(encoders, key=lambda encoder: (encoder.created, encoder.name), default=None)


def _is_encoder(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("kind") == ENCODER_KIND)


async def list_models(shards: Shards) -> list[LoadedModel]:
    """Return the readers and encoders on all shards, the default reader first.

    A shard that does not answer within `SHARD_TIMEOUT_SECONDS` is treated as a shard without models.
    """
    replies = await asyncio.gather(*(_entries_in_time(shards, shard) for shard in shards.all))
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for entries in replies:
        for entry in entries or ():
            by_name.setdefault(entry["name"], []).append(entry)
    models = [
        LoadedModel(
            name=name,
            id=found[0]["id"],
            revision=found[0]["revision"],
            default=any(entry["default"] for entry in found),
            precision=found[0]["precision"],
            bytes=found[0]["bytes"],
            context_tokens=found[0]["context_tokens"],
            warm=sum(bool(entry["warm"]) for entry in found),
            shards=len(shards.all),
            kind=found[0].get("kind", "reader"),
        )
        for name, found in by_name.items()
    ]
    return sorted(models, key=lambda model: (not model.default, model.name))


async def _entries_in_time(shards: Shards, shard: Shard) -> Sequence[Mapping[str, Any]] | None:
    try:
        async with asyncio.timeout(SHARD_TIMEOUT_SECONDS):
            return await _entries(shards, shard)
    except TimeoutError:
        return None


async def _entries(shards: Shards, shard: Shard, *arguments: str) -> Sequence[Mapping[str, Any]] | None:
    reply = await _ask(shards, shard, MODELS_TRIGGER, *arguments)
    if reply is None:
        return None
    try:
        entries = orjson.loads(reply)
    except orjson.JSONDecodeError as error:
        raise ClusterError(f"shard {shard.address} reports its models in an unknown form: {error}") from error
    return entries if isinstance(entries, list) else None


async def _ask(shards: Shards, shard: Shard, trigger: str, *arguments: str) -> bytes | None:
    """Return the result of a trigger on a shard; None if the shard fails, or does not reply with exactly one text."""
    try:
        reply = await shards.execute_on(shard, "RG.TRIGGER", trigger, *arguments, blocking=True)
    except (ReplyError, ConnectionLost, ShardDown):
        return None
    found = reply[0] if isinstance(reply, list) and len(reply) == 1 else None
    return found if isinstance(found, bytes) else None
