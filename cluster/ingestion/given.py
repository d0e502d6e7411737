"""Reads input that is not a file or folder on this machine: pages of a web site, and standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_cluster.documents.corpus import read_given
from qa_cluster.documents.files import SourceFile
from qa_cluster.documents.folder_reading import Skip
from qa_cluster.documents.given_files import GivenFile, check_name
from qa_cluster.errors import InputTooLong, InvalidInput, RequestError
from qa_cluster.sources.process.extractor import MAX_FILE_BYTES
from qa_cluster.types import Document

from ..fetching.site import Site, checked_url, file_of, name_of_page
from ..fetching.sitemaps import MAX_SITEMAP_BYTES, parse_list
from ..terminal import console
from ..terminal.file_progress import FileProgress
from .reading import SourceReading

_RAW = (".txt", ".md", ".json", ".jsonl")


@dataclass
class GivenReading(SourceReading):
    """Reads the documents of files that a function provides, instead of files and folders on this machine.

    Attributes:
        given: a function that gets this object and returns the files.
        label: the source of the documents, if the user has given no prefix.
        count: the number of files, for the progress bar.
    """

    given: Callable[[SourceReading], Iterable[SourceFile]] = lambda reading: ()
    label: str = ""
    count: int = 1

    def documents(self, progress: FileProgress) -> Iterator[tuple[str, Document]]:
        """Yield pairs: the source of a document (the prefix or, without a prefix, `label`), and the document."""
        progress.expect(self.count, 0)
        yield from super().documents(progress)

    def _read(self, **options: Any) -> Iterator[tuple[str, Document]]:
        for document in read_given(self.given(self), **options):
            yield self.prefix or self.label, document


def standard_input(name: str, *, is_raw: bool) -> SourceFile:
    """Return standard input as a file of this name.

    Raises:
        InvalidInput: the name is not a file name, or the option --raw (`is_raw`) does not read files with its
            extension.
        InputTooLong: standard input has more than `MAX_FILE_BYTES` bytes.
    """
    if is_raw and Path(name).suffix.lower() not in _RAW:
        raise InvalidInput(f"--raw reads only {', '.join(_RAW)}, not {name!r}")
    check_name(name)
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputTooLong(f"standard input has more than {MAX_FILE_BYTES} bytes, the limit")
    return GivenFile.named(name, data)


def listed_pages(site: Site, sitemap: str, urls: Path | None) -> Sequence[str]:
    """Return the addresses of the pages that the sitemap at the address `sitemap` names or, if `urls` is given, the
    file `urls`.

    Raises InvalidInput if the sitemap or file cannot be read, names no page or too many pages, or if an address in the
    file is invalid.
    """
    if urls is None:
        found = site.listed(sitemap)
        if site.left_out:
            console.notice(f"{console.counted(site.left_out, 'address', 'addresses')} of other hosts left out")
    else:
        try:
            with urls.open("rb") as file:
                data = file.read(MAX_SITEMAP_BYTES)
        except OSError as error:
            raise InvalidInput(f"{urls}: cannot be read: {error.strerror}") from error
        found = parse_list(data, str(urls))
        site.check_count(len(found), str(urls))
        for url in found:
            checked_url(url)
    if not found:
        raise InvalidInput(f"{urls or sitemap}: names no pages")
    return found


def pages(site: Site, urls: Sequence[str], *, with_host: bool) -> Callable[[SourceReading], Iterator[SourceFile]]:
    """Return a function that fetches pages one after the other, and records the pages that cannot be fetched.

    If `SourceReading.stop` is set, the first page that cannot be fetched raises its error instead.
    """

    def fetched(reading: SourceReading) -> Iterator[SourceFile]:
        extractor = reading.extractor
        forced = extractor.forced if extractor is not None else ""
        for url in urls:
            name = name_of_page(url, with_host=with_host)
            try:
                page = site.fetch(url)
                file = file_of(page, name)
            except RequestError as error:
                if reading.stop:
                    raise
                reading.skipped(Skip(url, error, reading.prefix + name))
                continue
            if extractor is not None:
                extractor.forced = forced or page.format
            yield file

    return fetched
