"""Finds lines that repeat on pages, such as running heads and page numbers, and the entries of a table of contents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .lines import PageLine

_EDGE = 2
_LOW = 0.2
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:page\s+|[-\u2013\u2014|]\s*)?(\d{1,4}|[ivxlc]{1,7})(?:\s*[-\u2013\u2014|]|(?:\s+of|\s*/)\s+\d{1,4})?",
    re.IGNORECASE,
)
_NUMBER_AT_EDGE = re.compile(r"\A(\d{1,4})(?=\s|\Z)|(?:\A|(?<=\s))(\d{1,4})\Z")
_ENTRY_PAGE = re.compile(r"(?<![^\s.\u2026\u00b7_])(?:(?:\d{1,2}-)?\d{1,4}|[ivxlc]{1,7})\Z", re.IGNORECASE)
_LEADER = " .\u2026\u00b7_"
_CONTENTS = re.compile(
    r"(?:\d+\.?\s+)?(?:(?:table of |list of )?(?:contents|figures|tables)|inhalt(?:sverzeichnis)?"
    r"|table des mati\u00e8res|sommaire|\u00edndice|indice|inhoud(?:sopgave)?|inneh\u00e5ll)\s*:?",
    re.IGNORECASE,
)  # fmt: skip
_ENTRY_NUMBER = re.compile(
    r"\A(?:(?:chapter|appendix|part|section)\s+)?(?:\d+(?:\.\d+)*|[A-Z](?:\.\d+)*|[IVX]+)[.:)]?\s+", re.IGNORECASE
)
# A table of contents has at least this many entries (`contents_entries`).
_MIN_ENTRIES = 3


def key_of(text: str) -> str:
    """Return the letters and digits of a text in lower case: the key of a heading.

    Spellings of a heading that differ only in case, spaces and punctuation have the same key.
    """
    return "".join(filter(str.isalnum, text)).casefold()


def without_running_heads(
    pages: Sequence[list[PageLine]], areas: Sequence[tuple[float, float]]
) -> tuple[list[list[PageLine]], list[str]]:
    """Return the lines of the pages without running heads, running feet and page numbers, and the removed texts.

    A line in a larger font than the text is kept as a heading, unless at least half of the pages (and at least three)
    repeat the line. On the first page, such a line is always kept.

    Args:
        pages: the lines of each page.
        areas: the lower and the upper edge of each page.
    """
    sizes = Counter[float]()
    for lines in pages:
        for line in lines:
            sizes[line.style.size] += len(line.text)
    body = sizes.most_common(1)[0][0] if sizes else 0.0
    edges = [_edges(lines, area) for lines, area in zip(pages, areas, strict=True)]
    shapes, texts, sites = Counter[str](), Counter[str](), Counter[tuple[int, bool]]()
    offsets = Counter[int]()
    for number, found in enumerate(edges):
        shapes.update({_shape(line) for line, _ in found})
        texts.update({line.text for line, _ in found})
        sites.update({_site(line, at_top) for line, at_top in found})
        for line, _ in found:
            offsets.update({value - number for value in _numbers(line)})
    usual = {offset for offset, count in offsets.items() if count >= max(3, len(pages) // 3)}
    most = max(3, len(pages) // 2)
    apart = _apart(pages)
    dropped: list[str] = []
    kept: list[list[PageLine]] = []
    for number, lines in enumerate(pages):
        out: set[int] = set()
        for line, at_top in edges[number]:
            is_numbered = any(value - number in usual for value in _numbers(line))
            y, _ = _site(line, at_top)
            is_site = sum(sites[near, at_top] for near in (y - 1, y, y + 1)) * 3 >= len(pages) >= 3
            repeated = shapes[_shape(line)]
            if line.style.size > body * 1.09 and (texts[line.text] < most or number == 0):
                continue
            is_page_number = _PAGE_NUMBER.fullmatch(line.text) is not None
            is_expected = is_numbered or (is_page_number and number + 1 in _numbers(line))
            if (
                repeated * 5 >= len(pages) * 4 >= 12
                or (is_page_number and is_expected)
                or (
                    _is_separate(line, lines)
                    and (
                        repeated >= most
                        or (is_site and (is_numbered or is_page_number or repeated >= 2))
                        or (is_numbered and repeated >= 3)
                        or id(line) in apart
                    )
                )
            ):
                out.add(id(line))
                dropped.append(line.text)
        kept.append([line for line in lines if id(line) not in out])
    return kept, dropped


def _is_separate(line: PageLine, lines: Sequence[PageLine]) -> bool:
    """Return whether a gap separates a line from the rest of its page. `lines` are all lines of the page."""
    nearest = min((step for other in lines if (step := abs(other.y - line.y)) > line.style.size * 0.5), default=1000.0)
    return nearest > line.style.size * 1.6


def _apart(pages: Sequence[list[PageLine]]) -> set[int]:
    """Return the ids of lines that are the highest lines of their pages and are far above the next line.

    On at least half of the pages, the highest line must be at the same height with the same wide gap below. Otherwise,
    the result is empty.
    """
    tops = []
    for lines in pages:
        if len(lines) > 2:
            highest = max(lines, key=lambda line: line.y)
            below = max((line.y for line in lines if line.y < highest.y - 1), default=highest.y)
            tops.append((highest, round(highest.y / 3), round((highest.y - below) / 3)))
    if len(tops) < 5:
        return set()
    (y, gap), count = Counter((y, gap) for _, y, gap in tops).most_common(1)[0]
    if count * 2 < len(tops) or gap * 3 < tops[0][0].style.size * 1.7:
        return set()
    return {id(line) for line, at, below in tops if abs(at - y) <= 1 and below * 3 >= line.style.size * 1.5}


def _edges(lines: Sequence[PageLine], area: tuple[float, float]) -> list[tuple[PageLine, bool]]:
    """Return the highest and the lowest lines of a page, each with True if it is one of the highest lines.

    `area` has the lower and the upper edge of the page.
    A short page may end anywhere. So a lowest line is left out unless it is low on the page or is a page number.
    """
    if not lines:
        return []
    edge = _EDGE if len(lines) > 6 else 1
    ordered = sorted(lines, key=lambda line: -line.y)
    heights = sorted({round(line.y) for line in lines}, reverse=True)
    top, bottom = heights[edge - 1 : edge], heights[-edge:]
    found = [(line, True) for line in ordered[:8] if round(line.y) >= top[0]]
    seen = {id(line) for line, _ in found}
    low = area[0] + (area[1] - area[0]) * _LOW
    for line in ordered[-8:]:
        if round(line.y) <= bottom[0] and id(line) not in seen and (line.y < low or _PAGE_NUMBER.fullmatch(line.text)):
            found.append((line, False))
    return found


def _shape(line: PageLine) -> str:
    """Return a line without its numbers, which differ from page to page."""
    text = line.text.strip()
    return "#" if _PAGE_NUMBER.fullmatch(text) else _DIGITS.sub("#", text)


def _site(line: PageLine, at_top: bool) -> tuple[int, bool]:
    return round(line.y / 3), at_top


def _numbers(line: PageLine) -> list[int]:
    return [int(first or last) for first, last in _NUMBER_AT_EDGE.findall(line.text)]


def contents_entries(lines: Sequence[PageLine], titles: Mapping[str, Collection[int]]) -> set[int]:
    """Return the positions of the lines of tables of contents: their entries, and a heading such as `Contents`.

    An entry is confirmed if its title is a heading, and if its page number differs from the heading's page by one of
    the two most frequent differences. Page numbers such as `xii` and `2-14` are not compared. Consecutive lines that
    look like entries are a table of contents if they have at least `_MIN_ENTRIES` entries, and if at least half of the
    entries are confirmed.

    The table starts at the first confirmed entry or, if there is a heading such as `Contents` before this entry, below
    the heading. It ends with the last confirmed entry and the entries with dots that directly follow.

    Args:
        lines: all lines of the document.
        titles: the keys of the headings with their pages.
    """
    found: set[int] = set()
    place = 0
    while place < len(lines):
        run = list(_run(lines, place))
        if not run:
            place += 1
            continue
        place = run[-1] + 1
        entries = _entries(lines, run, titles)
        confirmed = _confirmed(entries, titles)
        if len(entries) < _MIN_ENTRIES or sum(confirmed) * 2 < len(entries):
            continue
        first = confirmed.index(True)
        start = entries[first].places[0]
        heading = next(
            (at for at in range(start - 1, max(run[0] - 2, -1), -1) if _CONTENTS.fullmatch(lines[at].text)), None
        )
        if heading is not None:
            first = next(number for number, entry in enumerate(entries) if entry.places[0] > heading)
            found.add(heading)
        last = len(confirmed) - 1 - confirmed[::-1].index(True)
        while last + 1 < len(entries) and entries[last + 1].is_dotted:
            last += 1
        for entry in entries[first : last + 1]:
            found.update(entry.places)
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a table of contents. `places` are the positions of its lines."""

    title: str
    page: str
    places: list[int]
    is_dotted: bool


