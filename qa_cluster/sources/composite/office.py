"""Reads Office files. mammoth converts .docx to HTML, and lxml converts .odt. `html` then reads that HTML."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import mammoth
from lxml import etree

from qa_cluster.errors import InvalidInput

from ..extracted import Extracted
from ..html import parsed
from ..html_content import remove
from .archive import CORE_PROPERTIES, opened, title_in, xml
from .tree import add_text, with_headers, written

MAX_REPEATED = 1000
_STYLES = "\n".join(
    f"{style} => {tag}:fresh"
    for name, tag in (("Title", "h1"), *((f"Heading {level}", f"h{level + 1}") for level in range(1, 6)))
    for style in (f"p[style-name='{name}']", f"p.{name.replace(' ', '')}")
)
# Elements whose text mammoth would leave out. The text in `moveFrom` was moved to another part of the document, so this
# element is removed.
_WRAPPERS = ("{*}fldSimple", "{*}moveTo", "{*}customXml")
_MOVED_AWAY = "{*}moveFrom"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"


# ---- .docx ----


def read_docx(data: bytes) -> Extracted:
    """Return the text of a .docx file.

    The title is the first of these that exists: its Title paragraph, the title in its properties, its first heading.
    """
    with opened(data, ".docx") as archive:
        title = title_in(archive, CORE_PROPERTIES)
        plain = _without_wrappers(archive)
        page = mammoth.convert_to_html(plain, style_map=_STYLES, convert_image=lambda _: []).value
    root = parsed(f"<html><body>{page}</body></html>")
    for link in [*root.iter("a")]:  # links from a footnote back to the text
        if (link.get("href") or "").startswith(("#footnote-ref", "#endnote-ref")):
            link.text = None
    return written(with_headers(root), title)


def _without_wrappers(archive: zipfile.ZipFile) -> io.BytesIO:
    """Return the file with each wrapper element (`_WRAPPERS`) replaced by its contents, and without moved text."""
    copied = io.BytesIO()
    with zipfile.ZipFile(copied, "w") as target:
        for name in archive.namelist():
            part = archive.read(name)
            if name.startswith("word/") and name.endswith(".xml"):
                root = xml(part)
                for gone in [*root.iter(_MOVED_AWAY)]:
                    gone.getparent().remove(gone)
                etree.strip_tags(root, *_WRAPPERS)
                part = etree.tostring(root)
            target.writestr(name, part)
    copied.seek(0)
    return copied


# ---- .odt ----


def read_odt(data: bytes) -> Extracted:
    """Return the text of an .odt file. The title comes from its properties; without it, from its first heading."""
    with opened(data, ".odt") as archive:
        content = xml(archive.read("content.xml"))
        title = title_in(archive, "meta.xml")
    text = content.find(".//{*}body/{*}text")
    if text is None:
        raise InvalidInput("the .odt file contains no text")
    body = etree.Element("body")
    _copy(text, body)
    return written(with_headers(body), title)


def _copy(source: Any, target: Any) -> None:
    """Copy the contents of an OpenDocument element into an HTML element."""
    add_text(target, source.text)
    for child in source:
        if isinstance(child.tag, str):
            handle = _HANDLERS.get(child.tag)
            if handle is not None:
                handle(child, target)
            elif not child.tag.endswith("-index") and child.tag not in _SKIPPED:
                _copy(child, target)
        add_text(target, child.tail)


def _as(name: str) -> Callable[[Any, Any], None]:
    def copy(source: Any, target: Any) -> None:
        _copy(source, etree.SubElement(target, name))

    return copy


def _heading(source: Any, target: Any) -> None:
    level = source.get(f"{_TEXT}outline-level") or "1"
    _copy(source, etree.SubElement(target, f"h{min(6, int(level) + 1) if level.isdecimal() else 2}"))


def _space(_source: Any, target: Any) -> None:
    add_text(target, " ")


def _table(source: Any, target: Any) -> None:
    table = etree.SubElement(target, "table")
    for row in source.iter(f"{_TABLE}table-row"):
        if next(row.iterancestors(f"{_TABLE}table")) is not source:
            continue
        copied = etree.SubElement(table, "tr")
        is_header = row.getparent().tag == f"{_TABLE}table-header-rows"
        for cell in row.iterchildren(f"{_TABLE}table-cell"):
            for _ in range(_number(cell, "number-columns-repeated")):
                made = etree.SubElement(copied, "th" if is_header else "td")
                made.set("colspan", str(_number(cell, "number-columns-spanned")))
                made.set("rowspan", str(_number(cell, "number-rows-spanned")))
                _copy(cell, made)
                if not len(made) and not (made.text or "").strip():
                    break  # a sheet may repeat an empty cell to its last column


def _number(cell: Any, name: str) -> int:
    written = cell.get(f"{_TABLE}{name}") or "1"
    return min(int(written), MAX_REPEATED) if written.isdecimal() and len(written) < 7 else 1


def _note(source: Any, target: Any) -> None:
    """Put the text of a footnote, without its number, into an element `aside`.

    `_paragraph` then moves this element from the paragraph to the place after the paragraph.
    """
    for body in source.iterchildren(f"{_TEXT}note-body"):
        _copy(body, etree.SubElement(target, "aside"))


def _paragraph(source: Any, target: Any) -> None:
    paragraph = etree.SubElement(target, "p")
    _copy(source, paragraph)
    notes = [*paragraph.iter("aside")]
    remove(notes)
    for note in notes:
        note.tail = None
        target.append(note)


_SKIPPED = frozenset(
    [
        f"{_TEXT}table-of-content",
        f"{_TEXT}tracked-changes",
        f"{_OFFICE}annotation",
        f"{_OFFICE}annotation-end",
        f"{_OFFICE}forms",
    ]
)
_HANDLERS: dict[str, Callable[[Any, Any], None]] = {
    f"{_TEXT}h": _heading,
    f"{_TEXT}p": _paragraph,
    f"{_TEXT}list": _as("ul"),
    f"{_TEXT}list-item": _as("li"),
    f"{_TEXT}list-header": _as("li"),
    f"{_TEXT}s": _space,
    f"{_TEXT}tab": _space,
    f"{_TEXT}line-break": _space,
    f"{_TABLE}table": _table,
    f"{_TEXT}note": _note,
}
