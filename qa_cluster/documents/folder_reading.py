"""The options of `corpus.read_from`, and the events that it reports."""

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
        where: the file, with the line or entry in it if one is known; or the folder.
        error: the error; its text may start with `where`.
        document_id: the id of the document; empty if it is unknown.
        folder: for a folder that cannot be listed, its path within the folder that the user named; None for documents.
    """

    where: str
    error: RequestError
    document_id: str = ""
    folder: str | None = None

    @property
    def reason(self) -> str:
        """Why the document or folder could not be read or stored, without `where`."""
        return str(self.error).removeprefix(f"{self.where}: ")


@dataclass(frozen=True, slots=True)
class FolderReading:
    """Which files of folders are read, and the address and metadata that all documents get.

    Attributes:
        rules: the rules that say which files of folders are left out.
        follow_links: whether all links are followed, even out of the folder.
        addresses: computes the web address of a file's page on a site; None means that documents get no address.
        metadata: metadata of all documents. The document's own metadata has priority.
    """

    rules: FolderRules = field(default_factory=lambda: FolderRules(ignore=False))
    follow_links: bool = False
    addresses: PageAddresses | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class ReadingObserver:
    """Receives the events of `read_from` and `read_given`.

    Every method of this class does nothing. Subclasses override some methods.
    """

    def skipped(self, skip: Skip) -> None:
        """Called for each document or folder that could not be read, if `on_error` is ``skip``."""

    def left_out(self, path: Path, reason: str) -> None:
        """Called for each file or folder that is left out, and for each link that is followed (`files.FOLLOWED`)."""

    def listed(self, files: Sequence[SourceFile]) -> None:
        """Called once by `read_from`, before the first file is read, with all files that will be read."""

    def begun(self, file: SourceFile) -> None:
        """Called before a file is read."""


class ErrorObserver(ReadingObserver):
    """Passes the errors of skipped documents to a function."""

    def __init__(self, on_skip: Callable[[RequestError], None]) -> None:
        self._on_skip = on_skip

    def skipped(self, skip: Skip) -> None:
        """Pass the error to the function `on_skip`."""
        self._on_skip(skip.error)