def _confirmed(entries: Sequence[_Entry], titles: Mapping[str, Collection[int]]) -> list[bool]:
    pages = [_pages_of(entry.title, titles) for entry in entries]
    offsets = Counter(
        page - int(entry.page)
        for entry, known in zip(entries, pages, strict=True)
        if entry.page.isdecimal()
        for page in known
    )
    usual = {offset for offset, count in offsets.most_common(2) if count > 1}
    return [
        bool(known) and (not entry.page.isdecimal() or any(page - int(entry.page) in usual for page in known))
        for entry, known in zip(entries, pages, strict=True)
    ]


def keys_of(title: str) -> Iterator[str]:
    """Yield the keys of a title, with and without its number."""
    yield key_of(title)
    if (unnumbered := _ENTRY_NUMBER.sub("", title, count=1)) != title:
        yield key_of(unnumbered)


def _pages_of(title: str, titles: Mapping[str, Collection[int]]) -> Collection[int]:
    return next(filter(None, (titles.get(key) for key in keys_of(title))), ())


def _run(lines: Sequence[PageLine], start: int) -> Iterable[int]:
    """Yield the positions of consecutive lines that look like entries of a table of contents, from `start` on.

    If the line at `start` has no page number at its end, yield nothing.
    Up to three lines without a page number may precede a line with a page number, because only the last line of a long
    entry has the page number.
    """
    pending: list[int] = []
    begun = False
    for place in range(start, len(lines)):
        if _entry(lines[place].text) is not None:
            yield from pending
            yield place
            pending, begun = [], True
        elif not begun or len(pending) >= 3:
            return
        else:
            pending.append(place)


