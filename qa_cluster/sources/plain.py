"""Reads plain text by its layout: headings, paragraphs of several lines, lists, and code.

Headings are lines that are underlined, boxed, numbered, in capitals, or marked with stars (Emacs' outlines). The
questions of an FAQ (``Q: ..``) are headings, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .extracted import Extracted, TextBuilder, clean_characters, is_navigation

_RULE = re.compile(r"[ \t]*([=\-~*_#^+.:])(?:[ \t]*\1){2,}[ \t]*\Z|[ \t]*[*#=+|][-=*#]{3,}[*#=+|]?[ \t]*\Z")
_UNDERLINE = re.compile(r"[ \t]*([=\-~*_#^+.\"'])\1{2,}[ \t]*\Z")
_NUMBERED = re.compile(r"[ \t]*((?:\d{1,3}|[A-Z](?=[.\d]))(?:\.\d{1,3})*)[.)]?[ \t]+(?=\S)")
_ITEM = re.compile(r"([ \t]*)([-*+o\u2022\u25cf\u25cb]|--|\(?(?:\d{1,3}|[a-z]|[ivx]{1,4})[.)])[ \t]+(?=\S)")
_STAR = re.compile(r"(\*{1,4}) +(?=\S)")
_QUESTION = re.compile(r"\A[ \t]*+(?:Q|Question)(?:uestion)?\s?\d{0,3}(?:\.\d{1,3})*[.:)][ \t]+(?=\S)", re.IGNORECASE)
_ANSWER = re.compile(r"\A[ \t]*+(?:A|Answer)\s?\d{0,3}(?:\.\d{1,3})*[.:][ \t]+(?=\S)")
_COLUMNS = re.compile(r"\S(?: {3,}|\t+)\S")
_TWO_COLUMNS = re.compile(r"([ \t]*)(\S.{0,30}?)(?: {2,}|\t+)(?=\S)")
_CODE_MARKS = re.compile(
    r"^[ \t]*(?:[$%#>] |[./~]?/\S|\w+=\S|[{}\[\]<|;&])|[;{}\\|]$|\w\(.{0,200}\)$|--?\w", re.MULTILINE
)
_PROSE_WORD = re.compile(r"[(\"'`*_\[]*[A-Za-z][a-z]*(?:['\u2019-][A-Za-z]+)?[)\"'`*_\].,;:!?]*\Z")
# A date at the start of a line marks an entry of a history.
_STAMP = re.compile(r"[ \t]*\d{4}[/.-]\d\d?[/.-]\d\d?\b")
_CONTENTS = re.compile(r"[ \t]*(?:\d+\.?[ \t]+)?(?:table of )?contents:?[ \t]*\Z", re.IGNORECASE)
_CONTENTS_LINE = re.compile(
    r"[ \t]*(?:[-*o?\u2022][ \t]+)?"
    r"(?:\(?\d{1,3}(?:\.\d{1,3})*[.)]?|[A-Z]{1,2}\d*(?:\.\d{1,3})*[.)]|[IVX]{1,5}[.)]|Q\S*:)"
    r"[ \t]+\S|(?:.*[^.])?\.{4,}+[ \t]*+\d*+\Z"
)
_MODE = re.compile(r"-\*-.*?-\*-|\$(?:Id|Revision|Date)[^$\n]*\$")
_SENTENCE_END = re.compile(r"[.!?:;,)\"'\u201d]\Z")
_LEADER = re.compile(r"(?<![. \t])(?:[ \t]*+\.{3,}+[ \t]*+\d*+|[ \t]{2,}+\d++|(?:[ \t]*+\.[ \t]++){3,}+\d*+)\Z")
_PAGE_NUMBER = re.compile(r"\A\d{1,5}(?= |\Z)|(?<![^ ])(?:\[?Page )?\d{1,5}\]?\Z", re.IGNORECASE)
_PAGE_END = re.compile(r"\[Page \d{1,5}\][ \t]*\Z", re.IGNORECASE)
_MANUAL_HEAD = re.compile(r"\s*(\S{1,60}\(\w{1,9}\)) {2,}(\S.*?) {2,}\1\s*\Z", re.IGNORECASE)
# A head or foot is on at least `_MIN_PAGES` pages, with at most `_MOST_BLANK` lines between it and the page break.
_MIN_PAGES = 2
_MOST_BLANK = 12
_MAX_TITLE = 150
_MAX_TITLE_WORDS = 6
# A centred title is one of the first `_FIRST_LINES` lines.
_FIRST_LINES = 30
_LEVELS = {"entry": 50, "star": 60, "underlined": 70, "capitals": 80, "numbered": 85, "question": 98}
_MAX_HEADING = 100
_SHORT = 50


@dataclass
class _Block:
    """Consecutive lines between blank lines. `at` is the number of the first line in the source, counted from 1."""

    at: int
    lines: list[str]


EntryOf = Callable[[str], bool]
# Colours and links of terminals, as ECMA-48 defines them.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)|[@-Z^_])")


def read(source: str, is_entry: EntryOf = lambda line: False) -> Extracted:
    """Return the text of a plain text file.

    A line for which `is_entry` returns true is a heading, such as the name of a version in a changelog.
    """
    source = clean_characters(_without_terminal_codes(source)).expandtabs(8)
    lines, left_out = without_running_heads(source.split("\n"), is_entry)
    reader = _Reader(TextBuilder(), lines, is_entry)
    found = reader.read()
    remarks = []
    if left_out:
        remarks.append(f"running heads and feet of pages were left out: {left_out}")
    if reader.contents:
        remarks.append(f"lines of a table of contents were left out: {reader.contents}")
    return found.remarked(*remarks)


def _without_terminal_codes(source: str) -> str:
    """Return the text as a terminal shows it, without escape sequences.

    A character that is printed over another character replaces it. An underscore does not replace a character.
    """
    if "\x1b" in source:
        source = _ESCAPES.sub("", source)
    if "\b" in source:
        source = re.sub(r"([^\n\b])\x08_", r"\1", source)
        source = re.sub(r"[^\n\b]\x08(?=[^\n\b])", "", source)
    return source


class _Reader:
    """Reads lines, each with its number in the source, and writes their blocks.

    Attributes:
        contents: the number of lines of tables of contents that were left out.
    """

    def __init__(self, builder: TextBuilder, lines: Sequence[tuple[int, str]], is_entry: EntryOf) -> None:
        self._builder = builder
        self._blocks = _blocks(lines)
        self._is_entry = is_entry
        self._is_outline = any("outline" in _between_mode_marks(text) for _, text in lines[:3]) or (
            sum(bool(re.match(r"\*\* \S", text)) for _, text in lines) > 2
        )
        words = Counter(word.lower() for _, text in lines for word in re.findall(r"[\w-]+", text))
        self._words = words
        long = Counter(_indent(text) for _, text in lines if len(text.strip()) > _SHORT)
        self._margin = long.most_common(1)[0][0] if long else 0
        self._underlines: list[str] = []
        self._in_contents = False
        self._entries: set[str] = set()
        self._pending: list[str] = []  # the heading of a table of contents whose entries may follow
        self.contents = 0
        has_contents = any(_CONTENTS.match(text) for _, text in lines)
        self._titles = Counter(_title_key(text) for _, text in lines if has_contents and len(text) < _MAX_TITLE)
        self._restarted = _restarted(self._blocks)

    def read(self) -> Extracted:
        for number, block in enumerate(self._blocks):
            block.lines = [_MODE.sub("", line).rstrip() for line in block.lines]
            steps = [line for line in block.lines if is_navigation(line)]
            for line in steps:
                self._builder.paragraph(line)  # does not write the line, but counts it
            block.lines = [line for line in block.lines if line.strip() and line not in steps]
            block.lines = self._without_contents(block.lines)
            if block.lines:
                self._block(block, is_first=number == 0)
        if self._pending:
            self._block(_Block(self._blocks[-1].at, self._pending_and([])), is_first=False)
        return self._builder.build()

    def _without_contents(self, lines: list[str]) -> list[str]:
        """Return the lines of a block without entries of a table of contents. An entry names a heading that follows.

        A line below `Contents` is an entry if it looks like an entry, or if it occurs elsewhere in the text. A block
        has entries only if at least half of its lines occur elsewhere in the text.
        """
        if lines and _CONTENTS.match(lines[0]):
            self._in_contents = True
            rest = [line for line in lines[1:] if not _RULE.match(line)]
            if not rest:  # entries may follow in the next block; without entries, the line is a heading
                self._pending = lines
                return []
        elif not self._in_contents or not lines or _title_key(lines[0]) in self._entries:
            self._in_contents = False
            return self._pending_and(lines)
        else:
            rest = lines
        known = [self._titles[_title_key(line)] > 1 for line in rest]
        if sum(known) * 2 < len(rest) or not rest:
            self._in_contents = False
            return self._pending_and(lines)
        marked = [known or _CONTENTS_LINE.match(line) is not None for line, known in zip(rest, known, strict=True)]
        last = len(marked) - 1 - marked[::-1].index(True)
        # Lines between entries continue the previous entry.
        self.contents += last + 1 + len(self._pending) + len(lines) - len(rest)
        self._entries.update(map(_title_key, rest[: last + 1]))
        self._pending = []
        return rest[last + 1 :]

    def _pending_and(self, lines: list[str]) -> list[str]:
        """Return `lines`, preceded by the pending line `Contents`, if any. No entries followed that line."""
        pending, self._pending = self._pending, []
        return [*pending, *lines]

    def _block(self, block: _Block, is_first: bool) -> None:
        lines, at = block.lines, block.at
        while lines:
            taken = self._heading(lines, at, is_first)
            if not taken:
                break
            lines, at = lines[taken:], at + taken
        while lines and _RULE.match(lines[0]):
            lines, at = lines[1:], at + 1
        if not lines:
            return
        for place, line in enumerate(lines):
            if (place and (_STAMP.match(line) and _STAMP.match(lines[0]))) or (
                place
                and (_is_underlined(lines, place) or self._is_entry(line) or self._is_star(line) or _RULE.match(line))
            ):
                self._body(lines[:place], at)
                self._block(_Block(at + place, lines[place:]), False)
                return
        self._body(lines, at)

    def _heading(self, lines: list[str], at: int, is_first: bool) -> int:
        """Write the heading at the start of a block. Return the number of its lines; 0 if there is no heading.

        `at` is the number of the first of `lines` in the source. `is_first` says whether the block is the first block
        of the text.
        """
        line = lines[0]
        text = line.strip()
        if len(lines) > 2 and _RULE.match(line) and not _RULE.match(lines[1]) and _RULE.match(lines[2]):
            if len(lines[1]) < _MAX_HEADING:
                self._write_heading("underlined", "box" + text[:1], lines[1].strip(" \t*#|"), at + 1)
                return 3
        elif _is_underlined(lines, 0):
            self._write_heading("underlined", lines[1].strip()[0], text, at)
            return 2
        elif _QUESTION.match(line):
            return self._question(lines, at)
        elif len(text) <= _MAX_HEADING and self._one_line_heading(lines, at, is_first):
            return 1
        return 0

    def _one_line_heading(self, lines: list[str], at: int, is_first: bool) -> bool:
        line = lines[0]
        text = line.strip()
        if self._is_entry(line):
            self._write_heading("entry", "", _STAR.sub("", text, count=1), at)
            return True
        star = _STAR.match(line) if self._is_star(line) else None
        if star is not None and (len(lines) == 1 or _STAR.match(lines[1])):
            self._builder.heading(_LEVELS["star"] + len(star[1]), text.lstrip("* "), at)
            return True
        if len(lines) > 1 and _is_manual_heading(lines):
            self._write_heading("capitals", "capitals", text, at)
            return True
        return (len(lines) == 1 or (is_first and _indent(line) > 8)) and self._lone_line(line, text, at) == 1

    def _lone_line(self, line: str, text: str, at: int) -> int:
        numbered = _NUMBERED.match(line)
        if (
            numbered
            and not text.endswith((".", ";", ","))
            and len(text) < 80
            and text[numbered.end() - _indent(line) :][:1].isupper()
            and at not in self._restarted
            and ("." in numbered[1] or not _ITEM.match(line) or len(text) < 60)
        ):
            self._builder.heading(_LEVELS["numbered"] + min(9, numbered[1].count(".")), text, at)
            return 1
        letters = [character for character in text if character.isalpha()]
        if len(letters) >= 4 and text.upper() == text and len(text) < 70 and not text.startswith(("-", "/", "$")):
            self._write_heading("capitals", "capitals", text, at)
            return 1
        if self._builder.is_empty and len(text) < 80 and not _ITEM.match(line) and not text.endswith((".", ",")):
            self._builder.heading(0, text, at)
            return 1
        if not self._builder.title and at < _FIRST_LINES and _indent(line) > 8 and not text.endswith((".", ",", ":")):
            self._builder.heading(0, text, at)  # a centred title
            return 1
        return 0

    def _write_heading(self, kind: str, mark: str, text: str, at: int) -> None:
        if not self._builder.title and self._builder.is_empty:
            self._builder.heading(0, text, at)
            return
        if mark and mark not in self._underlines:
            self._underlines.append(mark)
        numbered = _NUMBERED.match(text)
        level = _LEVELS[kind] + (min(4, self._underlines.index(mark)) if mark else 0)
        if kind == "underlined" and numbered and "." in numbered[1].rstrip("."):
            level += min(4, numbered[1].count("."))
        self._builder.heading(level, text, at)

    def _question(self, lines: list[str], at: int) -> int:
        end = next((place for place, line in enumerate(lines) if place and _ANSWER.match(line)), len(lines))
        question = " ".join(line.strip() for line in lines[:end])
        if len(question) > 400:
            return 0
        self._builder.heading(_LEVELS["question"], _QUESTION.sub("", question, count=1), at)
        return end

    def _is_star(self, line: str) -> bool:
        return self._is_outline and _STAR.match(line) is not None and (line.startswith("**") or self._is_entry(line))

    def _body(self, lines: list[str], at: int) -> None:
        """Write lines that contain no heading: a list, code, a definition or a paragraph.

        `at` is the number of the first of `lines` in the source.
        """
        if _ANSWER.match(lines[0]) and not _ITEM.match(lines[0]):
            lines = [_ANSWER.sub(lambda match: " " * len(match[0]), lines[0], count=1), *lines[1:]]
            lines[0] = " " * (_indent(lines[1]) if len(lines) > 1 else self._margin) + lines[0].strip()
        if self._is_star(lines[0]):
            lines = [_STAR.sub("", lines[0], count=1), *lines[1:]]
        if _ITEM.match(lines[0]):
            self._items(lines, at)
        elif self._is_code(lines):
            self._builder.code("\n".join(lines), at)
        else:
            place = next((place for place, line in enumerate(lines) if place and _is_item_of(lines, place)), None)
            if place is not None:
                self._prose(lines[:place], at)
                self._items(lines[place:], at + place)
            else:
                self._prose(lines, at)

    def _items(self, lines: list[str], at: int) -> None:
        margin = _indent(lines[0])
        item: list[str] = []
        begun = at
        for place, line in enumerate(lines):
            found = _ITEM.match(line)
            if found and place:
                self._item(item, begun, margin)
                item, begun = [], at + place
            item.append(line)
        self._item(item, begun, margin)

    def _item(self, lines: list[str], at: int, margin: int) -> None:
        found = _ITEM.match(lines[0])
        if found is None:
            self._builder.paragraph(self._joined(lines), at)
            return
        marker = found[2] if found[2][-1] in ".)" else "-"
        depth = 1 if _indent(lines[0]) > margin + 1 else 0
        self._builder.item(self._joined([lines[0][found.end() :], *lines[1:]]), at, marker, depth)

    def _prose(self, lines: list[str], at: int) -> None:
        first, rest = lines[0], lines[1:]
        columns = _TWO_COLUMNS.match(first)
        deeper = bool(rest) and all(_indent(line) > _indent(first) + 1 for line in rest)
        if (
            columns
            and len(first) - columns.end() > 8
            and (not rest or all(abs(_indent(line) - columns.end()) < 3 for line in rest))
            and (rest or columns.end() > 8)
        ):
            self._builder.definition(columns[2], self._joined([first[columns.end() :], *rest]), at)
        elif (
            deeper
            and len(first.strip()) < 60
            and not first.rstrip().endswith((".", ","))
            and _indent(first) <= self._margin
        ):
            self._builder.definition(first, self._joined(rest), at)
        else:
            self._builder.paragraph(self._joined(lines), at)

    def _is_code(self, lines: list[str]) -> bool:
        """Return whether the lines of a block must stay unchanged.

        This is true for columns, for commands and similar lines, and for indented or short lines that are not prose.
        """
        texts = [line.strip() for line in lines]
        wide = sum(bool(_COLUMNS.search(text)) for text in texts)
        if len(lines) > 1 and wide * 2 > len(lines) and not _justified(texts):
            return True
        filled = all(len(text) >= _SHORT for text in texts[:-1])
        marks = sum(bool(_CODE_MARKS.search(text)) for text in texts)
        if min(map(_indent, lines)) >= self._margin + 2:
            return marks * 2 > len(texts) + (filled and len(texts) > 1) or not _is_prose(texts)
        short = sum(len(text) < _SHORT for text in texts[:-1]) * 3 > len(texts) * 2
        return len(texts) > 2 and not filled and short and not _is_prose(texts)

    def _joined(self, lines: Sequence[str]) -> str:
        text = lines[0].strip()
        for line in lines[1:]:
            following = line.strip()
            if not _ends_in_hyphen(text):
                text = f"{text} {following}"
            elif following[:1].islower():
                text = self._hyphen(text, following)
            else:  # Anglo-Saxon, UTF-8
                text += following
        return text

    def _hyphen(self, text: str, following: str) -> str:
        """Join `text`, which ends with a hyphen, and the line `following`.

        The hyphen is removed if the document contains the word without a hyphen.
        """
        head = re.split(r"[^\w-]", text)[-1][:-1]
        tail = re.match(r"[\w-]*", following)
        end = tail[0] if tail else ""
        whole = (head + end).lower()
        if "-" not in head and self._words[whole]:
            return text[:-1] + following
        return text + following


def _blocks(lines: Sequence[tuple[int, str]]) -> list[_Block]:
    blocks: list[_Block] = []
    is_open = False
    for at, line in lines:
        if not line.strip():
            is_open = False
            continue
        if not is_open:
            blocks.append(_Block(at, []))
            is_open = True
        blocks[-1].lines.append(line.rstrip())
    return blocks


def _title_key(line: str) -> str:
    """Return the letters and digits of a heading, or of an entry in a table of contents, in lower case.

    The number at the start, the dots and the page number are left out.
    """
    line = _LEADER.sub("", line.strip()).lstrip("?*+- ")
    for form in (_ITEM, _NUMBERED):
        if (mark := form.match(line)) is not None:
            line = line[mark.end() :]
    return "".join(filter(str.isalnum, line)).casefold()


def _restarted(blocks: Sequence[_Block]) -> set[int]:
    """Return the line numbers of single numbered lines that are items, such as the senses of a word, and not headings.

    The numbers of headings ascend. If each number occurs with only one text, no line is an item. Otherwise, a numbered
    line is an item in three cases:

    - It is long.
    - The block before or after it is also a single numbered line.
    - Its number is not higher than the number of the last heading.
    """
    lone: list[tuple[int, int, str, str]] = []
    for place, block in enumerate(blocks):
        numbered = _NUMBERED.match(block.lines[0]) if len(block.lines) == 1 else None
        if numbered is not None and numbered[1].isdecimal():
            lone.append((place, block.at, numbered[1], block.lines[0].strip()))
    texts: dict[str, set[str]] = {}
    for _, _, number, text in lone:
        texts.setdefault(number, set()).add(_title_key(text))
    if all(len(found) < 2 for found in texts.values()):
        return set()
    places = {place for place, _, _, _ in lone}
    items: set[int] = set()
    last = -1
    for place, at, number, text in lone:
        if len(text.split()) > _MAX_TITLE_WORDS or {place - 1, place + 1} & places or int(number) <= last:
            items.add(at)
        else:
            last = int(number)
    return items


def without_running_heads(lines: Sequence[str], is_entry: EntryOf) -> tuple[list[tuple[int, str]], int]:
    """Return the numbered lines without the running heads and feet of pages, and the number of removed lines.

    The numbers count from 1. At a page break, a line for which `is_entry` is true is not a head or foot. If no text
    would remain, all lines are returned.

    A page ends with a form feed, or with a line such as ``[Page 7]``. A paragraph that continues on the next page is
    joined. A text made by man(1) has heads and feet that name the page: ``LS(1)  User Commands  LS(1)``.
    """
    kept = list(enumerate((line.replace("\f", "") for line in lines), 1))
    breaks = [number for number, line in enumerate(lines) if "\f" in line or _PAGE_END.search(line)]
    out = _manual_heads(lines)
    if out and (head := _MANUAL_HEAD.match(lines[min(out)])):
        kept[min(out)] = (min(out) + 1, f"{head[1]} {head[2]}")
        out.remove(min(out))
    edges: list[list[int]] = []
    for number in breaks:
        has_feed = "\f" in lines[number]
        before = _nearest(lines, number - has_feed, -1) if not lines[number].partition("\f")[0].strip() else number
        after = _nearest(lines, number + (not lines[number].rpartition("\f")[2].strip() or not has_feed), 1)
        edges.append([place for place in (before, after) if place is not None and not is_entry(lines[place])])
    shapes = Counter(_shape(lines[place]) for found in edges for place in set(found))
    for found in edges:
        out.update(place for place in found if _is_head(lines[place], shapes[_shape(lines[place])], len(edges)))
    if breaks:  # also the first head and the last foot
        ends = (_nearest(lines, 0, 1), _nearest(lines, len(lines) - 1, -1))
        out.update(
            place
            for place in ends
            if place is not None and _is_head(lines[place], shapes[_shape(lines[place])], len(edges))
        )
    blank: set[int] = set()
    for found in edges:
        if out.issuperset(found) and found:
            before, after = _nearest(lines, min(found) - 1, -1), _nearest(lines, max(found) + 1, 1)
            if before is not None and after is not None and _goes_over(lines[before], lines[after]):
                blank.update(range(before + 1, after))
    left = [line for place, line in enumerate(kept) if place not in out and place not in blank]
    if not any(line.strip() for _, line in left):  # without these lines, the text would be empty
        return kept, 0
    return left, len(out)


def _is_head(line: str, repeated: int, breaks: int) -> bool:
    """Return whether a line at the edge of a page is a head or foot.

    At least `_MIN_PAGES` pages must repeat the line. In addition, either half of the pages must repeat it, or the line
    must have columns. `repeated` is the number of page breaks at which a line of the same shape is (`_shape`), and
    `breaks` the number of all page breaks.
    """
    return repeated >= max(_MIN_PAGES, breaks // 2) or (
        repeated >= _MIN_PAGES and _COLUMNS.search(line.strip()) is not None
    )


def _nearest(lines: Sequence[str], start: int, step: int) -> int | None:
    """Return the position of the first line that is not blank, from `start` on, in the direction `step` (1 or -1).

    None if there is no such line within `_MOST_BLANK` lines.
    """
    places = range(start, max(-1, start - _MOST_BLANK) if step < 0 else min(len(lines), start + _MOST_BLANK), step)
    return next((place for place in places if 0 <= place < len(lines) and lines[place].strip()), None)


def _shape(line: str) -> str:
    """Return a line with ``#`` in place of its page number, which is its first or its last word."""
    return _PAGE_NUMBER.sub("#", " ".join(line.split()))


