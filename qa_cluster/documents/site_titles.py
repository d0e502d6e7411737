"""Finds the title that identifies each page of a folder.

The parts of titles that pages of a folder share, such as the name of the site, are left out.
"""

from __future__ import annotations

import html
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePath

from qa_cluster.errors import RequestError
from qa_cluster.sources.decoding import is_gzip
from qa_cluster.sources.extracted import Extracted, clean

from .files import SourceFile, without_gz

_PAGES = (".html", ".htm", ".xhtml")
_HEAD_BYTES = 64 * 1024
_TITLE = re.compile(r"<title\b[^>]*+>([^<]*+)", re.IGNORECASE)
_HEADING = re.compile(r"<h1\b[^>]*+>", re.IGNORECASE)
_HEADING_END = re.compile(r"</h1\b", re.IGNORECASE)
_MAX_HEADING = 2000
_TAG = re.compile(r"<[^<>]*+>")
_BETWEEN = re.compile(r"(?<!\s)\s++[-|:/\u00b7\u2022\u00bb\u203a\u2013\u2014]++\s++|(?<!\s)\s*+[:\u2014|]\s++")
# A text is shared if enough pages of a folder have it as their title, as a part of their title, or as their first
# heading. Enough pages are at least `MIN_SHARED` pages, and at least the share `MIN_SHARE` of the pages of the folder.
MIN_SHARED = 3
MIN_SHARE = 0.3


class SiteTitles:
    """Finds the titles of the HTML pages of a folder.

    Args:
        files: all files that are read. The HTML files among them are the pages. Only the start of each page is read
            here, and only if its folder directly contains at least `MIN_SHARED` pages.
    """

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self._titles: dict[Path, str] = {}
        self._shared: dict[Path, set[str]] = {}
        folders: dict[Path, list[SourceFile]] = {}
        for file in files:
            if PurePath(without_gz(file.name)).suffix.lower() in _PAGES:
                folders.setdefault(file.path.parent, []).append(file)
        for folder, pages in folders.items():
            if len(pages) >= MIN_SHARED:
                self._shared[folder] = self._of_folder(pages)

    def _of_folder(self, pages: Sequence[SourceFile]) -> set[str]:
        counts = Counter[str]()
        for file in pages:
            title, heading = _titles_of(file)
            self._titles[file.path] = title
            counts.update({title, heading, *_parts(title)} - {""})
        return {text for text, count in counts.items() if count >= max(MIN_SHARED, len(pages) * MIN_SHARE)}

    def own(self, file: SourceFile, found: Extracted) -> str:
        """Return the title that identifies a page: its title without the parts that pages of its folder share.

        If no part is left, return the page's first heading that the pages do not share. If the page has no such
        heading, or if `file` is not a page, return the whole title. `found` is the text of the page.
        """
        shared = self._shared.get(file.path.parent)
        if not shared or file.path not in self._titles:
            return found.title
        heading = next((section.path[0] for section in found.sections if section.path[0] not in shared), "")
        own = _without(found.title, shared) or _without(self._titles[file.path], shared)
        return own or heading or found.title


def _without(title: str, shared: Collection[str]) -> str:
    """Return a title without its shared parts; empty if no other part is left."""
    if title in shared:
        return ""
    parts = _parts(title)
    if not any(part in shared for part in parts):
        return title
    return " \u2013 ".join(part for part in parts if part not in shared)


def _parts(title: str) -> Sequence[str]:
    return [part for part in map(str.strip, _BETWEEN.split(title)) if part]


def _titles_of(file: SourceFile) -> tuple[str, str]:
    """Return the title of a page and the text of its first ``h1``, from its first 64 KiB.

    A text that is missing there is empty. Both texts are empty if the page cannot be read.
    """
    try:
        with file.opened() as opened:
            data = opened.read(_HEAD_BYTES)
        if is_gzip(data):
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _HEAD_BYTES)
    except (RequestError, OSError, zlib.error):
        return "", ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    title, begun = _TITLE.search(text), _HEADING.search(text)
    ended = _HEADING_END.search(text, begun.end(), begun.end() + _MAX_HEADING) if begun else None
    heading = text[begun.end() : ended.start()] if begun and ended else ""
    return _plain(title[1]) if title else "", _plain(heading)


def _plain(text: str) -> str:
    return clean(html.unescape(_TAG.sub("", text)))
