"""The text that is extracted from a file, and the builder with which all formats write it.

The text has the form in which a person would read it, without markup:

- A blank line separates paragraphs; each paragraph is one line.
- A list item is a line that starts with ``- `` or its number.
- Code keeps its lines, indented by four spaces.
- A row of a table is a paragraph ``header: cell, header: cell``.
- An entry of a definition list is a paragraph ``term: definition``.
- A heading is a paragraph, and a part of the path of the sections below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from qa_cluster.errors import InvalidInput

# The metadata of each extracted document contains this number. Increase the number with every change of the results:
# the next `ingest` of the same file then stores a changed document.
EXTRACTOR_VERSION = 3

MAX_HEADING = 200
MAX_TERM = 80
# The level of a term that `TextBuilder.entry` adds is this number plus the depth of the entry. The levels of headings
# are lower.
_ENTRY_LEVEL = 100
INDENT = "    "

_SPACE = re.compile(r"\s+")
# Soft hyphens, zero-width characters, byte order marks, direction marks, and control characters except line ends and
# tabs.
_INVISIBLE = re.compile(
    "[\u00ad\u200b\u200c\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]"
)
_LIGATURES = str.maketrans(
    {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl", "\ufb05": "st", "\ufb06": "st"}
)


class NoText(InvalidInput):
    """A file was read, but contains no text."""


# Navigation lines, which link to other pages: `Next: Ropes, Previous: Boats, Up: Top` and `[Next] [Up] [Contents]`.
_STEP = re.compile(r"(?:File|Node|Next|Prev(?:ious)?|Up):(?=\s)", re.IGNORECASE)
_STEP_WORDS = frozenset(
    re.findall(
        r"\S+", "next prev previous up top home back forward first last page chapter section contents index table of"
    )
)
_STEP_MARKS = re.compile(r"[\[\]<>|\u00ab\u00bb\u2039\u203a\u2190\u2192]")
_MAY_LEAD = re.compile(
    r"[\s\[<|\u00ab\u2039\u2190]*+(?:file|node|next|prev|up|top|home|back|forward|first|last|page|chapter|section|contents"
    r"|index|table)",
    re.IGNORECASE,
)
_MAX_STEPS = 300
# The marks of the questions and answers of an FAQ.
_QUESTION = re.compile(r"(?:Q|Question)\s?\d{0,3}(?:\.\d{1,3})?[.:)]\s+(?=\S)")
_ANSWER = re.compile(r"(?:A|Answer)\s?\d{0,3}(?:\.\d{1,3})?[.:)]\s+(?=\S)")
_QUESTION_OR_ANSWER = re.compile(r"(?:Q|A|Question|Answer)\s?\d{0,3}[.:)]?")
_QUESTION_LEVEL = 98
_MAX_QUESTION = 400


def is_navigation(text: str) -> bool:
    """Return whether a line of a text only links to neighbouring pages.

    >>> [is_navigation(text) for text in ("Next: Ropes, Up: Top", "[Next] [Contents]", "Up next", "Next: we swim.")]
    [True, True, False, False]
    """
    if len(text) > _MAX_STEPS or _MAY_LEAD.match(text) is None or text.rstrip().endswith((".", "!", "?")):
        return False
    if _STEP.match(text.lstrip()):
        return len({step.lower()[:2] for step in _STEP.findall(text)} - {"fi", "no"}) > 1
    words = re.findall(r"[a-z]+", text.lower())
    if not 1 < len(words) < 16 or not _STEP_WORDS.issuperset(words):
        return False
    leads_on, leads_back = ({"next", "forward"}.intersection(words), {"prev", "previous", "back"}.intersection(words))
    if leads_on and leads_back:
        return True
    return bool(leads_on or leads_back or "up" in words) and _STEP_MARKS.search(text) is not None


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the text, from `start` to `end` in code points.

    `path` has the headings of the section: the outermost heading first, the section's own heading last.
    """

    start: int
    end: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParagraphPlace:
    """The start of a paragraph in the text (in code points), and its line or page in the source, counted from 1."""

    start: int
    number: int


