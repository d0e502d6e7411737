"""Reads presentations (.pptx): the slides in order, each with its title as a heading."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qa_cluster.errors import InvalidInput

from ..extracted import Extracted, clean
from .archive import CORE_PROPERTIES, opened, relations, title_in, xml
from .tree import add, add_text, new_body, place, with_headers, written

MAX_SLIDES = 5000
_DEFAULT_TITLE = "PowerPoint Presentation"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_TITLES = ("title", "ctrTitle")
# Placeholders that every slide repeats.
_REPEATED = ("dt", "ftr", "hdr", "sldNum")
# Placeholders whose paragraphs are bullets.
_BULLETS = ("body", "obj", "")
_MAX_DEPTH = 8


def read(data: bytes) -> Extracted:
    """Return the text of a presentation without hidden slides.

    The place of a paragraph (`Extracted.places`) is the number of its slide.
    """
    with opened(data, ".pptx") as archive:
        start = next((part for kind, part in relations(archive, "").values() if kind == "officeDocument"), "")
        root, related = xml(archive.read(start)), relations(archive, start)
        listed = [related.get(found.get(f"{_RELATION}id"), ("", ""))[1] for found in root.iter("{*}sldId")]
        parts = list(dict.fromkeys(part for part in listed if part))
        if len(parts) > MAX_SLIDES:
            raise InvalidInput(f"has {len(parts)} slides, the limit is {MAX_SLIDES}: split it")
        body = new_body()
        hidden = charts = 0
        for number, part in enumerate(parts, 1):
            slide = xml(archive.read(part))
            if slide.get("show") in ("0", "false"):
                hidden += 1
                continue
            reader = _SlideReader(archive, part)
            place(reader.add_to(body, slide, number), number)
            charts += reader.charts
        title = title_in(archive, CORE_PROPERTIES)
    remarks = [f"hidden slides were left out: {hidden}"] if hidden else []
    remarks += [f"charts were left out: {charts}"] if charts else []
    found = written(with_headers(body), "" if title == _DEFAULT_TITLE else title, unit="page")
    return found.remarked(*remarks)


@dataclass(slots=True)
class _SlideReader:
    """Reads a slide, and counts the charts that it leaves out."""

    archive: zipfile.ZipFile
    part: str
    charts: int = 0

    def add_to(self, body: Any, slide: Any, number: int) -> Any:
        """Add the text of the slide: its title, its shapes in the order of the file, and its notes.

        Return the added element. `slide` is the root element of the slide. `number` is the number of the slide, which
        replaces a missing title.
        """
        target = add(body, "section")
        tree = slide.find("./{*}cSld/{*}spTree")
        shapes = [] if tree is None else [*_shapes(tree)]
        title = next((shape for shape in shapes if _placeholder(shape) in _TITLES), None)
        words = "" if title is None else clean(" ".join(_words(line) for line in title.iter("{*}p")))
        add(target, "h2", words or f"Slide {number}")
        related = relations(self.archive, self.part)
        for shape in shapes:
            if shape is not title:
                self._add_shape(target, shape, related)
        notes = next((part for kind, part in related.values() if kind == "notesSlide"), "")
        if notes in self.archive.namelist():
            self._add_notes(target, xml(self.archive.read(notes)))
        return target

    def _add_shape(self, target: Any, shape: Any, related: dict[str, tuple[str, str]]) -> None:
        kind = _placeholder(shape)
        table = shape.find(".//{*}tbl")
        diagram = shape.find(".//{*}relIds")
        if table is not None:
            _add_table(target, table)
        elif shape.find(".//{*}graphicData/{*}chart") is not None:
            self.charts += 1
        elif diagram is not None:
            part = related.get(diagram.get(f"{_RELATION}dm") or "", ("", ""))[1]
            if part in self.archive.namelist():
                _add_lines(target, [*xml(self.archive.read(part)).iter("{*}p")], is_list=True)
        elif kind not in _REPEATED and (text := shape.find("./{*}txBody")) is not None:
            lines = [line for line in text.iterchildren("{*}p") if _words(line)]
            _add_lines(target, lines, is_list=kind in _BULLETS and len(lines) > 1)

    def _add_notes(self, target: Any, notes: Any) -> None:
        tree = notes.find("./{*}cSld/{*}spTree")
        lines = [
            line
            for shape in (() if tree is None else _shapes(tree))
            if _placeholder(shape) == "body"
            for line in shape.iter("{*}p")
            if _words(line)
        ]
        for number, line in enumerate(lines):
            paragraph = add(target, "p", "" if number else "Notes: ")
            _copy_words(line, paragraph)


def _shapes(tree: Any) -> Iterator[Any]:
    """Yield the shapes of a tree in order, including shapes in groups.

    If a shape has a replacement for older programs (`AlternateContent`), the replacement is left out.
    """
    for child in tree:
        name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if name == "grpSp":
            yield from _shapes(child)
        elif name == "AlternateContent":
            for choice in list(child)[:1]:
                yield from _shapes(choice)
        elif name in ("sp", "graphicFrame"):
            yield child


def _placeholder(shape: Any) -> str | None:
    """Return the kind of a placeholder: empty for an ordinary placeholder, None if the shape is not a placeholder."""
    found = shape.find("./{*}nvSpPr/{*}nvPr/{*}ph")
    return None if found is None else found.get("type") or ""


def _words(line: Any) -> str:
    return clean("".join(text.text or "" for text in line.iter("{*}t")))


def _copy_words(line: Any, target: Any) -> None:
    """Copy the text of `line`, a paragraph element of the presentation, into the HTML element `target`.

    Superscript text becomes an element `sup`.
    """
    for part in line:
        name = part.tag.rpartition("}")[2] if isinstance(part.tag, str) else ""
        if name == "br":
            add_text(target, " ")
        elif name in ("pPr", "endParaRPr") or (name == "fld" and part.get("type") == "slidenum"):
            continue
        elif name:
            text = "".join(found.text or "" for found in part.iter("{*}t"))
            about = part.find("./{*}rPr")
            raised = "" if about is None else about.get("baseline") or ""
            if raised and raised[0] not in "-0":
                add(target, "sup", text)
            else:
                add_text(target, text)


def _add_lines(target: Any, lines: list[Any], *, is_list: bool) -> None:
    """Add lines as paragraphs or, if `is_list` is true, as a list with nested levels.

    A line is a paragraph element of the presentation.
    """
    if not is_list:
        for line in lines:
            _copy_words(line, add(target, "p"))
        return
    lists: list[tuple[int, Any]] = []  # the open lists with their levels
    for line in lines:
        about = line.find("./{*}pPr")
        level = "" if about is None else about.get("lvl") or ""
        depth = min(int(level), _MAX_DEPTH) if level.isdecimal() and len(level) < 3 else 0
        while lists and lists[-1][0] > depth:
            lists.pop()
        if not lists or lists[-1][0] < depth:
            above = lists[-1][1][-1] if lists else target
            lists.append((depth, add(above, "ul")))
        _copy_words(line, add(lists[-1][1], "li"))


def _add_table(target: Any, source: Any) -> None:
    table = add(target, "table")
    for row in source.iterchildren("{*}tr"):
        copied = add(table, "tr")
        for cell in row.iterchildren("{*}tc"):
            if cell.get("hMerge") in ("1", "true") or cell.get("vMerge") in ("1", "true"):
                continue
            made = add(copied, "td")
            for name, span in (("gridSpan", "colspan"), ("rowSpan", "rowspan")):
                if cell.get(name):
                    made.set(span, cell.get(name))
            for line in cell.iter("{*}p"):
                _copy_words(line, made)
                add_text(made, " ")