def _goes_over(before: str, after: str) -> bool:
    """Return whether a paragraph continues from the last line of a page to the first line of the next page."""
    return (
        _SENTENCE_END.search(before.rstrip()) is None
        and after.strip()[:1].islower()
        and _indent(before) == _indent(after)
    )


def _manual_heads(lines: Sequence[str]) -> set[int]:
    """Return the positions of heads and feet of a manual page. The first head names the page."""
    first = _nearest(lines, 0, 1)
    named = _MANUAL_HEAD.match(lines[first]) if first is not None else None
    if named is None:
        return set()
    ends = re.compile(r"\S.* {3,}" + re.escape(named[1]) + r"\Z")
    return {place for place, line in enumerate(lines) if ends.match(line.strip())}


def _between_mode_marks(line: str) -> str:
    """Return the text between the first and the last ``-*-`` of a line, where editors write their modes."""
    first, last = line.find("-*-"), line.rfind("-*-")
    return line[first + 3 : last] if 0 <= first < last else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_manual_heading(lines: Sequence[str]) -> bool:
    """Return whether the first of `lines` is a heading in the output of man(1).

    Such a heading is in capitals at the margin, and the line below it is indented.
    """
    line = lines[0].rstrip()
    return (
        line[:1].isupper() and line.upper() == line and len(line) < 40 and line[-1:].isalpha() and _indent(lines[1]) > 3
    )