@dataclass(frozen=True, slots=True)
class Extracted:
    """The clean text of a file.

    Attributes:
        title: the title in the document; empty if the document has no title.
        sections: the sections, in order and without overlaps. Text before the first heading has no section.
        places: the places of the paragraphs whose position in the source is known, in order.
        unit: the unit of places, ``line`` or ``page``; empty if there are no places. ``line`` also stands for a row of
            a spreadsheet, and ``page`` for a slide, a file of an e-book or a cell of a notebook.
        metadata: other values that the file contains, such as its address and tags.
        remarks: texts that say what was replaced, left out or guessed.
    """

    title: str
    text: str
    sections: tuple[Section, ...] = ()
    places: tuple[ParagraphPlace, ...] = ()
    unit: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def named(self, title: str, metadata: dict[str, Any] | None = None) -> Self:
        """Return a copy with the title and the metadata that the file states.

        If one of them is empty or None, the copy keeps the current value.
        """
        return replace(self, title=title or self.title, metadata=metadata or self.metadata)

    def remarked(self, *remarks: str) -> Self:
        """Return a copy with more remarks."""
        return replace(self, remarks=(*self.remarks, *remarks))


def clean(text: str) -> str:
    """Return a text on one line, with single spaces, without invisible characters and ligatures.

    >>> clean("An  eﬃ\u00adcient\\n fix")
    'An efficient fix'
    """
    return _SPACE.sub(" ", clean_characters(text)).strip()


def clean_characters(text: str) -> str:
    """Return a text without invisible characters and ligatures.

    Lines and spaces do not change, except that Unicode's line separator becomes a line end, and Unicode's paragraph
    separator two line ends.
    """
    if text.isascii() and not _INVISIBLE.search(text):
        return text
    return _INVISIBLE.sub("", text.replace("\u2028", "\n").replace("\u2029", "\n\n")).translate(_LIGATURES)


