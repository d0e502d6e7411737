"""Extracts the text of a file of any format in this process.

The folder `process` does the same in a separate process, with limits of time and memory.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import PurePath

from qa_cluster.errors import InputTooLong, InvalidInput

from . import decoding, formats
from .extracted import Extracted, NoText

MAX_TEXT_LENGTH = 5_000_000


def extract(data: bytes, name: str) -> tuple[str, Extracted]:
    """Return the format of a file, and its title, text, sections and places.

    Args:
        data: the file, which may be gzipped.
        name: the name of the file; its ending usually identifies the format.

    Raises:
        InvalidInput: the file is damaged or is not text; NoText if it contains no text.
        InputTooLong: the file unpacks to more than `decoding.MAX_TEXT_BYTES`, or its text is too long.
    """
    found, unpacked = recognize(data, name)
    return found, read_as(found, unpacked, name)


def recognize(data: bytes, name: str, forced: str = "") -> tuple[str, bytes]:
    """Return the format of a file and its unpacked contents.

    `forced` is the format, one of `formats.FORMATS`. If it is empty, the format is detected.

    Raises:
        InvalidInput: `forced` is unknown, or the file is damaged or is not text.
        InputTooLong: the file unpacks to more than `decoding.MAX_TEXT_BYTES`.
    """
    if forced and forced not in formats.FORMATS:
        raise InvalidInput(f"format is {forced!r}, must be one of {', '.join(formats.FORMATS)}")
    if decoding.is_gzip(data):
        data = decoding.gunzip(data)
    return forced or formats.format_of(name, data), data


def load(found: str) -> None:
    """Import the module that reads the format `found`, and the libraries of this module."""
    _module(_MODULES.get(found, found))


def read_as(found: str, data: bytes, name: str) -> Extracted:
    """Return the text of an unpacked file with the known format `found`, one of `formats.FORMATS`.

    `name` is the name of the file. The name without its ending is the title of a text that has no other title.

    Raises:
        InvalidInput: the file is damaged, is not text, or is nested too deeply; NoText if it contains no text.
        InputTooLong: the text has more than `MAX_TEXT_LENGTH` code points, or a reader of the format has a limit that
            the file exceeds.
    """
    try:
        extracted = _read(found, data, formats.base_name(name))
    except RecursionError as error:
        raise InvalidInput(f"is nested too deeply to be read as {found}") from error
    if not extracted.text.strip():
        raise NoText(f"contains no text (read as {found})")
    if len(extracted.text) > MAX_TEXT_LENGTH:
        raise InputTooLong(f"has a text of {len(extracted.text)} characters, the limit is {MAX_TEXT_LENGTH}")
    if not extracted.title:
        extracted = extracted.named(PurePath(formats.base_name(name)).stem)
    return extracted


def _read(found: str, data: bytes, base: str) -> Extracted:
    """Read an unpacked file of the format `found`. `base` is the file's name without folders and ``.gz``.

    The format's module is imported only now, because its libraries are slow to load.
    """
    module = _module(_MODULES.get(found, found))
    extracted: Extracted
    if found in formats.BINARY:
        extracted = module.read(data) if found not in ("docx", "odt") else getattr(module, f"read_{found}")(data)
    else:
        text, remarks = decoding.decode_with_remarks(data)
        extracted = module.read(text, PurePath(base).stem) if found == "roff" else module.read(text)
        extracted = replace(extracted, remarks=remarks + extracted.remarks)
    return extracted


# The names of the modules that read formats, where the module has a different name than the format.
_MODULES = {
    "docx": "composite.office",
    "eml": "composite.mail",
    "epub": "composite.epub",
    "ipynb": "composite.notebook",
    "odt": "composite.office",
    "pdf": "pdf.reader",
    "pptx": "composite.slides",
    "roff": "manual.man",
    "text": "plain",
    "xlsx": "composite.sheets",
}


def _module(name: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f".{name}", __package__)
