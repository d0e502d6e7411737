"""Reads e-books (.epub): the chapters in the order of the spine, as one HTML tree.

The spine of an e-book is the list of its files in the order of reading.
"""

from __future__ import annotations

import zipfile
from typing import Any

from qa_cluster.errors import InvalidInput

from .. import decoding
from ..extracted import Extracted, clean
from ..front_matter import limited
from ..html import parsed
from ..html_content import content_of
from .archive import opened, path_of, xml
from .tree import add, lower_headings, new_body, place, written

MAX_CHAPTERS = 5000
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_METADATA = {"title": "title", "creator": "author", "date": "date", "language": "language"}
_TYPE = "epub:type"


def read(data: bytes) -> Extracted:
    """Return the text of an e-book.

    The place of a paragraph (`Extracted.places`) is the number of its file in the spine. A chapter without a heading
    gets its name from the table of contents.
    """
    with opened(data, ".epub") as archive:
        package_name = _package_name(archive)
        package = xml(archive.read(package_name))
        parts = _spine(package, package_name)
        _check_encryption(archive, set(parts.values()))
        names = _chapter_names(archive, package, package_name)
        body = new_body()
        remarks = []
        for number, part in parts.items():
            if part not in archive.namelist():
                remarks.append(f"a chapter is missing in the file: {clean(part)[:100]}")
            else:
                _add_chapter(body, archive.read(part), number, names.get(part, ""))
    about = _described(package)
    found = written(body, about.pop("title", ""), unit="page").named("", limited(about))
    return found.remarked(*remarks)


def _package_name(archive: zipfile.ZipFile) -> str:
    root = xml(archive.read(_CONTAINER)).find(".//{*}rootfile")
    if root is None or not root.get("full-path"):
        raise InvalidInput(f"the .epub file names no package in {_CONTAINER}")
    return path_of("", root.get("full-path"))


def _described(package: Any) -> dict[str, str]:
    """Return the book's title, authors, date and language. The keys are the values of `_METADATA`.

    `package` is the root element of the package, the file that describes the book. Missing values are left out.
    """
    found: dict[str, list[str]] = {}
    for element in package.iterfind("./{*}metadata//{http://purl.org/dc/elements/1.1/}*"):
        name = _METADATA.get(element.tag.rpartition("}")[2], "")
        words = clean("".join(element.itertext()))
        if name and words:
            found.setdefault(name, []).append(words)
    return {name: ", ".join(words) if name == "author" else words[0] for name, words in found.items()}


def _spine(package: Any, package_name: str) -> dict[int, str]:
    """Return the names of the parts with text. The keys are their numbers in the spine, counted from 1.

    Each part occurs once; the table of contents is left out.
    """
    items = {item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")}
    parts: dict[str, int] = {}
    for number, reference in enumerate(package.iterfind("./{*}spine/{*}itemref"), 1):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _PAGES or "nav" in (item.get("properties") or "").split():
            continue
        parts.setdefault(path_of(package_name, item.get("href") or ""), number)
        if len(parts) > MAX_CHAPTERS:
            raise InvalidInput(f"has more than {MAX_CHAPTERS} chapters, the limit: split it")
    if not parts:
        raise InvalidInput("the .epub file names no chapters in its spine")
    return {number: part for part, number in parts.items()}


def _check_encryption(archive: zipfile.ZipFile, parts: set[str]) -> None:
    if _ENCRYPTION not in archive.namelist():
        return
    hidden = {
        path_of("", found.get("URI") or "") for found in xml(archive.read(_ENCRYPTION)).iter("{*}CipherReference")
    }
    if hidden & parts:
        raise InvalidInput("the .epub file is protected: its chapters are encrypted")


def _chapter_names(archive: zipfile.ZipFile, package: Any, package_name: str) -> dict[str, str]:
    """Return the titles that the table of contents gives to parts. The keys are the names of the parts.

    If a part has several titles, the first title is used.
    """
    names: dict[str, str] = {}
    for item in package.iterfind("./{*}manifest/{*}item"):
        part = path_of(package_name, item.get("href") or "")
        is_new = "nav" in (item.get("properties") or "").split()
        if part not in archive.namelist() or not (is_new or item.get("media-type") == "application/x-dtbncx+xml"):
            continue
        if is_new:
            root = parsed(decoding.decode(archive.read(part)))
            contents = next((found for found in root.iter("nav") if "toc" in (found.get(_TYPE) or "")), root)
            for link in contents.iter("a"):
                names.setdefault(path_of(part, link.get("href") or ""), clean("".join(link.itertext())))
        else:
            for point in xml(archive.read(part)).iter("{*}navPoint"):
                content = point.find("./{*}content")
                name = clean(str(point.findtext("./{*}navLabel/{*}text") or ""))
                if content is not None:
                    names.setdefault(path_of(part, content.get("src") or ""), name)
    return names


def _add_chapter(body: Any, data: bytes, number: int, name: str) -> None:
    root = parsed(decoding.decode(data))
    for link in [*root.iter("a")]:  # links from the text to a footnote, and back
        kind = f"{link.get(_TYPE) or ''} {link.get('role') or ''}"
        if "noteref" in kind or "backlink" in kind:
            link.text = None
            for inner in [*link]:
                link.remove(inner)
    chapter = add(body, "section")
    content = content_of(root).element
    content.tag = "div"
    content.tail = None
    if name and next(content.iter("h1", "h2", "h3", "h4", "h5", "h6"), None) is None:
        add(chapter, "h1", name)
    chapter.append(content)
    lower_headings(chapter)
    place(chapter, number)