class TextBuilder:
    """Joins blocks to a text, and records sections and places.

    Each method with an argument `at` adds blocks of one kind. `at` is the line or page of the source where the block
    starts, counted from 1 (0: unknown). Empty blocks are left out, and so are paragraphs that only link to other
    pages (`is_navigation`).
    """

    def __init__(self, unit: str = "line") -> None:
        """Start an empty text. `unit` is the unit of its places (`Extracted.unit`); empty: the text has none."""
        self.title = ""
        self._unit = unit
        self._parts: list[str] = []
        self._length = 0
        self._last = ""
        self._headings: list[tuple[int, str]] = []
        self._sections: list[tuple[int, tuple[str, ...]]] = []
        self._places: list[ParagraphPlace] = []
        self._navigation = 0
        self._is_answer = False  # the next paragraph may be the answer to a question

    @property
    def is_empty(self) -> bool:
        """Whether no block has been added yet."""
        return not self._parts

    def heading(self, level: int, text: str, at: int = 0) -> None:
        """Add a heading. A heading ends the sections of its level and of deeper levels, and opens a section.

        `level` counts from 1, the level of the outermost headings. A heading of level 0 neither ends nor opens a
        section; the first such heading is the document's title.
        """
        text = clean(text)
        unmarked = text.rstrip("\u00b6\u00a7")
        text = unmarked if unmarked == text else unmarked.rstrip()
        if not text:
            return
        if level <= 0:
            self.title = self.title or text
        else:
            self._headings = [entry for entry in self._headings if entry[0] < level]
            self._headings.append((level, text[:MAX_HEADING]))
        self._add("heading", text, at)

    def paragraph(self, text: str, at: int = 0) -> None:
        """Add a paragraph of prose."""
        self._prose("paragraph", clean(text), at)

    def _prose(self, kind: str, text: str, at: int) -> None:
        """Add a paragraph or an item; `kind` is ``paragraph`` or ``item``.

        The question of an FAQ becomes the heading of its answer. A line that only links to other pages is counted, but
        not added.
        """
        if is_navigation(text):
            self._navigation += 1
            return
        question = _QUESTION.match(text) if text[:1] == "Q" else None
        if question is not None and "?" in text and len(text) <= _MAX_QUESTION:
            self.heading(_QUESTION_LEVEL, text[question.end() :], at)
            self._is_answer = True
            return
        if self._is_answer and (answer := _ANSWER.match(text)) is not None:
            kind, text = "paragraph", text[answer.end() :]
        self._is_answer = self._is_answer and not text
        self._add(kind, text, at)

    def item(self, text: str, at: int = 0, marker: str = "-", depth: int = 0) -> None:
        """Add a list item.

        `marker` is written before the text: a dash, or the number of the item, such as ``3.``. `depth` is the number of
        lists around the item's own list.
        """
        text = clean(text)
        if not text:
            return
        marked = f"{marker} {text}"
        for form in (marked, text):
            if form[:1] not in "QA":
                continue
            if (_QUESTION.match(form) and "?" in form) or (self._is_answer and _ANSWER.match(form)):
                self._prose("item", form, at)
                return
        self._is_answer = False
        self._add("item", f"{'  ' * min(depth, 8)}{marked}", at)

    def definition(self, term: str, text: str, at: int = 0) -> None:
        """Add a term with its definition; either may be empty."""
        term, text = clean(term), clean(text)
        if term and text:
            term += " " if term.endswith((":", "?", ".", "!")) else ": "
        self._prose("paragraph", term + text, at)

    def entry(self, depth: int, term: str, text: str, at: int = 0) -> None:
        """Add a term with its definition `text`. The term is a heading of the following blocks.

        An entry inside the definition of another entry has a higher depth. The term stays a heading until the next
        heading, the next entry of this depth or a lower depth, or `end_entries`.
        """
        term = clean(term)
        self.end_entries(depth)
        if term and not _QUESTION_OR_ANSWER.fullmatch(term):
            self._headings.append((_ENTRY_LEVEL + depth, term[:MAX_TERM]))
        self.definition(term, text, at)

    def end_entries(self, depth: int) -> None:
        """End all entries of this depth and of higher depths: their terms are no longer headings."""
        self._headings = [entry for entry in self._headings if entry[0] < _ENTRY_LEVEL + depth]

    def row(self, cells: Sequence[str], headers: Sequence[str] = (), at: int = 0) -> None:
        """Add a row of a table as one paragraph. The name of its column precedes each cell except the first cell.

        `headers` are the names of the columns; a name is empty or missing if it is not known. The first cell gets no
        name, because it usually names the row. Empty cells are left out.
        """
        named = []
        for place, cell in enumerate(map(clean, cells)):
            header = clean(headers[place]).rstrip(":") if place < len(headers) else ""
            if cell:
                named.append(f"{header}: {cell}" if header and place else cell)
        self._add("paragraph", ", ".join(named), at)

    def table(self, rows: Iterable[Sequence[str]], has_header: bool, at: int = 0) -> None:
        """Add a table row by row, each as in `row`.

        If `has_header` is true, the first of `rows` has the names of the columns, and is not written as a row. All rows
        have the position `at`.
        """
        headers: Sequence[str] = ()
        for number, cells in enumerate(rows):
            if number == 0 and has_header:
                headers = cells
                continue
            self.row(cells, headers, at)

    def code(self, text: str, at: int = 0) -> None:
        """Add lines of code.

        The lines are not joined. Tabs become spaces. Spaces at the ends of lines, and blank lines at the start and the
        end, are left out. `INDENT` replaces the indentation that all lines share.
        """
        lines = [line.rstrip() for line in clean_characters(text).expandtabs(8).splitlines()]
        while lines and not lines[0]:
            lines.pop(0)
            at += at > 0 and self._unit == "line"
        while lines and not lines[-1]:
            lines.pop()
        margin = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
        self._add("code", "\n".join(INDENT + line[margin:] if line else "" for line in lines), at)

    def _add(self, kind: str, text: str, at: int) -> None:
        if not text:
            return
        if self._parts:
            between = "\n" if kind == self._last == "item" else "\n\n"
            self._parts.append(between)
            self._length += len(between)
        start = self._length
        path = tuple(name for _, name in self._headings)
        if path != (self._sections[-1][1] if self._sections else ()):
            self._sections.append((start, path))
        if at > 0 and self._unit:
            self._places.append(ParagraphPlace(start, at))
        self._parts.append(text)
        self._length += len(text)
        self._last = kind

    def build(self, title: str = "") -> Extracted:
        """Return the text with its sections and places.

        The title is `title`. If `title` is empty, the title is the first heading of level 0.
        """
        text = "".join(self._parts)
        ends = [*(start for start, _ in self._sections[1:]), len(text)][: len(self._sections)]
        sections = tuple(
            Section(start, end, path) for (start, path), end in zip(self._sections, ends, strict=True) if path
        )
        unit = self._unit if self._places else ""
        remarks = (
            (f"lines that only lead to other pages were left out: {self._navigation}",) if self._navigation else ()
        )
        return Extracted(clean(title or self.title), text, sections, tuple(self._places), unit, {}, remarks)
