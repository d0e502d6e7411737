"""Opens the ZIP archives of documents, with a limit of their unpacked size, and parses the XML in them.

A *part* is a file in such an archive.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from lxml import etree

from qa_cluster.errors import InputTooLong, InvalidInput

from ..extracted import clean

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
CORE_PROPERTIES = "docProps/core.xml"
_CORE_TITLE = "{http://purl.org/dc/elements/1.1/}title"
# Exceptions that libraries raise for damaged files.
_FAULTS = (
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    OSError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    etree.XMLSyntaxError,
)


@contextmanager
def opened(data: bytes, what: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Each fault in the file becomes an InvalidInput that names `what`, the kind of the file.

    Raises:
        InputTooLong: the archive unpacks to more than `MAX_UNPACKED_BYTES`.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise InvalidInput(f"a damaged {what} file: {error}") from error
    with archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_UNPACKED_BYTES:
            raise InputTooLong(f"unpacks to {size} bytes, the limit is {MAX_UNPACKED_BYTES}")
        with readable(what):
            yield archive


@contextmanager
def readable(what: str) -> Iterator[None]:
    """In the block, convert the errors of libraries to an InvalidInput that names `what`, the kind of the file."""
    try:
        yield
    except RecursionError:
        raise
    except _FAULTS as error:
        raise InvalidInput(f"the {what} file cannot be read: {type(error).__name__}: {error}"[:300]) from error


def xml(data: bytes) -> Any:
    """Return the root element of an XML file. Entities are not expanded."""
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))


def title_in(archive: zipfile.ZipFile, name: str) -> str:
    """Return the title from the part `name`, which has the document's properties; empty if there is no title."""
    if name not in archive.namelist():
        return ""
    return clean(str(xml(archive.read(name)).findtext(f".//{_CORE_TITLE}") or ""))


def path_of(base: str, reference: str) -> str:
    """Return the name of the part to which `reference`, a link in the part `base`, refers. A fragment is left out.

    >>> path_of("OEBPS/content.opf", "text/ch%201.xhtml#s"), path_of("ppt/slides/slide1.xml", "/ppt/media/a.png")
    ('OEBPS/text/ch 1.xhtml', 'ppt/media/a.png')
    """
    path = unquote(reference.partition("#")[0])
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(base), path)).lstrip("/")


def relations(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Return the relations between a part of an Office file and other parts. The keys are the ids of the relations.

    If `part` is empty, the result has the relations of the whole file. A relation is a pair: the last word of its type,
    such as `image`, and the name of the other part. Relations to other files and to web pages are left out.
    """
    folder, name = posixpath.split(part)
    written = posixpath.join(folder, "_rels", f"{name}.rels")
    if written not in archive.namelist():
        return {}
    return {
        found.get("Id") or "": ((found.get("Type") or "").rpartition("/")[2], path_of(part, found.get("Target") or ""))
        for found in xml(archive.read(written)).iterchildren("{*}Relationship")
        if found.get("TargetMode") != "External"
    }
