"""Reads plain text by its layout: headings, paragraphs of several lines, lists, code.

Headings are lines that are underlined, boxed, numbered, in capitals, or marked with stars (Emacs' outlines), and the
questions of an FAQ (``Q: ..``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .extracted import Extracted, TextBuilder, clean, clean_characters

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
# A date at the start of a line starts an entry of a history.
_STAMP = re.compile(r"[ \t]*\d{4}[/.-]\d\d?[/.-]\d\d?\b")
_CONTENTS = re.compile(r"[ \t]*(?:\d+\.?[ \t]+)?(?:table of )?contents:?[ \t]*\Z", re.IGNORECASE)
_CONTENTS_LINE = re.compile(
    r"[ \t]*(?:[-*o?\u2022][ \t]+)?"
    r"(?:\(?\d{1,3}(?:\.\d{1,3})*[.)]?|[A-Z]{1,2}\d*(?:\.\d{1,3})*[.)]|[IVX]{1,5}[.)]|Q\S*:)"
    r"[ \t]+\S|(?:.*[^.])?\.{4,}+[ \t]*+\d*+\Z"
)
_MODE = re.compile(r"-\*-.*?-\*-|\$(?:Id|Revision|Date)[^$\n]*\$")
_SENTENCE_END = re.compile(r"[.!?:;,)\"'\u201d]\Z")
_LEVELS = {"entry": 50, "star": 60, "underlined": 70, "capitals": 80, "numbered": 85, "question": 98}
_MAX_HEADING = 100
_SHORT = 50


@dataclass
class _Block:
    """Lines between blank lines, with the number of the first line."""

    at: int
    lines: list[str]


EntryOf = Callable[[str], bool]
# Colours and links of terminals, as ECMA-48 defines them.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)|[@-Z^_])")


def read(source: str, is_entry: EntryOf = lambda line: False) -> Extracted:
    """Return the text of a plain file. A line for which `is_entry` is true is a heading (a version in a changelog)."""
    source = _without_terminal_codes(source).replace("\f", "\n\n")
    lines = clean_characters(source).expandtabs(8).split("\n")
    return read_lines(list(enumerate(lines, 1)), is_entry=is_entry)


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


def read_lines(
    lines: Sequence[tuple[int, str]],
    *,
    unit: str = "line",
    hyphenated: bool = False,
    is_entry: EntryOf = lambda line: False,
) -> Extracted:
    """Return the text of lines, each with its line or page; `hyphenated`: words are divided at the ends of lines."""
    reader = _Reader(TextBuilder(unit), lines, hyphenated, is_entry)
    return reader.read()


class _Reader:
    def __init__(
        self, builder: TextBuilder, lines: Sequence[tuple[int, str]], hyphenated: bool, is_entry: EntryOf
    ) -> None:
        self._builder = builder
        self._blocks = _blocks(lines)
        self._is_entry = is_entry
        self._is_outline = any("outline" in _between_mode_marks(text) for _, text in lines[:3]) or (
            sum(bool(re.match(r"\*\* \S", text)) for _, text in lines) > 2
        )
        words = Counter(word.lower() for _, text in lines for word in re.findall(r"[\w-]+", text))
        self._words = words
        self._hyphenated = hyphenated
        long = Counter(_indent(text) for _, text in lines if len(text.strip()) > _SHORT)
        self._margin = long.most_common(1)[0][0] if long else 0
        self._underlines: list[str] = []
        self._in_contents = False
        self._contents: set[str] = set()

    def read(self) -> Extracted:
        for number, block in enumerate(self._blocks):
            block.lines = [_MODE.sub("", line).rstrip() for line in block.lines]
            block.lines = [line for line in block.lines if line.strip()]
            if block.lines and not self._is_contents(block.lines):
                self._block(block, is_first=number == 0)
        return self._builder.build()

    def _is_contents(self, lines: list[str]) -> bool:
        """Whether a block belongs to a table of contents: it repeats all headings and looks like every question."""
        if _CONTENTS.match(lines[0]):
            self._in_contents = True
            lines = [line for line in lines[1:] if not _RULE.match(line)]
        elif not self._in_contents or clean(lines[0]) in self._contents:
            self._in_contents = False
            return False
        self._contents.update(map(clean, lines))
        if sum(_CONTENTS_LINE.match(line) is not None for line in lines) * 2 < len(lines):
            self._in_contents = False
        return self._in_contents

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
        """Write a heading at the start of the block; return the number of its lines."""
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
        return (len(lines) == 1 or (is_first and _indent(line) > 8)) and self._lone_line(line, text, at, is_first) == 1

    def _lone_line(self, line: str, text: str, at: int, is_first: bool) -> int:
        numbered = _NUMBERED.match(line)
        if (
            numbered
            and not text.endswith((".", ";", ","))
            and len(text) < 80
            and text[numbered.end() - _indent(line) :][:1].isupper()
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
        if (
            text.endswith(":")
            and _indent(line) <= self._margin
            and len(text) < 60
            and not is_first
            and text[:1].isupper()
        ):
            return 0
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
        """Write a block that is not a heading: list, code, definition or paragraph."""
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
            if found and place and (_indent(line) <= margin + 1 or _indent(line) > margin):
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
        """Whether lines stay unchanged: columns, commands and similar lines, or lines that are not filled."""
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
        """Join two lines at a hyphen; the hyphen stays if the document has the word with it elsewhere."""
        head = re.split(r"[^\w-]", text)[-1][:-1]
        tail = re.match(r"[\w-]*", following)
        end = tail[0] if tail else ""
        whole, kept = (head + end).lower(), f"{head}-{end}".lower()
        if "-" not in head and (self._words[whole] or (self._hyphenated and not self._words[kept])):
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


def _between_mode_marks(line: str) -> str:
    """The text between the first and the last ``-*-`` of a line, as editors write their modes there."""
    first, last = line.find("-*-"), line.rfind("-*-")
    return line[first + 3 : last] if 0 <= first < last else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_underlined(lines: Sequence[str], place: int) -> bool:
    if place + 1 >= len(lines):
        return False
    line, below = lines[place].strip(), lines[place + 1].strip()
    if not line or _RULE.match(line) or not _UNDERLINE.match(below) or len(line) > _MAX_HEADING:
        return False
    return len(below) * 10 >= len(line) * 6 and len(below) <= max(len(line) * 2, len(line) + 12)


def _is_item_of(lines: Sequence[str], place: int) -> bool:
    """Whether a list starts at a line in the middle of a block: then the line has a clear mark of an item."""
    found = _ITEM.match(lines[place])
    if found is None or found[2] == "o" or (found[2][-1] in ".)" and found[2].strip("(.)") not in ("1", "a", "i")):
        return False
    return lines[place - 1].rstrip().endswith(":") or (
        found[2] in "-*\u2022" and _SENTENCE_END.search(lines[place - 1]) is not None
    )


def _ends_in_hyphen(text: str) -> bool:
    return len(text) > 2 and text[-1] == "-" and text[-2].isalpha()


def _is_prose(texts: Sequence[str]) -> bool:
    """Whether most words are plain words."""
    words = " ".join(texts).split()
    plain = sum(_PROSE_WORD.match(word) is not None for word in words)
    return len(words) > 3 and plain * 10 >= len(words) * 7


def _justified(texts: Sequence[str]) -> bool:
    """Whether the wide spaces come from justified lines: all lines but the last are equally long."""
    lengths = [len(text) for text in texts[:-1]]
    return bool(lengths) and max(lengths) - min(lengths) <= 2 and min(lengths) > _SHORT
