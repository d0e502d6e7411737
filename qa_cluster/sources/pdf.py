"""Reads PDF with pypdf."""

from __future__ import annotations

import io
import logging
from collections import Counter
from typing import Any

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from qa_cluster.errors import InvalidInput

from .extracted import Extracted, NoText, clean, clean_characters
from .plain import read_lines
from .process.pages import reported

MAX_PAGES = 20_000


def read(data: bytes) -> Extracted:
    """Return the text of a PDF file, with pages as places; lines at the start or end of most pages are left out."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidInput("the PDF is encrypted: a password is needed to read it")
        total = min(len(reader.pages), MAX_PAGES)
        pages = [
            _lines(page.extract_text()) for _, page in zip(range(total), reported(reader.pages, total), strict=False)
        ]
        title = _title(reader)
    except InvalidInput:
        raise
    except (
        PyPdfError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OSError,
        NotImplementedError,
    ) as error:
        raise InvalidInput(f"the PDF cannot be read: {type(error).__name__}: {error}"[:300]) from error
    found = read_lines(_numbered(pages), unit="page", hyphenated=True)
    if not found.text:
        raise NoText("the PDF contains no text: its pages may be pictures")
    return Extracted(title or found.title, found.text, found.sections, found.places, found.unit)


def _title(reader: Any) -> str:
    title = clean(str(getattr(reader.metadata, "title", "") or ""))
    # Programs write the name of their own file here.
    return "" if title.lower().endswith((".doc", ".docx", ".tex", ".dvi", ".indd", ".qxd", ".odt")) else title


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in clean_characters(text).split("\n")]


def _numbered(pages: list[list[str]]) -> list[tuple[int, str]]:
    repeated = _repeated(pages)
    numbered: list[tuple[int, str]] = []
    longest = sorted(len(line) for lines in pages for line in lines)
    full = longest[len(longest) * 9 // 10] if longest else 0
    for number, lines in enumerate(pages, 1):
        edge = _edge(lines)
        for place, line in enumerate(lines):
            if (place < edge or place >= len(lines) - edge) and (_shape(line) in repeated or line.strip().isdecimal()):
                continue
            numbered.append((number, line))
            # pypdf has no blank lines: a paragraph ends with a sentence on a short line
            if line.rstrip().endswith((".", "!", "?", ":")) and len(line) < full * 0.8:
                numbered.append((number, ""))
    return numbered


def _repeated(pages: list[list[str]]) -> set[str]:
    counts = Counter(shape for lines in pages for shape in {_shape(line) for line in _edges(lines) if line.strip()})
    return {shape for shape, count in counts.items() if count > max(2, len(pages) // 2)}


def _edge(lines: list[str]) -> int:
    return min(2, len(lines) // 4)


def _edges(lines: list[str]) -> list[str]:
    edge = _edge(lines)
    return lines[:edge] + lines[len(lines) - edge :]


def _shape(line: str) -> str:
    """A line without its numbers, which differ from page to page."""
    return "".join("0" if character.isdigit() else character for character in line.strip())
