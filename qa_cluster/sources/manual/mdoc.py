"""Reads manual pages with the macros of mdoc(7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..extracted import TextBuilder, clean
from .blocks import Blocks, joined
from .lines import JOIN, Line, unescaped
from .tables import outside_tables

_CLOSING = frozenset([".", ",", ":", ";", ")", "]", "?", "!"])
_OPENING = frozenset(["(", "["])
_QUOTES = {
    "Op": "[]", "Oo": "[]", "Dq": '""', "Do": '""', "Qq": '""', "Qo": '""', "Sq": "''", "So": "''", "Ql": "''",
    "Pq": "()",
    "Po": "()", "Bq": "[]", "Bo": "[]", "Aq": "<>", "Ao": "<>", "Brq": "{}", "Bro": "{}",
}  # fmt: skip
_OPENS = {name: pair[0] for name, pair in _QUOTES.items() if name[-1] == "o"}
_CLOSES = {"Oc": "]", "Dc": '"', "Qc": '"', "Sc": "'", "Pc": ")", "Bc": "]", "Ac": ">", "Brc": "}", "Xc": "", "Ec": ""}
# Macros whose words stay unchanged.
_PLAIN = frozenset(
    re.findall(
        r"\S+",
        "Ar Cm Ic Pa Em Sy Li Ev Dv Er Va Vt Fa Ft No An Ad Cd Tn Ms Sx Lb Nm Nd In Fn Fo St Xo Eo Tg Dl D1 Lk Mt "
        "Xr Fl Rv Ex At Bx Bsx Fx Nx Ox Dx Ux Os Bt Ud Fr Hf Ot Me %A %B %C %D %I %J %N %O %P %Q %R %T %U %V",
    )
)
_SYSTEMS = {
    "Bx": "BSD", "Bsx": "BSD/OS", "Fx": "FreeBSD", "Nx": "NetBSD", "Ox": "OpenBSD", "Dx": "DragonFly",
    "At": "AT&T UNIX",
    "Ux": "UNIX", "Bt": "is currently in beta test.", "Ud": "currently under development.",
}  # fmt: skip
_CALLABLE = _PLAIN | _QUOTES.keys() | _CLOSES.keys() | {"Ns", "Pf", "Ap", "Ta"}
_SILENT = frozenset(
    re.findall(
        r"\S+",
        "Dd Os Sm Bk Ek Tg Fd Bf Ef Rs Db Hf Es En fam ft in ll ne ad hy nh na ps ta so nr lf mso",
    )
)


@dataclass
class _List:
    kind: str
    number: int = 0


class MdocReader:
    """Writes the blocks of a page with mdoc macros."""

    def __init__(self, builder: TextBuilder) -> None:
        self._builder = builder
        self._blocks = Blocks(builder)
        self._lists: list[_List] = []
        self._name = self._command = self._section = self._description = ""
        self._function: list[str] | None = None  # from .Fo to .Fc: its name and its arguments
        self._head: list[str] | None = None  # the term of a list item that continues up to .Xc
        self._is_synopsis = False
        self._spaced = True
        self._handlers = {
            "Bl": self._begin_list, "It": self._begin_item, "El": self._end_list,
            "Fo": self._begin_function, "Fc": self._end_function,
        }  # fmt: skip

    def read(self, lines: Sequence[Line]) -> str:
        """Write the page and return its title."""
        for line in outside_tables(lines, self._blocks, self._builder):
            if line.macro:
                self._macro(line)
            else:
                self._text(line)
        self._blocks.flush()
        title = f"{self._name}({self._section})" if self._section else self._name
        return f"{title} - {self._description}" if self._description else title

    def _text(self, line: Line) -> None:
        if not line.text.strip() and not self._blocks.is_literal:
            self._blocks.line_break()
        else:
            self._write(unescaped(line.text), line.number)

    def _write(self, text: str, at: int) -> None:
        if not self._spaced:
            text = JOIN + text + JOIN
        if self._head is not None:
            self._head.append(text)
        elif self._function is not None:
            self._function.append(text)
        elif text or self._blocks.is_literal:
            self._blocks.add(text, at)

    def _macro(self, line: Line) -> None:
        name, words = line.macro, [unescaped(word) for word in line.arguments]
        if name == "Dt":
            self._name = words[0].lower() if words and words[0].isupper() else " ".join(words[:1])
            self._section = words[1] if len(words) > 1 else ""
        elif name in ("Sh", "Ss"):
            self._begin_section(1 if name == "Sh" else 2, line, words)
        elif name in ("Pp", "Lp"):
            self._paragraph()
        elif name in self._handlers:
            self._handlers[name](line, words)
        elif name in ("Bd", "Ed", "nf", "fi"):
            self._display(name, words)
        elif name in ("Dl", "D1"):
            self._one_line_display(line)
        elif name == "Sm":
            self._spaced = words[:1] != ["off"]
        elif name in ("br", "sp"):
            self._blocks.line_break()
        elif name == "Nd":
            self._description = self._description or clean(" ".join(words))
            self._write(f"- {' '.join(words)}", line.number)
        elif name == "Xc":
            self._end_head(words, line.number)
        elif name == "Nm" and self._is_synopsis:
            self._blocks.flush()
            self._write(self._inline([name, *words]), line.number)
        elif name not in _SILENT and (name in _CALLABLE or len(name) > 1):
            self._write(self._inline([name, *words]), line.number)

    def _begin_section(self, level: int, line: Line, words: list[str]) -> None:
        self._lists.clear()
        self._blocks.literal(False)
        self._blocks.close()
        text = joined([self._inline(words)])
        self._is_synopsis = text.upper() == "SYNOPSIS"
        self._builder.heading(level, text, line.number)

    def _paragraph(self) -> None:
        self._blocks.flush()
        if not self._lists:
            self._builder.end_entries(0)

    def _begin_list(self, line: Line, words: list[str]) -> None:
        self._blocks.flush()
        self._lists.append(_List(next((word[1:] for word in words if word[1:] in _LISTS), "item")))
        self._blocks.indent(1)

    def _end_list(self, line: Line, words: list[str]) -> None:
        self._blocks.flush()
        if self._lists:
            self._lists.pop()
            self._blocks.indent(-1)

    def _begin_item(self, line: Line, words: list[str]) -> None:
        kind = self._lists[-1] if self._lists else _List("tag")
        kind.number += 1
        if kind.kind in ("tag", "hang", "ohang", "inset", "diag"):
            self._blocks.begin_tag()
            if words[-1:] == ["Xo"] or words[:1] == ["Xo"]:
                self._head = [self._inline([word for word in words if word != "Xo"])]
            else:
                self._blocks.tag(self._inline(words), line.number)
        elif kind.kind == "column":
            self._blocks.flush()
            self._blocks.add(
                ", ".join(filter(None, map(clean, joined([self._inline(words)]).split("\t")))), line.number
            )
        else:
            self._blocks.flush()
            if kind.kind != "item":
                self._blocks.tag(f"{kind.number}." if kind.kind == "enum" else "-", line.number)
            if words:
                self._write(self._inline(words), line.number)

    def _end_head(self, words: list[str], at: int) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._blocks.tag(joined([*head, self._inline(words)]), at)

    def _begin_function(self, line: Line, words: list[str]) -> None:
        self._function = words[:1] or [""]

    def _end_function(self, line: Line, words: list[str]) -> None:
        function, self._function = self._function, None
        if function is not None:
            self._write(f"{_sentence('Fn', function)}{''.join(words)}", line.number)

    def _display(self, name: str, words: list[str]) -> None:
        self._blocks.flush()
        is_unfilled = any(word in ("-literal", "-unfilled") for word in words)
        self._blocks.literal(name == "nf" or (name == "Bd" and is_unfilled))

    def _one_line_display(self, line: Line) -> None:
        self._blocks.flush()
        self._builder.code(joined([self._inline([unescaped(word) for word in line.arguments])]), line.number)

    def _inline(self, words: Sequence[str]) -> str:
        """Return the text of words that may contain macros.

        A macro for quotation marks or brackets encloses the rest of the line, without the punctuation at its end.
        """
        pieces: list[str] = []
        closing: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word not in _CALLABLE:
                pieces.append(_delimited(word))
                continue
            count = at
            while count < len(words) and words[count] not in _CALLABLE:
                count += 1
            own = list(words[at:count])
            if word in _QUOTES and word not in _OPENS:
                pieces.append(_QUOTES[word][0] + JOIN)
                closing.append(JOIN + _QUOTES[word][1])
                continue
            at = count
            pieces += self._expanded(word, own)
        tail: list[str] = []
        while closing and pieces and pieces[-1].startswith(JOIN) and pieces[-1][1:] in _CLOSING:
            tail.insert(0, pieces.pop())
        return " ".join([*pieces, *reversed(closing), *tail])

    def _expanded(self, macro: str, own: list[str]) -> list[str]:
        marks = [_delimited(word) for word in own]
        if macro in _OPENS:
            return [_OPENS[macro] + JOIN, *marks]
        if macro in _CLOSES:
            return [JOIN + _CLOSES[macro], *marks] if _CLOSES[macro] else marks
        if macro in _BETWEEN:
            return [_BETWEEN[macro], *marks]
        if macro == "Pf":
            return [own[0] + JOIN, *marks[1:]] if own else []
        first = next((place for place, word in enumerate(own) if word not in _CLOSING | _OPENING), None)
        return self._alone(macro, marks) if first is None else self._of_words(macro, first, own, marks)

    def _alone(self, macro: str, marks: list[str]) -> list[str]:
        """Return the pieces of text that a macro writes if it has no words except punctuation.

        `marks` is the punctuation (`_delimited`).
        """
        if macro == "Nm":
            return [self._command or self._name, *marks]
        name = {"Fl": "-" if marks else "-" + JOIN, "Ar": "file ...", "Ex": _EXITS.format(self._command or self._name)}
        return [name[macro], *marks] if macro in name else [_SYSTEMS.get(macro, ""), *marks]

    def _of_words(self, macro: str, first: int, own: list[str], marks: list[str]) -> list[str]:
        """Return the pieces of text that a macro writes for its words.

        Args:
            macro: the name of the macro.
            first: the position in `own`, counted from 0, of the first word that is not punctuation.
            own: the words of the macro.
            marks: the same words, with marks that join punctuation to its neighbours (`_delimited`).
        """
        after = first + 1
        end = max(place for place, word in enumerate(own) if word not in _CLOSING) + 1  # punctuation follows
        if macro == "Nm":
            self._command = self._command or own[first]
        elif macro == "Fl":
            return [word if word[0] == JOIN or word == "|" else f"-{word}" for word in marks]
        elif macro == "Xr" and len(own) > after and own[after] not in _CLOSING:
            return [*marks[:after], f"{JOIN}({own[after]})", *marks[after + 1 :]]
        elif written := _sentence(macro, own[first:end]):
            return [*marks[:first], written, *marks[end:]]
        elif macro in _SYSTEMS:
            return [_SYSTEMS[macro], *marks]
        return marks


_EXITS = "The {} utility exits 0 on success, and >0 if an error occurs."
_BETWEEN = {"Ns": JOIN, "Ap": JOIN + "'" + JOIN, "Ta": "\t"}
_WRITTEN = {
    "In": "<{}> {}",
    "Bx": "{}BSD {}",
    "Lk": "{1} <{0}>",
    "Ex": "The utility exits 0 on success, and >0 if an error occurs.",
}
_LISTS = frozenset(["bullet", "dash", "hyphen", "enum", "item", "tag", "hang", "ohang", "inset", "diag", "column"])


_STANDARDS = {
    "ansiC": 'ANSI X3.159-1989 ("ANSI C89")', "isoC": 'ISO/IEC 9899:1990 ("ISO C90")',
    "isoC-99": 'ISO/IEC 9899:1999 ("ISO C99")', "isoC-2011": 'ISO/IEC 9899:2011 ("ISO C11")',
    "susv2": 'Version 2 of the Single UNIX Specification ("SUSv2")',
    "susv3": 'Version 3 of the Single UNIX Specification ("SUSv3")',
    "susv4": 'Version 4 of the Single UNIX Specification ("SUSv4")',
}  # fmt: skip


def _sentence(macro: str, words: Sequence[str]) -> str:
    """Return the text that replaces the words of a macro, for example ``name(a, b)`` for ``Fn``.

    `words` are given without the surrounding punctuation. The result is empty if no text replaces the words: the caller
    then keeps the words.
    """
    first, rest = words[0], words[1:]
    if macro == "Fn":
        return f"{first}({', '.join(rest)})"
    if macro == "St":
        name = first.removeprefix("-")
        return f'IEEE Std {name[1:]} ("POSIX.1")' if name.startswith("p1003.1") else _STANDARDS.get(name, name)
    if macro == "Rv":
        return _returns([word for word in words if word != "-std"])
    return _WRITTEN[macro].format(first, " ".join(rest)).strip() if macro in _WRITTEN else ""


def _returns(functions: Sequence[str]) -> str:
    """Return the sentence of the macro Rv, which says what functions return. `functions` are their names."""
    names = [f"{function}()" for function in functions]
    who = f"The {', '.join(names)} function{'s' if len(names) > 1 else ''} return{'' if len(names) > 1 else 's'}"
    begun = f"{who} the value 0 if successful" if names else "Upon successful completion, the value 0 is returned"
    return f"{begun}; otherwise the value -1 is returned and the global variable errno is set to indicate the error."


def _delimited(word: str) -> str:
    if word in _CLOSING:
        return JOIN + word
    return word + JOIN if word in _OPENING else word
