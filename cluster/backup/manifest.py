"""The manifest of a backup, `manifest.json`, with the digest of every file and of the manifest itself.

A backup has only contents that clients have stored, such as documents and readers. A restore rebuilds indexes, tokens
and cached answers from these contents. So the number of shards and the version of the saved cluster do not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from qa_cluster import __version__
from qa_cluster.errors import InvalidInput

FORMAT = 1
"""Increment this number with every change that earlier versions cannot read, so that they refuse the backup."""

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
API_KEYS_FILE = "api-keys.jsonl.gz"
GUIDANCE_FILE = "guidance.jsonl.gz"
FUNCTIONS_FILE = "functions.jsonl.gz"
DOCUMENTS_FOLDER = "documents"
MODELS_FOLDER = "models"

_DIGEST = "manifest_sha256"
# A file name in a manifest cannot point outside the folder.
_NAME = re.compile(
    r"(?:documents/[a-z0-9]{1,8}\.jsonl\.gz|models/[0-9a-f]{16}/[a-z0-9_]+\.(?:json|onnx)|[a-z-]+\.jsonl\.gz)\Z"
)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class DamagedBackup(InvalidInput):
    """A file of a backup is missing or damaged, or this version cannot read it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; nothing was restored from it")


class NoBackup(InvalidInput):
    """The folder has no backup, or an incomplete one."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a backup: its size, its SHA-256 in hex, and its number of lines (0 for the files of a reader)."""

    bytes: int
    sha256: str
    lines: int = 0


@dataclass(frozen=True, slots=True)
class SavedReader:
    """A reader in a backup: its full name (id and revision), the folder in the backup with its three files, and whether
    it was the default reader.
    """

    name: str
    folder: str
    default: bool


@dataclass(frozen=True, slots=True)
class ShardState:
    """The documents of a shard in a backup.

    Attributes:
        partitions: the tags of the partitions of the shard.
        exact: whether the documents are a consistent snapshot of the shard. If not, clients wrote without a pause: each
            document is complete, but the documents are from different moments.
    """

    address: str
    partitions: tuple[str, ...]
    documents: int
    exact: bool


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The manifest of a backup.

    Attributes:
        version: the version of qa-cluster that made the backup.
        created: when the backup started, ISO 8601 in UTC.
        partitions: the number of partitions of the saved cluster.
        chosen: the collections that the user requested; None if the user requested none, so that the backup has
            everything.
        collections: all collections in the backup, except the default collection.
        counts: the numbers of saved items, by kind: documents, text_bytes, collections, models, functions and api_keys.
        written_meanwhile: how many writes and deletions of documents the backup noticed while it ran.
        files: the entries of all files except the manifest, by their paths in the backup.
    """

    version: str
    created: str
    partitions: int
    chosen: tuple[str, ...] | None
    collections: tuple[str, ...]
    shards: tuple[ShardState, ...]
    readers: tuple[SavedReader, ...]
    counts: Mapping[str, int]
    written_meanwhile: int
    files: Mapping[str, FileEntry]

    @property
    def size(self) -> int:
        """The size in bytes of all files of the backup together, except the manifest."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def document_files(self) -> list[str]:
        """The sorted paths, relative to the backup, of the files with documents."""
        return sorted(name for name in self.files if name.startswith(f"{DOCUMENTS_FOLDER}/"))

    def to_json(self) -> bytes:
        """Return the contents of the file `manifest.json`, with the digest."""
        value = {"format": FORMAT, **asdict(self)}
        value[_DIGEST] = _digest(value)
        return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of a folder. Raises NoBackup if the folder has no manifest of a backup, and DamagedBackup
        if the manifest cannot be read, is invalid, or has a newer format.
        """
        path = folder / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError as error:
            raise NoBackup(
                f"{str(folder)!r} has no {MANIFEST_FILE}: it is not a backup, or the backup was never completed"
            ) from error
        except OSError as error:
            raise DamagedBackup(path, f"cannot be read: {error.strerror}") from error
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise DamagedBackup(path, f"damaged, not JSON: {error}") from error
        if not isinstance(value, dict) or type(given := value.pop("format", None)) is not int:
            raise NoBackup(f"{path} is not the manifest of a backup: it has no format number")
        if given > FORMAT:
            raise DamagedBackup(
                path,
                f"format {given}, written by qa-cluster {str(value.get('version'))[:40]}; this is qa-cluster"
                f" {__version__}, which reads formats up to {FORMAT}: install that version or a newer one",
            )
        if value.pop(_DIGEST, None) != _digest({"format": given, **value}):
            raise DamagedBackup(path, "damaged, its digest does not match its contents")
        try:
            return cls(**_fields(value))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedBackup(path, f"damaged, {type(error).__name__}: {error}") from error


def is_of_backup(path: Path) -> bool:
    """Return whether a file is the manifest of a backup, intact or damaged. Only such a manifest contains its own
    digest; the manifest of a reader does not.
    """
    try:
        return f'"{_DIGEST}"'.encode() in path.read_bytes()
    except OSError:
        return False


def _digest(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    files = {name: FileEntry(**entry) for name, entry in value["files"].items()}
    for name, entry in files.items():
        if not _NAME.match(name) or not _SHA256.match(entry.sha256) or type(entry.bytes) is not int:
            raise ValueError(f"invalid entry of the file {name[:100]!r}")
    shards = [ShardState(**{**shard, "partitions": tuple(shard["partitions"])}) for shard in value["shards"]]
    readers = [SavedReader(**reader) for reader in value["readers"]]
    for reader in readers:
        if not any(name.startswith(f"{reader.folder}/") for name in files):
            raise ValueError(f"the files of reader {reader.name[:100]!r} are missing")
    return {
        **value,
        "files": files,
        "shards": tuple(shards),
        "readers": tuple(readers),
        "collections": tuple(value["collections"]),
        "chosen": None if value["chosen"] is None else tuple(value["chosen"]),
    }
