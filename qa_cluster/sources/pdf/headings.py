"""Finds the headings of a PDF: from its outline, the size and weight of fonts, and numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .furniture import key_of
from .lines import PageLine, Style

MAX_OUTLINE = 20_000
_MAX_LENGTH = 150
_MAX_LINES = 3
_LARGER = 1.09
_NUMBER = re.compile(
    r"(?:(?:chapter|appendix|part|section|article)\s+)?(\d{1,3}(?:\.\d{1,3})*|[A-Z](?:\.\d{1,3})+)[.:)]?\s+(?=\S)", re.I
)
_PLAIN_NUMBER = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+(?=[A-Z\u00c0-\u00de])")
_LABEL = re.compile(
    r"(?:chapter|appendix|part|section)\s+(?:\d{1,3}|[A-Z]|[IVXLC]{1,6}|one|two|three|four|five|six|seven|eight|nine|ten|\w{3,4}teen"
    r"|eleven|twelve|twenty(?:-?\s?\w{3,5})?)[.:]?",
    re.IGNORECASE,
)
_LIST_MARK = re.compile(r"[\u2022\u25cf\u25cb\u25aa\u25e6\u2023\u00b7*-]\s")


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """A bookmark: its title, its depth counted from 1, and its page counted from 1."""

    title: str
    depth: int
    page: int


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading that starts at a line: its level, and its number of lines.

    The outermost headings have the lowest level. The levels are at most 95, and need not be consecutive.
    """

    level: int
    lines: int


def outline_of(reader: Any) -> list[OutlineEntry]:
    """Return the bookmarks of a document; empty if the outline is damaged."""
    pages = {
        page.indirect_reference.idnum: number for number, page in enumerate(reader.pages, 1) if page.indirect_reference
    }
    found: list[OutlineEntry] = []

    def add(entries: Any, depth: int) -> None:
        for entry in entries:
            if len(found) >= MAX_OUTLINE or depth > 20:
                return
            if isinstance(entry, list):
                add(entry, depth + 1)
            elif (page := getattr(entry.page, "idnum", None)) in pages and str(entry.title).strip():
                found.append(OutlineEntry(str(entry.title).strip(), depth, pages[page]))

    try:
        add(reader.outline, 1)
    except Exception:  # pypdf reports damaged outlines with errors of many kinds
        return []
    return found


