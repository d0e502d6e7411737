"""What a caller of `corpus.read_from` chooses, and what the caller learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_cluster.errors import RequestError

from .addresses import PageAddresses
from .files import SourceFile
from .folders.rules import FolderRules


@dataclass(frozen=True, slots=True)
class Skip:
    """A document or folder that could not be read or stored.

    Attributes:
        where: the file with the line or entry, or the folder.
        error: the error; its text may start with `where`.
        document_id: the id of the document; empty if it is unknown.
        folder: the path within its PATH of a folder that cannot be listed; None for documents.
    """

    where: str
    error: RequestError
    document_id: str = ""
    folder: str | None = None

    @property
    def reason(self) -> str:
        """Why it could not be read or stored, without `where`."""
        return str(self.error).removeprefix(f"{self.where}: ")


@dataclass(frozen=True, slots=True)
class FolderReading:
    """How files are chosen in folders, and what all documents get.

    Attributes:
        rules: the files of folders that are left out.
        follow_links: whether links are read wherever they lead.
        addresses: the addresses of the pages of the files; None: documents get no address.
        metadata: metadata of all documents. The document's own metadata have priority.
    """

    rules: FolderRules = field(default_factory=lambda: FolderRules(ignore=False))
    follow_links: bool = False
    addresses: PageAddresses | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class ReadingObserver:
    """Learns what `read_from` does. Every method does nothing; a subclass overrides some."""

    def skipped(self, skip: Skip) -> None:
        """A document could not be read, with ``on_error="skip"``."""

    def left_out(self, path: Path, reason: str) -> None:
        """A file or folder of a folder is left out."""

    def listed(self, files: Sequence[SourceFile]) -> None:
        """These files will be read."""

    def begun(self, file: SourceFile) -> None:
        """The file is read now."""


class ErrorObserver(ReadingObserver):
    """Passes the errors of skipped documents to a function."""

    def __init__(self, on_skip: Callable[[RequestError], None]) -> None:
        self._on_skip = on_skip

    def skipped(self, skip: Skip) -> None:
        """Pass the error on."""
        self._on_skip(skip.error)
