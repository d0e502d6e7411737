"""Writes the lines of a PDF as paragraphs, lists, code and tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..extracted import TextBuilder
from .headings import Headings
from .lines import Cell, PageLine

_BULLET = re.compile(r"([\u2022\u25cf\u25cb\u25aa\u25a0\u25e6\u2023\u2043\u00b7\uf0b7\uf0a7\u2212\u2013*o-])\s+(?=\S)")
_NUMBERED = re.compile(r"(\(?(?:\d{1,3}|[a-z]|[ivx]{1,4})[.)])\s+(?=\S)")
_ENDS = re.compile(r"[.!?:;][)\"'\u201d\u2019\]]*\Z")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_HYPHENS = ("-", "\u2010", "\u00ad")
_NOTE = re.compile(r"(?:\d{1,3}|[*\u2020\u2021])\s*\S")
_COLUMN_SHIFT = 1.2
# A table with two columns is written as definitions if the cells of the second column have more characters than this on
# average: the first column then has the terms, and the second column their definitions.
_LONG_CELL = 50


class Writer:
    """Writes lines with a `TextBuilder`.

    Args:
        lines: all lines in reading order.
        headings: the headings among these lines.
        skipped: the positions of lines that are left out.
        leading: the usual distance of baselines, in units of the font size.
    """

    def __init__(self, lines: Sequence[PageLine], headings: Headings, skipped: set[int], leading: float) -> None:
        self.builder = TextBuilder("page")
        self._lines = lines
        self._headings = headings
        self._skipped = skipped
        self._leading = leading
        self._words = vocabulary(lines)
        self._margins = _margins(lines)
        self._notes: list[list[PageLine]] = []
        self._items: list[float] = []  # the x positions of the marks of open list items

    def write(self, title: int | None) -> None:
        """Write all lines. `title` is the position of the heading that is the document's title; None if unknown."""
        place, open_lines = 0, list[PageLine]()
        lines = self._lines
        while place < len(lines):
            heading = self._headings.get(place)
            if place in self._skipped:
                place += 1
            elif heading is not None:
                self._paragraph(open_lines)
                open_lines = []
                self._write_notes()
                self._items = []
                end = place + heading.lines
                text = joined([line.text for line in lines[place:end]], self._words)
                self.builder.heading(0 if place == title else heading.level, text, lines[place].page)
                place = end
            elif count := self._code_length(place):
                self._paragraph(open_lines)
                open_lines = []
                self._code(lines[place : place + count])
                place += count
            elif count := self._table_length(place):
                self._paragraph(open_lines)
                open_lines = []
                self._table(lines[place : place + count])
                place += count
            else:
                line = lines[place]
                if open_lines and not self._continues(open_lines, line):
                    if line.page != open_lines[-1].page or not self._is_note(line):
                        self._paragraph(open_lines)
                        open_lines = []
                    else:  # a footnote stays below the paragraph that may continue on the next page
                        place = self._take_note(place)
                        continue
                open_lines.append(line)
                place += 1
        self._paragraph(open_lines)
        self._write_notes()

    def _is_note(self, line: PageLine) -> bool:
        return line.style.size <= self._headings.body.size * 0.93 and _NOTE.match(line.text) is not None

    def _take_note(self, place: int) -> int:
        """Store the footnote that starts at `place` until the open paragraph ends.

        Return the position of the line after the footnote.
        """
        note = [self._lines[place]]
        place += 1
        while place < len(self._lines) and place not in self._skipped and self._headings.get(place) is None:
            line = self._lines[place]
            if line.page != note[0].page or line.style.size > self._headings.body.size * 0.93 or self._is_note(line):
                break
            note.append(line)
            place += 1
        self._notes.append(note)
        return place

    def _write_notes(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self.builder.paragraph(joined([line.text for line in note], self._words), note[0].page)

    def _paragraph(self, lines: Sequence[PageLine]) -> None:
        if not lines:
            return
        texts = [line.text for line in lines]
        bullet, numbered = _BULLET.match(texts[0]), _NUMBERED.match(texts[0])
        found = bullet or numbered
        if found is not None:
            texts[0] = texts[0][found.end() :]
            depth = self._depth(lines[0].x, lines[0].style.size)
            self.builder.item(joined(texts, self._words), lines[0].page, "-" if bullet else found[1], depth)
        else:
            self.builder.paragraph(joined(texts, self._words), lines[0].page)
            self._items = []
        if self._notes and not self._is_open(lines[-1]):
            self._write_notes()

    def _depth(self, x: float, size: float) -> int:
        """Return the depth of a list item, counted from 0: the number of open items whose marks are further left.

        `x` is the horizontal position of its mark, and `size` its font size. The item becomes an open item.
        """
        self._items = [place for place in self._items if place < x - size * 0.5]
        self._items.append(x)
        return len(self._items) - 1

    def _is_open(self, line: PageLine) -> bool:
        """Return whether a paragraph may continue after this line, on the next page or in the next column."""
        _, right = self._margins[line.page, line.column]
        return not _ENDS.search(line.text) and line.end > right - line.style.size * 4

    def _continues(self, lines: Sequence[PageLine], line: PageLine) -> bool:
        """Return whether a line belongs to the paragraph that `lines` form."""
        last = lines[-1]
        size = line.style.size
        if _BULLET.match(line.text) or abs(size - last.style.size) > size * 0.15:
            return False
        if line.style.is_fixed != last.style.is_fixed and (len(line.cells) > 1 or len(last.cells) > 1):
            return False
        if line.page != last.page or line.column != last.column:
            return self._continues_there(last, line)
        step = last.y - line.y
        return 0 < step <= size * max(self._leading * 1.22, self._leading + 0.15) and self._continues_below(lines, line)

    def _continues_below(self, lines: Sequence[PageLine], line: PageLine) -> bool:
        """Return whether a line at the usual distance continues the paragraph that `lines` form.

        The length of the last of `lines`, the indentation and the marks of list items decide.
        """
        last, first = lines[-1], lines[0]
        size = line.style.size
        left, right = self._margins[line.page, line.column]
        word = len(line.text.split(" ", 1)[0]) * size * 0.5
        is_short = right - last.end > word + size * 1.5
        ends = _ENDS.search(last.text) is not None
        mark = _BULLET.match(first.text) or _NUMBERED.match(first.text)
        if _NUMBERED.match(line.text) and (ends or is_short or mark) and line.x <= first.x + size * 0.5:
            return False
        if mark:
            return line.x > first.x + size * 0.3 or not (is_short and ends)
        if is_short and (ends or right - last.end > (right - left) * 0.3):
            return False
        shift = line.x - last.x
        if shift > size * 0.8:
            return not (ends or is_short) or (len(lines) == 1 and not ends)
        return not (shift < -size * 0.8 and len(lines) > 1 and (ends or is_short))

    def _continues_there(self, last: PageLine, line: PageLine) -> bool:
        """Return whether a line on the next page or in the next column continues the paragraph."""
        if line.page - last.page > 1 or _NUMBERED.match(line.text) or line.is_bold != last.is_bold:
            return False
        if last.text.endswith(_HYPHENS) or (line.text[:1].islower() and not _ENDS.search(last.text)):
            return True
        left, _ = self._margins[line.page, line.column]
        return self._is_open(last) and line.x - left < line.style.size * 0.8 and line.text[:1].isalnum()

    def _code_length(self, place: int) -> int:
        """Return the number of lines, starting at `place`, that are code: lines in a font with fixed width.

        Return 0 if most of the document's text has a font with fixed width.
        """
        if self._headings.body.is_fixed:
            return 0
        count = 0
        while place + count < len(self._lines):
            line = self._lines[place + count]
            if not line.is_code or self._headings.get(place + count) is not None or place + count in self._skipped:
                break
            if count and (line.page != self._lines[place].page or line.column != self._lines[place].column):
                break
            count += 1
        return count

    def _code(self, lines: Sequence[PageLine]) -> None:
        left = min(line.x for line in lines)
        wide = [(cell.end - cell.x) / len(cell.text) for line in lines for cell in line.cells if len(cell.text) > 2]
        width = max(sorted(wide)[len(wide) // 2] if wide else lines[0].style.size * 0.6, 0.1)
        texts: list[str] = []
        for number, line in enumerate(lines):
            if number and lines[number - 1].y - line.y > line.style.size * self._leading * 1.7:
                texts.append("")
            text = ""
            for cell in line.cells:
                wanted = min(round((cell.x - left) / width), 200)
                text = text + " " * max(wanted - len(text), 1 if text else 0) + cell.text
            texts.append(text)
        self.builder.code("\n".join(texts), lines[0].page)

    def _table_length(self, place: int) -> int:
        """Return the number of lines, starting at `place`, that form a table; 0 if they form fewer than two rows.

        Most cells of a row must be aligned with cells of the rows above.
        """
        lines = self._lines
        starts: list[Cell] = []
        count = rows = 0
        while place + count < len(lines):
            line = lines[place + count]
            if place + count in self._skipped or self._headings.get(place + count) is not None:
                break
            if count and (line.page != lines[place].page or line.column != lines[place].column):
                break
            if count and lines[place + count - 1].y - line.y > line.style.size * 3.2:
                break
            cells = line.cells
            if rows > 1 and self._is_header(place, count):
                break
            if len(cells) >= 2 and not _is_marked(line):
                if not starts:
                    starts = cells
                elif sum(_aligned(cell, starts) for cell in cells) * 3 < len(cells) * 2:
                    break
                elif len(cells) > len(starts):
                    starts = cells
                rows += 1
            elif not (rows and len(starts) > 1 and self._is_part_of_row(line, starts)):
                break
            count += 1
        return count if rows >= 2 else 0

    def _is_header(self, place: int, count: int) -> bool:
        """Return whether the line at `place + count` is the header of a new table.

        The header must be bold, like the line at `place`, where the table above starts. The lines directly above and
        below the header must not be bold, and the line below it must have several cells.
        """
        lines = self._lines
        line, above, first = lines[place + count], lines[place + count - 1], lines[place]
        below = lines[place + count + 1] if place + count + 1 < len(lines) else line
        return first.is_bold and line.is_bold and not above.is_bold and not below.is_bold and len(below.cells) > 1

    def _is_part_of_row(self, line: PageLine, starts: Sequence[Cell]) -> bool:
        """Return whether a line with one cell continues a cell of the row above.

        `starts` are the cells of the row with the most cells so far. The line must start below one of these cells other
        than the first.
        """
        return any(abs(line.x - start.x) < line.style.size * _COLUMN_SHIFT for start in starts[1:])

    def _table(self, lines: Sequence[PageLine]) -> None:
        most = max((line for line in lines), key=lambda line: len(line.cells)).cells
        columns = [cell.x for cell in most]
        rows: list[tuple[list[str], int, bool]] = []
        for number, line in enumerate(lines):
            row = [""] * len(columns)
            for cell in line.cells:
                middle = (cell.x + cell.end) / 2
                best = min(
                    range(len(columns)),
                    key=lambda at: min(abs(cell.x - columns[at]), abs(middle - (most[at].x + most[at].end) / 2)),
                )
                row[best] = f"{row[best]} {cell.text}".strip()
            above = lines[number - 1] if number else None
            is_tight = above is not None and above.y - line.y < line.style.size * max(1.35, self._leading * 1.1)
            if rows and not row[0] and is_tight and sum(map(bool, row)) < len(columns):
                cells, page, is_bold = rows[-1]
                whole = [
                    joined([text for text in texts if text], self._words) for texts in zip(cells, row, strict=True)
                ]
                rows[-1] = whole, page, is_bold
            else:
                rows.append((row, line.page, line.is_bold))
        if len(columns) == 2 and sum(len(cells[1]) for cells, _, _ in rows) > _LONG_CELL * len(rows):
            for cells, page, _ in rows:
                self.builder.definition(cells[0], cells[1], page)
            return
        has_header = len(rows) > 1 and rows[0][2] and not rows[1][2] and all(rows[0][0][1:])
        headers = rows[0][0] if has_header else []
        for cells, page, _ in rows[has_header:]:
            self.builder.row(cells, headers, page)


def _is_marked(line: PageLine) -> bool:
    """Return whether the first cell of a line is only the mark of a list item."""
    return len(line.cells) == 2 and (_BULLET.match(line.text) or _NUMBERED.match(line.text)) is not None


def _aligned(cell: Cell, starts: Sequence[Cell]) -> bool:
    limit = 10.0
    return any(
        abs(cell.x - start.x) < limit
        or abs(cell.end - start.end) < limit
        or abs(cell.x + cell.end - start.x - start.end) < limit * 2
        for start in starts
    )


def _margins(lines: Sequence[PageLine]) -> Mapping[tuple[int, int], tuple[float, float]]:
    found: dict[tuple[int, int], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for line in lines:
        key = line.page, line.column
        left, right = found.get(key, (line.x, line.end))
        found[key] = min(left, line.x), max(right, line.end)
    return found


def vocabulary(lines: Sequence[PageLine]) -> set[str]:
    """Return the words of a document in lower case, without words that are divided at the end of a line."""
    words: set[str] = set()
    is_divided = False
    for line in lines:
        text = line.text.partition(" ")[2] if is_divided else line.text
        is_divided = text.endswith(_HYPHENS)
        if is_divided:
            text = text.rpartition(" ")[0]
        words.update(word.lower() for word in _WORD.findall(text))
    return words


def joined(texts: Sequence[str], words: set[str]) -> str:
    """Join lines to one text. A word that is divided at the end of a line is joined; its own hyphens stay.

    `words` are the words of the document (`vocabulary`), which show whether a word is written with a hyphen.
    """
    parts = [texts[0]] if texts else []
    for following in texts[1:]:
        before = parts[-1]
        if before.endswith("\u00ad") or (before.endswith("\u2010") and following[:1].islower()):
            parts[-1] = before[:-1] + following
        elif len(before) > 1 and before.endswith("-") and before[-2].isalnum():
            parts[-1] = (before if _keeps_hyphen(before, following, words) else before[:-1]) + following
        else:
            parts.append(following)
    return " ".join(parts)


def _keeps_hyphen(before: str, following: str, words: set[str]) -> bool:
    head = before.rsplit(None, 1)[-1].lstrip("(\"'\u201c\u2018[")[:-1]
    found = _WORD.match(following)
    if found is None or not following[:1].islower() or not head.replace("-", "").isalpha():
        return True  # UTF-8, Anglo-Saxon, example.org/a-b
    tail = found[0].lower()
    head = head.lower()
    if head + tail in words:
        return False
    if f"{head}-{tail}" in words or "-" in head:
        return True
    return head in words and tail in words and len(head) > 2 and len(tail) > 2