class Headings:
    """Finds the headings among the lines of a document. The position of a line is its index in `lines`.

    Args:
        lines: all lines of the document in reading order.
        outline: the bookmarks of the document.
        leading: the usual distance of two baselines, in units of the font size (`lines.spacing`).

    Attributes:
        body: the style of most of the text.
    """

    def __init__(self, lines: Sequence[PageLine], outline: Sequence[OutlineEntry], leading: float) -> None:
        self._lines = lines
        self._leading = leading
        lengths = Counter[Style]()
        for line in lines:
            lengths[line.style] += len(line.text)
        prose = Counter({style: count for style, count in lengths.items() if not style.is_fixed}) or lengths
        self.body = prose.most_common(1)[0][0] if prose else Style(10, False, False, "")
        self._found = dict[int, Heading]()
        self._by_outline(outline)
        by_style = self._styles()
        self._by_form(by_style)

    def get(self, place: int) -> Heading | None:
        """Return the heading that starts at the line with the position `place`; None if no heading starts there."""
        return self._found.get(place)

    def __len__(self) -> int:
        return len(self._found)

    def _by_outline(self, outline: Sequence[OutlineEntry]) -> None:
        """Find the lines that form the title of each bookmark, on its page or at the start of the next page."""
        places: Mapping[int, list[int]] = defaultdict(list)
        for place, line in enumerate(self._lines):
            places[line.page].append(place)
        for entry in outline:
            key = key_of(entry.title)
            bare = key_of(_NUMBER.sub("", entry.title, count=1)) or key
            best: tuple[float, int, int] | None = None
            for place in [*places.get(entry.page, ()), *places.get(entry.page + 1, ())[:6]] if key else ():
                count = self._matching(place, key, bare)
                if count and place not in self._found:
                    style = self._lines[place].style
                    rank = style.size + 2 * self._lines[place].is_bold + 3 * (self._lines[place].page == entry.page)
                    if best is None or rank > best[0]:
                        best = rank, place, count
            if best is not None:
                first = self._with_label(best[1])
                self._found[first] = Heading(min(entry.depth, 8) * 10, best[2] + best[1] - first)

    def _with_label(self, place: int) -> int:
        """Return the position of the first line of the heading at `place`, including a label above the heading.

        A label, such as `Chapter One`, may have two lines. Without a label, return `place`.
        """
        for first in (place - 2, place - 1):
            above = self._lines[max(first, 0) : place]
            if (
                first >= 0
                and above[0].page == self._lines[place].page
                and not any(at in self._found for at in range(first, place))
            ):
                text = " ".join(line.text for line in above)
                if _LABEL.fullmatch(text):
                    return first
        return place

    def _matching(self, place: int, key: str, bare: str) -> int:
        """Return the number of lines, starting at `place`, that form a title; 0 if the lines there do not form it.

        `key` is the key of the title (`key_of`), and `bare` the key of the title without its number.
        """
        joined = ""
        for count in range(1, _MAX_LINES + 1):
            if place + count > len(self._lines):
                break
            line = self._lines[place + count - 1]
            if count > 1 and line.page != self._lines[place].page:
                break
            text = line.text if joined else _NUMBER.sub("", line.text, count=1)
            joined += key_of(text)
            whole = key_of(" ".join(part.text for part in self._lines[place : place + count]))
            if bare in (joined, whole) or key in (joined, whole):
                return count
            if count == 1 and _LABEL.fullmatch(line.text.strip()):
                joined = ""
                continue
            if not (bare.startswith(joined) or key.startswith(whole)):
                break
        return 0

    def _styles(self) -> dict[Style, int]:
        """Return the heading level of each style that differs from the style of the text (`_is_distinct`)."""
        known: dict[Style, Counter[int]] = defaultdict(Counter)
        for place, heading in self._found.items():
            line = self._lines[place + heading.lines - 1]
            if self._is_distinct(line):
                known[_simple(line)][heading.level] += 1
        levels = {style: counts.most_common(1)[0][0] for style, counts in known.items()}
        others = Counter(
            _simple(line)
            for place, line in enumerate(self._lines)
            if place not in self._found and self._is_distinct(line) and _simple(line) not in levels
        )
        ranked = sorted(others, key=lambda style: (-style.size, not style.is_bold))
        for rank, style in enumerate(ranked):
            if levels and known:
                above = [level for other, level in levels.items() if other in known and other.size >= style.size]
                levels[style] = min(max(above, default=5) + 2 + min(rank, 6), 89)
            else:
                levels[style] = min(10 + 10 * rank, 80)
        return levels

    def _is_distinct(self, line: PageLine) -> bool:
        """Return whether a line has the form of a heading: it is larger or bolder than the text.

        A line in a font with fixed width must be larger, and also bold or much larger.
        """
        style, body = line.style, self.body
        if style.size >= body.size * _LARGER:
            return not style.is_fixed or line.is_bold or style.size >= body.size * 1.3
        return line.is_bold and not body.is_bold and not style.is_fixed and style.size >= body.size * 0.94

    def _by_form(self, levels: Mapping[Style, int]) -> None:
        lines = self._lines
        place = 0
        while place < len(lines):
            if (known := self._found.get(place)) is not None:
                place += known.lines
                continue
            line = lines[place]
            count = 1
            if self._is_distinct(line):
                style = _simple(line)
                while (
                    place + count < len(lines)
                    and place + count not in self._found
                    and _simple(lines[place + count]) == style
                    and self._follows(place + count)
                    and not (_NUMBER.match(lines[place + count].text) and _NUMBER.match(line.text))
                ):
                    count += 1
                if self._is_heading(place, count):
                    number = _NUMBER.match(line.text)
                    depth = min(number[1].count("."), 5) if number else 0
                    self._found[place] = Heading(min(levels.get(style, 80) + depth, 95), count)
            elif self._is_numbered(place):
                number = _PLAIN_NUMBER.match(line.text)
                self._found[place] = Heading(90 + min(number[1].count("."), 5) if number else 90, 1)
            place += count

    def _is_heading(self, place: int, count: int) -> bool:
        """Return whether `count` lines with the form of a heading (`_is_distinct`), from `place` on, are a heading.

        The lines must be short, and neither a row of a table nor a list item. If they are not larger than the text, a
        gap or a heading must also be above them.
        """
        lines = self._lines[place : place + count]
        text = " ".join(line.text for line in lines)
        larger = lines[0].style.size >= self.body.size * _LARGER
        if count > _MAX_LINES or not 1 < len(text) <= _MAX_LENGTH or sum(map(str.isalpha, text)) < 2:
            return False
        if _LIST_MARK.match(text) or (text.endswith((".", ",", ";")) and not _NUMBER.match(text) and not larger):
            return False
        cells = max(len(line.cells) for line in lines)
        if cells > 2 or (cells == 2 and not _NUMBER.match(text)):
            return False
        return larger or (self._is_apart(place) and not text[0].islower())

    def _is_numbered(self, place: int) -> bool:
        """Return whether a line in the style of the text is a numbered heading: `2.3 Title` between wide gaps."""
        line = self._lines[place]
        number = _PLAIN_NUMBER.match(line.text)
        if number is None or len(line.text) > 80 or line.text.endswith((".", ",", ";", ":")) or len(line.cells) > 2:
            return False
        if "." not in number[1].rstrip("."):
            return False
        return self._is_apart(place) and self._is_apart_below(place)

    def _is_apart(self, place: int) -> bool:
        """Return whether a gap or a heading is above a line, or the line is the first line of its page or column."""
        line = self._lines[place]
        above = self._lines[place - 1] if place else None
        if above is None or above.page != line.page or above.column != line.column:
            return True
        return above.y - line.y > line.style.size * self._leading * 1.15 or (place - 1) in self._found

    def _is_apart_below(self, place: int) -> bool:
        line = self._lines[place]
        below = self._lines[place + 1] if place + 1 < len(self._lines) else None
        if below is None or below.page != line.page or below.column != line.column:
            return True
        return line.y - below.y > line.style.size * self._leading * 1.15

    def _follows(self, place: int) -> bool:
        """Return whether a line is close enough to the line above it to continue the same heading."""
        above, line = self._lines[place - 1], self._lines[place]
        return (
            above.page == line.page
            and above.column == line.column
            and 0 < above.y - line.y <= line.style.size * max(1.5, self._leading * 1.1)
        )


def _simple(line: PageLine) -> Style:
    return Style(line.style.size, line.is_bold, line.style.is_fixed, "")
