"""Reads Office files: .docx with python-docx, which is optional, and .odt with lxml."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

from lxml import etree

from qa_cluster.errors import InputTooLong, InvalidInput

from .extracted import Extracted, TextBuilder, clean

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"


def _opened(data: bytes, what: str) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise InvalidInput(f"a damaged {what} file: {error}") from error
    size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_UNPACKED_BYTES:
        raise InputTooLong(f"unpacks to {size} bytes, the limit is {MAX_UNPACKED_BYTES}")
    return archive


def read_docx(data: bytes) -> Extracted:
    """Return the text of a .docx file; its title is its first heading, or the title in its properties."""
    try:
        import docx
        from docx.table import Table
    except ImportError as error:
        raise InvalidInput("reading .docx needs python-docx: install qa-cluster[sources]") from error
    _opened(data, ".docx").close()
    builder = TextBuilder()
    try:
        document = docx.Document(io.BytesIO(data))
        title = document.core_properties.title or ""
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                rows = [[cell.text for cell in row.cells] for row in block.rows]
                builder.table(rows, has_header=len(rows) > 1)
            else:
                _docx_paragraph(builder, block)
    except (KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        raise InvalidInput(f"the .docx file cannot be read: {type(error).__name__}: {error}"[:300]) from error
    return builder.build() if builder.title else builder.build(title)


def _docx_paragraph(builder: TextBuilder, paragraph: Any) -> None:
    style = (paragraph.style.name or "") if paragraph.style is not None else ""
    heading = _HEADING.match(style)
    if style == "Title":
        builder.heading(0, paragraph.text)
    elif heading:
        builder.heading(int(heading[1]), paragraph.text)
    elif style.startswith("List") or paragraph._p.find(".//{*}numPr") is not None:
        builder.item(paragraph.text)
    else:
        builder.paragraph(paragraph.text)


def read_odt(data: bytes) -> Extracted:
    """Return the text of an .odt file."""
    builder = TextBuilder()
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    with _opened(data, ".odt") as archive:
        try:
            content = etree.fromstring(archive.read("content.xml"), parser)
            names = archive.namelist()
            about = etree.fromstring(archive.read("meta.xml"), parser) if "meta.xml" in names else None
        except (KeyError, zipfile.BadZipFile, etree.XMLSyntaxError, RuntimeError) as error:
            raise InvalidInput(f"the .odt file cannot be read: {error}"[:300]) from error
    body = content.find(".//{*}body/{*}text")
    if body is None:
        raise InvalidInput("the .odt file contains no text")
    _odt(body, builder, 0)
    title = about.find(f".//{_TITLE}") if about is not None else None
    return builder.build() if builder.title else builder.build(clean(title.text or "") if title is not None else "")


def _odt(element: Any, builder: TextBuilder, depth: int) -> None:
    for child in element:
        if child.tag == f"{_TEXT}h":
            builder.heading(int(child.get(f"{_TEXT}outline-level") or 1), _words(child))
        elif child.tag == f"{_TEXT}p":
            (builder.item(_words(child), depth=depth - 1) if depth else builder.paragraph(_words(child)))
        elif child.tag == f"{_TEXT}list":
            for item in child.iterchildren(f"{_TEXT}list-item"):
                _odt(item, builder, depth + 1)
        elif child.tag == f"{_TABLE}table":
            rows = [
                [_words(cell) for cell in row.iterchildren(f"{_TABLE}table-cell")]
                for row in child.iter(f"{_TABLE}table-row")
            ]
            builder.table(rows, has_header=len(rows) > 1)
        elif isinstance(child.tag, str) and child.tag != f"{_TEXT}tracked-changes":
            _odt(child, builder, depth)


def _words(element: Any) -> str:
    parts = [element.text or ""]
    for child in element:
        if child.tag in (f"{_TEXT}s", f"{_TEXT}tab", f"{_TEXT}line-break"):
            parts.append(" ")
        elif isinstance(child.tag, str) and child.tag not in (
            f"{_TEXT}note",
            "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}annotation",
        ):
            parts.append(_words(child))
        parts.append(child.tail or "")
    return "".join(parts)
