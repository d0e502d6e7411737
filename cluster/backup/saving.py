"""Makes a backup: saves the contents of the cluster in a new folder, writes the manifest, then renames the folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
import redis

from qa_cluster import __version__
from qa_cluster.asking.engine import Engine
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, from_reply
from qa_cluster.keys import DEFAULT_COLLECTION

from ..nodes.all_shards import ClusterOperation, OnStep
from ..nodes.connect import shards_of
from ..provision.inspection import inspect_cluster
from ..terminal import console
from . import functions, guidance
from .document_saving import PATIENCE_SECONDS, DocumentSaving, SavedDocuments
from .folder import BackupFolder, new_backup
from .manifest import API_KEYS_FILE, FUNCTIONS_FILE, BackupManifest, SavedReader
from .readers import save_readers

READERS_SECONDS = 60.0
"""How long the backup waits for a shard or its worker during a failover or a restart, while it saves the readers."""


@dataclass(frozen=True)
class Backup:
    """A completed backup, with the ids of the documents that are not in it because they are unreadable."""

    path: Path
    manifest: BackupManifest
    unreadable: list[str]


def save(
    settings: Settings,
    target: Path,
    *,
    chosen: frozenset[str] | None = None,
    force: bool = False,
    hold_seconds: float = 0.0,
    on_step: OnStep = console.step,
) -> Backup:
    """Save the cluster of the settings, or only the `chosen` collections, in the new folder `target`.

    With `chosen`, the backup has no readers, functions and API keys. With `force`, `target` may be an earlier backup,
    which the new backup replaces. `hold_seconds`: see `document_saving`. `on_step` gets the texts for the user.

    Raises ConfigError if the folder cannot be used, NotFound if a collection does not exist, ClusterError if a shard is
    down and has no replica. After an error, nothing of the new backup is left on the disk.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    readers: tuple[SavedReader, ...] = ()
    with new_backup(target, force=force) as (folder, finish):
        _check_shards(settings)
        if chosen is None:
            operation = ClusterOperation.begin(settings, settings.cluster_url, READERS_SECONDS, on_step)
            readers = save_readers(operation, folder)
            _save_functions(settings, folder)
        partitions, saved = asyncio.run(_save_documents(settings, folder, chosen, hold_seconds))
        counts = Counter(
            {name: folder.files[name].lines for name in (API_KEYS_FILE, FUNCTIONS_FILE) if name in folder.files}
        )
        manifest = BackupManifest(
            version=__version__,
            created=created,
            partitions=partitions,
            chosen=None if chosen is None else tuple(sorted(chosen)),
            collections=tuple(sorted(saved.collections)),
            shards=tuple(saved.shards),
            readers=readers,
            counts={
                "documents": saved.documents,
                "text_bytes": saved.text_bytes,
                "collections": len(saved.collections) + (chosen is None or DEFAULT_COLLECTION in chosen),
                "models": len(readers),
                "functions": counts[FUNCTIONS_FILE],
                "api_keys": counts[API_KEYS_FILE],
            },
            written_meanwhile=saved.meanwhile,
            files=folder.files,
        )
        return Backup(finish(manifest), manifest, list(saved.unreadable))


def _check_shards(settings: Settings) -> None:
    """Raise ClusterError if a shard without replicas is down: its documents cannot be saved."""
    found = [
        f"shard {shard.address}: {problem}"
        for shard in inspect_cluster(settings, settings.cluster_url).shards
        if not shard.reachable and not shard.replicas
        for problem in shard.problems
    ]
    if found:
        raise ClusterError(f"nothing was saved; {'; '.join(found)}; see `qa-cluster status`")


def _save_functions(settings: Settings, folder: BackupFolder) -> None:
    with shards_of(settings, settings.cluster_url) as shards:
        try:
            found = functions.sessions_on(shards[0][1])
        except redis.exceptions.ResponseError as error:
            raise from_reply(str(error)) from error
    writer = folder.lines(FUNCTIONS_FILE)
    for _, (stored, _) in sorted(found.items()):
        writer.add(stored.to_dict())
    folder.close(FUNCTIONS_FILE)


async def _save_documents(
    settings: Settings, folder: BackupFolder, chosen: frozenset[str] | None, hold_seconds: float
) -> tuple[int, SavedDocuments]:
    async with AsyncClusterClient(settings) as client:
        engine = client.engine
        for name in sorted(chosen or ()):
            await engine.collections.entry(name)
        if chosen is None:
            await _save_keys(engine, folder)
        await guidance.save(engine, folder, chosen)
        total = sum(
            entry.documents for entry in await engine.collections.entries() if chosen is None or entry.name in chosen
        )
        with console.progress("saving documents", total) as advance:
            saving = DocumentSaving(
                engine,
                folder,
                chosen=chosen,
                patience=PATIENCE_SECONDS,
                hold_seconds=hold_seconds,
                on_progress=lambda done: advance(done, total),
            )
            return engine.partitions.number, await saving.run()


async def _save_keys(engine: Engine, folder: BackupFolder) -> None:
    """Save the records of the API keys, which contain only the hashes of the keys."""
    writer = folder.lines(API_KEYS_FILE)
    for key in await engine.api_keys.all():
        writer.add(orjson.loads(key.to_json()))
    folder.close(API_KEYS_FILE)
