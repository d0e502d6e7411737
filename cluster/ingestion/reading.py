"""Reads files, and collects what could not be read and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_cluster.config import Settings
from qa_cluster.documents.corpus import read_from
from qa_cluster.documents.files import SourceFile
from qa_cluster.documents.folder_reading import FolderReading, ReadingObserver, Skip
from qa_cluster.documents.unicode import name_of
from qa_cluster.errors import RequestError
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import Document

from ..terminal import console
from ..terminal.file_progress import FileProgress


@dataclass
class SourceReading(ReadingObserver):
    """Reads the documents of some files and folders.

    Attributes:
        prefix: the prefix of every id.
        extractor: extracts the texts of files; None with --raw, which stores the files unchanged.
        reading: how to read folders, and the metadata of every document.
        stop: whether the first document that cannot be read or stored ends the command with an error.
        skips: the documents and folders that could not be read or stored.
        left_out_paths: the files and folders that are left out, by the reason (such as HIDDEN).
    """

    settings: Settings
    paths: Sequence[Path]
    prefix: str
    extractor: Extractor | None
    reading: FolderReading
    stop: bool
    skips: list[Skip] = field(default_factory=list)
    left_out_paths: dict[str, list[Path]] = field(default_factory=dict)
    _progress: FileProgress = field(default_factory=lambda: FileProgress(""))

    def documents(self, progress: FileProgress) -> Iterator[tuple[str, Document]]:
        """Yield pairs: the source of a document, and the document. The source is the prefix or, without a prefix, the
        absolute path of the file or folder in `paths` that the document comes from.
        """
        self._progress = progress
        if self.extractor is not None:
            self.extractor.on_page = progress.page
        yield from self._read(
            on_error="stop" if self.stop else "skip",
            observer=self,
            max_bytes=self.settings.body_max_bytes,
            id_prefix=self.prefix,
            extractor=self.extractor,
            reading=self.reading,
        )

    def _read(self, **options: Any) -> Iterator[tuple[str, Document]]:
        for path, document in read_from(self.paths, **options):
            yield self.prefix or name_of(path.resolve()), document

    def skipped(self, skip: Skip) -> None:
        """Record and print a document or folder that could not be read or stored."""
        self.skips.append(skip)
        console.notice(f"skipped: {skip.error}")

    def refused(self, document: Document, error: RequestError) -> None:
        """Record and print a document that the cluster has refused."""
        where = f"document {document.id!r}"
        self.skipped(Skip(where, type(error)(f"{where}: {error}"), document.id))

    def left_out(self, path: Path, reason: str) -> None:
        """Record a file or folder that is left out, with the reason (such as HIDDEN)."""
        self.left_out_paths.setdefault(reason, []).append(path)

    def listed(self, files: Sequence[SourceFile]) -> None:
        """Set the total of the progress bar to the numbers of files and bytes that will be read."""
        self._progress.expect(len(files), sum(file.size for file in files))

    def begun(self, file: SourceFile) -> None:
        """Advance the progress bar, because the reading of a file starts."""
        self._progress.begin(file.name, file.size)
