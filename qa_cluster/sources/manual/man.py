"""Reads manual pages with the macros of man(7), and passes pages with the macros of mdoc(7) to `mdoc`.

A tag is the term that a paragraph explains, such as an option. A tag with its paragraph (``.TP``, ``.IP``) becomes an
entry ``tag: text``. The tag also becomes a part of the path of the following blocks. So a sentence in the middle of an
option's description has the option's name in its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..extracted import Extracted, NoText, TextBuilder, clean
from .blocks import Blocks
from .lines import JOIN, Line, Page, unescaped
from .mdoc import MdocReader
from .tables import outside_tables

_FONTS = {"B", "I", "SM", "SB", "R", "CW", "C"}
_ALTERNATING = {"BR", "BI", "IB", "IR", "RB", "RI"}
_BREAKS = {"br", "sp", "Sp", "bp", "ce", "ti"}
_SILENT = frozenset(
    re.findall(
        r"\S+",
        "ad na hy nh in ll ne ns rs ps ss ta fam ft PD DT IX AT UC tr eo ec cc c2 lf mso so nop pl po vs wh ch em "
        "ev di da ss cs bd pn pc hc hw tm ab pm warn cflags char fchar hcode hpf kern lg lc tc fl fp rj cu ul it nx "
        "rd sy opena open shift return break continue nr rr TE EQ EN LINKSTYLE nm nn mk rt brp padj ex tl Id",
    )
)
_NAME_LINE = re.compile(r"^(.+?)(?<!\s)\s++(?:-+|\u2013|\u2014)\s++(.+)$")
_NAME_SECTIONS = ("NAME", "BEZEICHNUNG", "NOM", "NOMBRE", "NOME")


def read(source: str, base: str) -> Extracted:
    """Return the text of a manual page. Its title has the form ``gzip(1) - compress or expand files``.

    If the page has no title, the title is `base`, the name of the file without its ending. NoText if the page contains
    no text, or only refers to another page.
    """
    lines = list(Page(source).lines())
    builder = TextBuilder()
    if any(line.macro in ("Dd", "Sh", "Dt") for line in lines[:400]) and not any(line.macro == "SH" for line in lines):
        title = MdocReader(builder).read(lines)
    else:
        title = _ManReader(builder).read(lines)
    found = builder.build(title)
    if not found.text:
        target = next((line.text.strip() for line in lines if line.macro == "so"), "")
        raise NoText(f"a page that only refers to {target!r}" if target else "this manual page contains no text")
    return found if found.title else builder.build(base)


class _ManReader:
    def __init__(self, builder: TextBuilder) -> None:
        self._blocks = Blocks(builder)
        self._builder = builder
        self._name = self._section = self._title = ""
        self._heading = 0  # the level of a heading whose text is in the next line
        self._section_is_name = False
        self._awaits_tag = False
        self._link = ""
        self._handlers: dict[str, Callable[[Line, list[str]], None]] = {
            "TH": self._begin,
            "SH": lambda line, words: self._head(1, line, words),
            "SS": lambda line, words: self._head(2, line, words),
            # some pages define macros with these names
            "Sh": lambda line, words: self._head(1, line, words),
            "Ss": lambda line, words: self._head(2, line, words),
            "TP": self._tag,
            "TQ": self._further_tag,
            "IP": self._indented,
            "HP": lambda line, words: self._blocks.paragraph(),
            "RS": lambda line, words: self._blocks.indent(1),
            "RE": lambda line, words: self._blocks.indent(-1),
            "MR": lambda line, words: self._add(line, _reference(words)),
            "OP": lambda line, words: self._add(line, f"[{' '.join(words)}]"),
            "SY": self._synopsis,
            "YS": lambda line, words: self._blocks.flush(),
            "URL": lambda line, words: self._add(line, " ".join(words[1:2]) + f" ({words[0]})" if words else ""),
        }

    def read(self, lines: list[Line]) -> str:
        for line in outside_tables(lines, self._blocks, self._builder):
            if line.macro:
                self._macro(line)
            else:
                self._text(line)
        self._blocks.flush()
        return self._title or (f"{self._name}({self._section})" if self._name else "")

    def _macro(self, line: Line) -> None:
        name, words = line.macro, [unescaped(word) for word in line.arguments]
        if name in self._handlers:
            self._handlers[name](line, words)
        elif name in ("PP", "LP", "P"):
            self._blocks.paragraph()
        elif name in _FONTS:
            self._add(line, " ".join(words))
        elif name in _ALTERNATING:
            self._add(line, "".join(words))
        elif name in ("nf", "EX", "Vb", "DS"):
            self._blocks.literal(True)
        elif name in ("fi", "EE", "Ve", "DE"):
            self._blocks.literal(False)
        elif name in _BREAKS:
            self._break()
        elif name in ("UR", "MT"):
            self._link = words[0] if words else ""
        elif name in ("UE", "ME"):
            self._end_link(line, words)
        elif name not in _SILENT and len(name) > 1:
            self._add(line, " ".join(words))

    def _text(self, line: Line) -> None:
        if not line.text.strip():
            if self._blocks.is_literal:
                self._blocks.add("", line.number)
            else:
                self._break()
        elif line.text[0] in " \t" and not self._blocks.is_literal and not self._awaits_tag:
            self._break()  # in roff, a line that starts with a space starts a new line of output
            self._add(line, unescaped(line.text))
        else:
            self._add(line, unescaped(line.text))

    def _add(self, line: Line, text: str) -> None:
        if self._heading:
            self._end_heading(text, line.number)
        elif self._awaits_tag:
            self._awaits_tag = False
            self._blocks.tag(text, line.number)
        elif text or self._blocks.is_literal:
            self._blocks.add(text, line.number)
            if self._section_is_name and not self._title:
                self._entitle(self._blocks.pending)

    def _break(self) -> None:
        if self._section_is_name:
            return  # some pages have their names on several lines
        self._blocks.line_break()

    def _begin(self, line: Line, words: list[str]) -> None:
        if not self._name and words:
            self._name = words[0].lower() if words[0].isupper() else words[0]
            self._section = words[1] if len(words) > 1 else ""

    def _head(self, level: int, line: Line, words: list[str]) -> None:
        self._blocks.literal(False)
        self._blocks.close()
        self._awaits_tag = False
        self._heading = level
        if words:
            self._end_heading(" ".join(words), line.number)

    def _end_heading(self, text: str, at: int) -> None:
        level, self._heading = self._heading, 0
        text = clean(text.replace(JOIN, ""))
        self._section_is_name = level == 1 and text.upper() in _NAME_SECTIONS
        self._builder.heading(level, text, at)

    def _entitle(self, text: str) -> None:
        found = _NAME_LINE.match(text)
        if found:
            first = self._name or found[1].split(",")[0]
            self._title = f"{first}({self._section}) - {found[2]}" if self._section else f"{first} - {found[2]}"

    def _tag(self, line: Line, words: list[str]) -> None:
        self._blocks.begin_tag()
        self._awaits_tag = True

    def _further_tag(self, line: Line, words: list[str]) -> None:
        self._blocks.further_tag()
        self._awaits_tag = True

    def _indented(self, line: Line, words: list[str]) -> None:
        if words and words[0].strip():
            self._blocks.begin_tag()
            self._blocks.tag(words[0], line.number)
        else:
            self._blocks.flush()

    def _synopsis(self, line: Line, words: list[str]) -> None:
        self._blocks.paragraph()
        self._add(line, " ".join(words))

    def _end_link(self, line: Line, words: list[str]) -> None:
        link, self._link = self._link, ""
        if link and link not in self._blocks.pending:
            self._add(line, f"<{link}>" if not self._blocks.pending else f"({link})")
        if words:
            self._blocks.add(JOIN + words[0], line.number)


def _reference(words: list[str]) -> str:
    """Return a reference to a manual page, such as ``ls(1)``.

    `words` are the name of the page, its section, and texts that follow without a space.
    """
    return f"{words[0]}({words[1]}){''.join(words[2:])}" if len(words) > 1 else " ".join(words)
