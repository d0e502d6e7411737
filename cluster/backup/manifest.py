"""What a backup says of itself: `manifest.json`, with the digest of every other file and of itself.

Only sources are in a backup: what is made from them (indexes, tokens, answers) is made anew when it is restored, so
neither the number of shards nor the version that made them matters.
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
"""Raise it with every change that an earlier version cannot read: it then refuses the backup and says so."""

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
API_KEYS_FILE = "api-keys.jsonl.gz"
FUNCTIONS_FILE = "functions.jsonl.gz"
DOCUMENTS_FOLDER = "documents"
MODELS_FOLDER = "models"

_DIGEST = "manifest_sha256"
# Nothing in a manifest leads out of its folder.
_NAME = re.compile(
    r"(?:documents/[a-z0-9]{1,8}\.jsonl\.gz|models/[0-9a-f]{16}/[a-z0-9_]+\.(?:json|onnx)|[a-z-]+\.jsonl\.gz)\Z"
)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class DamagedBackup(InvalidInput):
    """A file of a backup is missing or is not what was written, or this version cannot read it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; nothing was restored from it")


class NoBackup(InvalidInput):
    """The folder holds no backup, or one that was never finished."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a backup: its size, its SHA-256 in hex, and its lines (0 for a model's files)."""

    bytes: int
    sha256: str
    lines: int = 0


@dataclass(frozen=True, slots=True)
class SavedReader:
    """A reader: its full name, the folder with its three files, and whether it was the default."""

    name: str
    folder: str
    default: bool


@dataclass(frozen=True, slots=True)
class ShardState:
    """What is known of the documents of a shard.

    Attributes:
        partitions: the tags of its partitions.
        exact: whether these documents are together a state that the shard had at one moment. If not, there were writes
            all the time: each document is whole and of one version, but not all are of the same moment.
    """

    address: str
    partitions: tuple[str, ...]
    documents: int
    exact: bool


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """A whole backup.

    Attributes:
        version: that of the qa-cluster that made it.
        created: when it was begun, ISO 8601 in UTC.
        chosen: the collections that were asked for; None: everything was.
        collections: those besides the default one.
        written_meanwhile: documents that were written or removed while it was made, once for each time that was seen.
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
        """The bytes of all files but the manifest."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def document_files(self) -> list[str]:
        """The files with documents."""
        return sorted(name for name in self.files if name.startswith(f"{DOCUMENTS_FOLDER}/"))

    def to_json(self) -> bytes:
        """The text of the file."""
        value = {"format": FORMAT, **asdict(self)}
        value[_DIGEST] = _digest(value)
        return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read that of a folder; NoBackup where there is none, DamagedBackup if it cannot be relied on."""
        path = folder / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError as error:
            raise NoBackup(
                f"{str(folder)!r} has no {MANIFEST_FILE}: it is no backup, or one that was never finished"
            ) from error
        except OSError as error:
            raise DamagedBackup(path, f"cannot be read: {error.strerror}") from error
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise DamagedBackup(path, f"damaged, not JSON: {error}") from error
        if not isinstance(value, dict) or type(made := value.pop("format", None)) is not int:
            raise NoBackup(f"{path} is no manifest of a backup: it names no format")
        if made > FORMAT:
            raise DamagedBackup(
                path,
                f"format {made}, made by qa-cluster {str(value.get('version'))[:40]}; this is {__version__}, which"
                f" reads formats up to {FORMAT}: install a version that is as new",
            )
        if value.pop(_DIGEST, None) != _digest({"format": made, **value}):
            raise DamagedBackup(path, "damaged, its digest is not that of its contents")
        try:
            return cls(**_fields(value))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedBackup(path, f"damaged, {type(error).__name__}: {error}") from error


def is_of_backup(path: Path) -> bool:
    """Whether a file that cannot be relied on was the manifest of a backup: those name their own digest."""
    try:
        return f'"{_DIGEST}"'.encode() in path.read_bytes()
    except OSError:
        return False


def _digest(value: Mapping[str, Any]) -> str:
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    files = {name: FileEntry(**entry) for name, entry in value["files"].items()}
    for name, entry in files.items():
        if not _NAME.match(name) or not _SHA256.match(entry.sha256) or type(entry.bytes) is not int:
            raise ValueError(f"no file of a backup: {name[:100]!r}")
    shards = [ShardState(**{**shard, "partitions": tuple(shard["partitions"])}) for shard in value["shards"]]
    readers = [SavedReader(**reader) for reader in value["readers"]]
    for reader in readers:
        if not any(name.startswith(f"{reader.folder}/") for name in files):
            raise ValueError(f"no files of reader {reader.name[:100]!r}")
    return {
        **value,
        "files": files,
        "shards": tuple(shards),
        "readers": tuple(readers),
        "collections": tuple(value["collections"]),
        "chosen": None if value["chosen"] is None else tuple(value["chosen"]),
    }