def _is_underlined(lines: Sequence[str], place: int) -> bool:
    if place + 1 >= len(lines):
        return False
    line, below = lines[place].strip(), lines[place + 1].strip()
    if not line or _RULE.match(line) or not _UNDERLINE.match(below) or len(line) > _MAX_HEADING:
        return False
    return len(below) * 10 >= len(line) * 6 and len(below) <= max(len(line) * 2, len(line) + 12)


def _is_item_of(lines: Sequence[str], place: int) -> bool:
    """Return whether the line at `place`, inside a block of lines, starts a list.

    The line must have a clear item mark. The line above it must end with a colon or, before a bullet, with the end of a
    sentence.
    """
    found = _ITEM.match(lines[place])
    if found is None or found[2] == "o" or (found[2][-1] in ".)" and found[2].strip("(.)") not in ("1", "a", "i")):
        return False
    return lines[place - 1].rstrip().endswith(":") or (
        found[2] in "-*\u2022" and _SENTENCE_END.search(lines[place - 1]) is not None
    )


def _ends_in_hyphen(text: str) -> bool:
    return len(text) > 2 and text[-1] == "-" and text[-2].isalpha()


def _is_prose(texts: Sequence[str]) -> bool:
    """Return whether the texts are prose: more than three words, of which at least 70% are plain words."""
    words = " ".join(texts).split()
    plain = sum(_PROSE_WORD.match(word) is not None for word in words)
    return len(words) > 3 and plain * 10 >= len(words) * 7


def _justified(texts: Sequence[str]) -> bool:
    """Return whether wide spaces come from justified lines: all lines except the last have nearly the same length."""
    lengths = [len(text) for text in texts[:-1]]
    return bool(lengths) and max(lengths) - min(lengths) <= 2 and min(lengths) > _SHORT
