"""The readers and encoders in a backup. Each of them has three files, in a folder that `qa-cluster model load` can also
load. In this module, "reader" means both.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import redis

from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE
from qa_cluster.vectors.encoder_manifest import AnyManifest, load_manifest, parse_manifest

from ..nodes.all_shards import ClusterOperation, until_all
from ..nodes.node import Node
from ..readers import reader_loading, shard_readers
from ..readers.reader_files import ReaderFiles, read_reader
from ..readers.reader_listing import listing
from .folder import BackupFolder
from .manifest import MODELS_FOLDER, DamagedBackup, SavedReader


def save_readers(operation: ClusterOperation, folder: BackupFolder) -> tuple[SavedReader, ...]:
    """Write all readers of the shards to the backup, and return their entries for the manifest. Only one reader at a
    time is in memory. Raises ClusterError if the keys of a reader are migrating to another shard.
    """
    found = [entry for entries in listing(operation).values() for entry in entries]
    default = next((entry.name for entry in found if entry.default), "")
    saved = []
    for name in sorted({entry.name for entry in found}):
        reader = reader_loading.read_loaded(operation, name)
        if reader is None:
            raise ClusterError(
                f"reader {name} cannot be saved while its keys are migrating to another shard: repeat the command in a"
                " few seconds"
            )
        operation.on_step(f"saving the model {name}")
        subfolder = _folder_of(reader)
        folder.store(f"{subfolder}/{reader.model_file}", reader.model)
        folder.store(f"{subfolder}/{TOKENIZER_FILE}", reader.tokenizer)
        folder.store(f"{subfolder}/{MANIFEST_FILE}", reader.manifest_text.encode())
        saved.append(SavedReader(name, subfolder, name == default))
    return tuple(saved)


def _folder_of(reader: ReaderFiles) -> str:
    """Return the folder of a reader in the backup. Its name is a digest of the reader's manifest.

    The manifest has the digests of the other two files, so the name identifies all three files.
    """
    return f"{MODELS_FOLDER}/{sha256(reader.manifest_text.encode()).hexdigest()[:16]}"


def stored_manifest(backup: Path, stored: SavedReader) -> AnyManifest:
    """Return the manifest of a reader in a backup. Raises DamagedBackup if this version of qa-cluster cannot use the
    manifest, or if it belongs to a different reader.
    """
    path = backup / stored.folder / MANIFEST_FILE
    try:
        found = load_manifest(path)
    except ModelError as error:
        raise DamagedBackup(path, f"cannot be used: {error}") from error
    if found.name != stored.name:
        raise DamagedBackup(path, f"belongs to the reader {found.name}, not to {stored.name}")
    return found


class ReaderRestoring:
    """Restores readers from a backup: loads missing readers and, if requested, readers whose manifest differs. `loaded`
    is the number of readers that `run` has loaded so far.
    """

    def __init__(self, operation: ClusterOperation, backup: Path, readers: tuple[SavedReader, ...]) -> None:
        self._operation = operation
        self._backup = backup
        self._readers = readers
        self.loaded = 0

    def differing(self) -> list[str]:
        """Return the names of the readers that the shards have under the same name, but with a different manifest."""
        present = self._manifests()
        return [
            stored.name
            for stored in self._readers
            if stored.name in present and present[stored.name] != stored_manifest(self._backup, stored)
        ]

    def run(self, *, replace: bool, default: bool) -> None:
        """Load the readers that the shards lack. With `replace`, also load the readers whose manifest differs
        (`differing`).

        With `default`, the default reader of the backup becomes the default reader of the cluster. The previous default
        reader stays loaded.
        """
        present = self._manifests()
        differing = self.differing() if replace else []
        for stored in self._readers:
            if stored.name not in present or stored.name in differing:
                stored_manifest(self._backup, stored)
                files = read_reader(self._backup / stored.folder)
                reader_loading.load(self._operation, files, make_default=False)
                self.loaded += 1
        wanted = next((stored.name for stored in self._readers if stored.default), "")
        if default and wanted and not self._is_default(wanted):
            reader_loading.use(self._operation, wanted)

    def _is_default(self, name: str) -> bool:
        return all(any(e.default and e.name == name for e in entries) for entries in listing(self._operation).values())

    def _manifests(self) -> dict[str, AnyManifest]:
        """Return the manifests of the readers that are on all shards, by the full name of the reader. If the manifests
        of the shards differ, the result has the manifest of one of the shards.
        """
        by_shard: dict[str, dict[str, AnyManifest]] = {}

        def read(node: Node, client: redis.Redis) -> str:
            entries = shard_readers.readers_on(client, manifests=True)
            by_shard[node.address] = {entry.name: parse_manifest(entry.manifest) for entry in entries}
            return ""

        until_all(self._operation, read, "the readers of the shards could not be listed")
        first, *others = by_shard.values()
        return {name: manifest for name, manifest in first.items() if all(name in other for other in others)}