def _entry(text: str) -> tuple[str, str, bool] | None:
    """Return the title and the page number of an entry of a table of contents, and whether dots are between them.

    Return None if the line does not look like an entry.

    >>> _entry("2.1 Ropes . . . . 7"), _entry("Ropes 7"), _entry("Total: 7")
    (('2.1 Ropes', '7', True), ('Ropes', '7', False), None)
    """
    found = _ENTRY_PAGE.search(text.strip()) if text[-1:].isalnum() and len(text) < 300 else None
    if found is None:
        return None
    before = found.string[: found.start()]
    title = before.rstrip(_LEADER)
    if not title or title.endswith((":", "=", ",", "-", "\u2013")):
        return None
    return title, found[0], sum(map(before[len(title) :].count, _LEADER[1:])) > 2


def _entries(lines: Sequence[PageLine], run: Sequence[int], titles: Mapping[str, Collection[int]]) -> list[_Entry]:
    """Return the entries at `run`, the positions from `_run`.

    An entry ends with the line that has its page number. The lines between the previous entry and this line may be the
    start of a long title, or other text. The function looks for a heading in `titles` that ends with the line with the
    number, and starts with this line or with a line before it. It takes the longest such heading, and the entry has
    only the lines of this heading. If there is no such heading, the entry has all lines since the previous entry.
    """
    entries: list[_Entry] = []
    pending: list[int] = []
    for place in run:
        pending.append(place)
        if (found := _entry(lines[place].text)) is None:
            continue
        for first in range(len(pending)):
            title = " ".join([*(lines[before].text for before in pending[first:-1]), found[0]])
            if _pages_of(title, titles):
                entries.append(_Entry(title, found[1], pending[first:], found[2]))
                break
        else:
            entries.append(_Entry(*found[:2], pending, found[2]))
        pending = []
    return entries
