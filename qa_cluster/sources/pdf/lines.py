"""Joins pieces of text to lines, and sorts the lines of a page into reading order."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..extracted import clean_characters
from .content import CELL_GAP, WORD_GAP, Piece

# The largest differences of two baselines on the same line, in units of the font size. The second limit is for smaller
# text, such as superscripts and subscripts.
_SAME_LINE = 0.25
_INDEX_SHIFT = 0.65
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_LEFT_TO_RIGHT_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z.,:/%+-]*")
# A page has two columns of prose if at least `_MIN_COLUMN_LINES` lines have a gap at the same position, with at least
# `_MIN_COLUMN_LENGTH` characters on each side.
_MIN_COLUMN_LINES = 5
_MIN_COLUMN_LENGTH = 20
# The limit of rows of a table on one page.
_MOST_ROWS = 200
# Old programs draw an accent and its letter separately.
_ACCENTS = dict(
    zip(
        "\u00a8\u00b4\u02c6\u02dc\u00af\u02d8\u02d9\u02da\u02dd\u02c7\u02cb",
        "\u0308\u0301\u0302\u0303\u0304\u0306\u0307\u030a\u030b\u030c\u0300",
        strict=True,
    )
)
_ACCENTED = re.compile(f"([{''.join(_ACCENTS)}])([A-Za-rt-z\u0131\u0237]|s(?=[a-z]))")
_DOTS = re.compile(r"(?:\.\s*+){4,}|\u2026{2,}")


@dataclass(frozen=True, slots=True)
class Style:
    """The properties that distinguish headings, prose and code. The size is rounded to half a point."""

    size: float
    is_bold: bool
    is_fixed: bool
    font: str


@dataclass(slots=True)
class Cell:
    """A part of a line between wide gaps. `x` and `end` are its left and right edge."""

    x: float
    end: float
    text: str
    is_bold: bool = False


@dataclass(slots=True)
class PageLine:
    """A line of text.

    Attributes:
        page: the number of its page, counted from 1.
        x, end, y: its left edge, its right edge and its baseline. A line that is higher on the page has a larger `y`.
        style: the style of most of its characters.
        column: the number of its column, or of another block of lines, on its page.
        cells: its parts between wide gaps.
        is_bold: whether at least 90% of its characters are bold.
        is_code: whether all its text is in fonts with fixed width.
    """

    page: int
    x: float
    end: float
    y: float
    style: Style
    cells: list[Cell]
    is_bold: bool = False
    is_code: bool = False
    column: int = 0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = " ".join(cell.text for cell in self.cells)


def lines_of(pieces: Sequence[Piece], page: int) -> list[PageLine]:
    """Return the lines of a page in reading order. `page` is the number of the page, counted from 1.

    Text in other directions follows the text in the most frequent direction.
    """
    turns = Counter[int]()
    for piece in pieces:
        turns[piece.turn] += len(piece.text)
    found: list[PageLine] = []
    for turn, _ in turns.most_common():
        lines = _joined([piece for piece in pieces if piece.turn == turn], page)
        ordered = _ordered(lines)
        first = 1 + max((line.column for line in found), default=-1)
        for line in ordered:
            line.column += first
        found += ordered
    return found


def _joined(pieces: Iterable[Piece], page: int) -> list[PageLine]:
    lines: list[PageLine] = []
    current: list[Piece] = []
    size = y = 0.0
    for piece in pieces:
        shift = abs(piece.y - y)
        larger = max(piece.size, size)
        is_index = abs(piece.size - size) > larger * 0.1 and shift < larger * _INDEX_SHIFT
        is_index = is_index and bool(current) and piece.x > current[-1].end - larger * 0.3
        if current and (shift < larger * _SAME_LINE or is_index):
            if piece.size > size * 1.05:
                size, y = piece.size, piece.y
        else:
            if current:
                lines.append(_line(current, page, y))
            current, size, y = [], piece.size, piece.y
        current.append(piece)
    if current:
        lines.append(_line(current, page, y))
    return [line for line in lines if line.text]


def _line(pieces: list[Piece], page: int, y: float) -> PageLine:
    pieces.sort(key=lambda piece: piece.x)
    styles = Counter[Style]()
    bold = fixed = total = 0
    cells: list[tuple[float, float, list[str], bool]] = []
    last: Piece | None = None
    for piece in pieces:
        if last is not None and piece.text == last.text and abs(piece.x - last.x) < piece.size * 0.15:
            continue  # drawn twice, to look bold
        font = piece.font
        length = len(piece.text)
        styles[Style(round(piece.size * 2) / 2, font.is_bold, font.is_fixed, font.name)] += length
        total += length
        bold += length if font.is_bold else 0
        fixed += length if font.is_fixed else 0
        if last is None:
            cells.append((piece.x, piece.end, [piece.text], font.is_bold))
        else:
            size = min(piece.size, last.size)
            x, end, texts, is_bold = cells[-1]
            gap = piece.x - max(end, last.end)
            is_leader = piece.text.startswith(". .") or _DOTS.match(piece.text) is not None
            if gap > size * CELL_GAP and not is_leader and not _DOTS.search(texts[-1]):
                cells.append((piece.x, piece.end, [piece.text], font.is_bold))
            else:
                limit = 0.3 if font.is_fixed and last.font.is_fixed else WORD_GAP
                if gap > size * limit:
                    texts.append(" ")
                texts.append(piece.text)
                cells[-1] = (x, max(end, piece.end), texts, is_bold and font.is_bold)
        last = piece
    made = [
        Cell(x, end, _logical(_ACCENTED.sub(_composed, clean_characters("".join(texts)).strip())), is_bold)
        for x, end, texts, is_bold in cells
    ]
    made = [cell for cell in made if cell.text]
    if made and _RIGHT_TO_LEFT.search(made[-1].text):
        made.reverse()
    largest = max(styles, key=lambda style: styles[style])
    return PageLine(
        page, pieces[0].x, max(piece.end for piece in pieces), y, largest, made, bold * 10 >= total * 9, fixed == total
    )


def _composed(found: re.Match[str]) -> str:
    letter = {"\u0131": "i", "\u0237": "j"}.get(found[2], found[2])
    composed = unicodedata.normalize("NFC", letter + _ACCENTS[found[1]])
    return composed if len(composed) == 1 else found[0]


def _logical(text: str) -> str:
    """Return the text of a line in reading order. A PDF stores Hebrew and Arabic letters from left to right."""
    if (
        text.isascii()
        or len(_RIGHT_TO_LEFT.findall(text)) * 2 < sum(map(str.isalpha, text))
        or not _RIGHT_TO_LEFT.search(text)
    ):
        return text
    return _LEFT_TO_RIGHT_RUN.sub(lambda found: found[0][::-1], text[::-1])


def _ordered(lines: list[PageLine]) -> list[PageLine]:
    lines = _columns(lines)
    blocks = _blocks(lines)
    if len(blocks) > max(8, len(lines) // 4):  # drawn in no order
        lines = _columns(_rows(sorted(lines, key=lambda line: (-line.y, line.x))))
        blocks = _blocks(lines)
    merged: list[list[PageLine]] = []
    for block in blocks:
        if merged and _is_beside(merged[-1], block):
            merged[-1] = _rows(sorted(merged[-1] + block, key=lambda line: (-line.y, line.x)))
        else:
            merged.append(block)
    for number, block in enumerate(merged):
        for line in block:
            line.column = number
    return [line for block in merged for line in block]


def _blocks(lines: Sequence[PageLine]) -> list[list[PageLine]]:
    """Split a page into blocks whose lines go downwards."""
    blocks: list[list[PageLine]] = []
    for line in lines:
        if blocks and line.y <= blocks[-1][-1].y + line.style.size * 0.5:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _is_beside(left: Sequence[PageLine], right: Sequence[PageLine]) -> bool:
    """Return whether the block `right` is the next column of a table, to the right of the block `left`.

    Most lines of both blocks must be short, and most lines of `right` must have the baseline of a line of `left`.
    """
    if len(right) < 2 or len(left) > _MOST_ROWS or len(right) > _MOST_ROWS:
        return False
    if min(line.x for line in right) < max(line.end for line in left):
        return False
    baselines = [line.y for line in left]
    same = sum(any(abs(y - line.y) < line.style.size * _SAME_LINE for y in baselines) for line in right[:50])
    lengths = sorted(len(line.text) for line in [*left[-50:], *right[:50]])
    return same * 10 >= len(right[:50]) * 8 and lengths[len(lengths) // 2] < _MIN_COLUMN_LENGTH


def _rows(lines: list[PageLine]) -> list[PageLine]:
    """Join lines that have the same baseline. `lines` are sorted from top to bottom, then from left to right."""
    rows: list[PageLine] = []
    for line in lines:
        above = rows[-1] if rows else None
        if above is not None and abs(above.y - line.y) < line.style.size * _SAME_LINE and line.x >= above.end:
            cells = [*above.cells, *line.cells]
            is_bold, is_code = above.is_bold and line.is_bold, above.is_code and line.is_code
            rows[-1] = PageLine(above.page, above.x, line.end, above.y, above.style, cells, is_bold, is_code)
        else:
            rows.append(line)
    return rows


def _columns(lines: list[PageLine]) -> list[PageLine]:
    """Split lines that cross the gap between two columns of prose.

    The lines of the left column come before the lines of the right column.
    """
    gaps = Counter[int]()
    for line in lines:
        if len(line.cells) == 2 and all(len(cell.text) >= _MIN_COLUMN_LENGTH for cell in line.cells):
            gaps[round(line.cells[1].x / 4)] += 1
    if not gaps:
        return lines
    most, count = gaps.most_common(1)[0]
    if count < _MIN_COLUMN_LINES:
        return lines
    at = most * 4.0
    ordered: list[PageLine] = []
    left: list[PageLine] = []
    right: list[PageLine] = []
    for line in lines:
        before = [cell for cell in line.cells if cell.end <= at + 3]
        after = [cell for cell in line.cells if cell.x >= at - 3]
        if len(before) + len(after) == len(line.cells) and (before or after):
            for part, side in ((before, left), (after, right)):
                if part:
                    x, end = part[0].x, part[-1].end
                    side.append(PageLine(line.page, x, end, line.y, line.style, part, line.is_bold, line.is_code))
        else:  # a heading over both columns
            ordered += [*left, *right, line]
            left, right = [], []
    return [*ordered, *left, *right]


def spacing(lines: Sequence[PageLine]) -> float:
    """Return the most frequent distance of the baselines of two consecutive lines, in units of the font size.

    Only two lines of the same size count, at a distance between 0.8 and 2.6. Without such lines, return 1.2.
    """
    steps = Counter[float]()
    for line, below in pairwise(lines):
        step = line.y - below.y
        size = line.style.size
        if line.page == below.page and below.style.size == size > 0 and 0.8 * size < step < 2.6 * size:
            steps[round(step / size, 1)] += 1
    return steps.most_common(1)[0][0] if steps else 1.2
