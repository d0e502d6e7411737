"""Reads PDF.

Sections come from the outline and the fonts. Paragraphs, lists, tables and code come from the positions of the text.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from qa_cluster.errors import InvalidInput

from ..extracted import Extracted, NoText, clean
from ..process.pages import reported
from .content import PageContent
from .furniture import contents_entries, keys_of, without_running_heads
from .headings import Headings, OutlineEntry, outline_of
from .lines import PageLine, lines_of, spacing
from .writing import Writer

MAX_PAGES = 20_000
_ERRORS = (
    PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, NotImplementedError,
    AssertionError, OverflowError, ZeroDivisionError,
)  # fmt: skip
# Titles that programs generate: file names and default words.
_FILE_NAME = re.compile(r".*\.(docx?|tex|dvi|indd|qxd|odt|rtf|pptx?|xlsx?|pages|md|html?)\Z", re.IGNORECASE)
_NO_TITLE = re.compile(
    r"(?:untitled|document|title|slide|presentation|powerpoint presentation|word document)\s*\d*\Z", re.I
)
_PROGRAM = re.compile(r"\A(?:Microsoft (?:Word|PowerPoint|Excel)|Microsoft Office \w+) - ")

_Area = tuple[float, float]
_DEFAULT_AREA = (0.0, 800.0)


def read(data: bytes) -> Extracted:
    """Return the text of a PDF file. The place of a paragraph (`Extracted.places`) is the number of its page."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidInput("the PDF is encrypted: a password is needed to read it")
        total = min(len(reader.pages), MAX_PAGES)
        title, outline = _title(reader), outline_of(reader)
    except InvalidInput:
        raise
    except _ERRORS as error:
        raise InvalidInput(f"the PDF cannot be read: {type(error).__name__}: {error}"[:300]) from error
    pages, areas, remarks = _pages(reader, total)
    if not any(pages):
        raise NoText("the PDF contains no text: its pages may be pictures")
    found, further = _written(pages, areas, outline)
    return replace(found, title=title or found.title, remarks=(*remarks, *further))


def _pages(reader: PdfReader, total: int) -> tuple[list[list[PageLine]], list[_Area], list[str]]:
    """Return the lines of each of the first `total` pages, the lower and upper edge of each page, and remarks.

    The remarks say which pages could not be read, and what else was left out. A page that cannot be read has no lines.
    InvalidInput if a page cannot be read and no page has text.
    """
    content = PageContent()
    pages: list[list[PageLine]] = []
    areas: list[_Area] = []
    damaged, pictures, first = list[int](), list[int](), ""
    for number in reported(range(1, total + 1), total):
        lines: list[PageLine] = []
        area = _DEFAULT_AREA
        try:
            page = reader.pages[number - 1]
            area = _area(page)
            lines = lines_of(content.pieces(page), number)
            if not lines and _has_picture(page):
                pictures.append(number)
        except _ERRORS as error:
            damaged.append(number)
            first = first or f"{type(error).__name__}: {error}"[:200]
        pages.append(lines)
        areas.append(area)
    if damaged and not any(pages):
        raise InvalidInput(f"the PDF cannot be read: {first}")
    remarks = []
    if damaged:
        remarks.append(f"pages that are damaged were left out: {_ranges(damaged)}")
    if pictures:
        remarks.append(f"pages that are pictures have no text: {_ranges(pictures)}")
    if content.artifacts:
        remarks.append(
            f"characters that the file marks as running heads or ornaments were left out: {content.artifacts}"
        )
    if len(reader.pages) > total:
        remarks.append(f"pages after page {total} were left out: {len(reader.pages) - total}")
    return pages, areas, remarks


def _written(
    pages: Sequence[list[PageLine]], areas: Sequence[_Area], outline: Sequence[OutlineEntry]
) -> tuple[Extracted, list[str]]:
    kept, running = without_running_heads(pages, areas)
    lines = [line for page in kept for line in page]
    if not lines:  # all lines look like page numbers or running heads, so they are the text
        lines, running = [line for page in pages for line in page], []
    leading = spacing(lines)
    headings = Headings(lines, outline, leading)
    entries = contents_entries(lines, _titles(lines, outline))
    writer = Writer(lines, headings, entries, leading)
    writer.write(_title_line(lines, headings, entries))
    remarks = []
    if running:
        remarks.append(f"running heads, running feet and page numbers were left out: {_counted(running)}")
    if entries:
        texts = [lines[place].text for place in sorted(entries)]
        remarks.append(f"lines of a table of contents were left out: {_counted(texts)}")
    return writer.builder.build(), remarks


def _titles(lines: Sequence[PageLine], outline: Sequence[OutlineEntry]) -> Mapping[str, Collection[int]]:
    """Return the pages of all bookmarks and of all lines that may be headings.

    The keys are the keys of their texts (`furniture.keys_of`), with and without numbers.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for entry in outline:
        for key in keys_of(entry.title):
            found[key].add(entry.page)
    for place, line in enumerate(lines):
        if len(line.text) > 150:
            continue
        texts = [line.text]
        if place and lines[place - 1].page == line.page and len(lines[place - 1].text) <= 150:
            texts.append(f"{lines[place - 1].text} {line.text}")
        for key in itertools.chain.from_iterable(map(keys_of, texts)):
            if len(found[key]) < 20:
                found[key].add(line.page)
    found.pop("", None)
    return found


def _title_line(lines: Sequence[PageLine], headings: Headings, entries: Collection[int]) -> int | None:
    """Return the position of the document's title: the largest heading on the first page.

    None if the first page has no heading, if another heading of the document is as large, or if the heading is not
    larger than the text. The positions `entries` are lines of a table of contents, which are not considered.
    """
    first = [
        place for place, line in enumerate(lines[:60])
        if line.page == lines[0].page and place not in entries and headings.get(place) is not None
    ]  # fmt: skip
    if not first:
        return None
    largest = max(first, key=lambda place: lines[place].style.size)
    size = lines[largest].style.size
    same = sum(line.style.size >= size and headings.get(place) is not None for place, line in enumerate(lines))
    return largest if same == 1 and size > headings.body.size else None


def _title(reader: Any) -> str:
    title = _PROGRAM.sub("", clean(str(getattr(reader.metadata, "title", "") or "")))
    return "" if _FILE_NAME.match(title) or _NO_TITLE.match(title) else title


def _area(page: Any) -> _Area:
    """Return the lower and the upper edge of a page."""
    box = [float(number) for number in page.mediabox]
    return (min(box[1], box[3]), max(box[1], box[3])) if len(box) == 4 else _DEFAULT_AREA


def _has_picture(page: Any) -> bool:
    resources = page.get("/Resources")
    resources = resources.get_object() if resources is not None else {}
    return "/XObject" in resources and bool(resources["/XObject"])


def _counted(texts: Sequence[str]) -> str:
    example = texts[0] if len(texts[0]) <= 60 else texts[0][:59] + "\u2026"
    return f"{len(texts)}, the first is {example!r}"


def _ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers as ranges.

    >>> _ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    return ", ".join(words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")
