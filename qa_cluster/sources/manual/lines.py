"""Parses roff: lines, strings, registers, conditions, a page's own macros, and the escapes in a text.

The result is a sequence of `Line`s: text, or a macro of man or mdoc with its arguments. The parser supports the part of
roff that manual pages use. It executes no programs and reads no other file. A page whose expansion does not end is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from qa_cluster.errors import InvalidInput

# Marks that two pieces of text are joined without a space.
JOIN = "\x01"

MAX_LINES = 400_000
MAX_DEPTH = 20
MAX_STRING = 4096

_NAME = r"(?:\((..)|\[([^\]\n]*)\]|(.))"
_STRING = re.compile(r"\\\*" + _NAME, re.DOTALL)
_REGISTER = re.compile(r"\\n[+-]?" + _NAME, re.DOTALL)
_ARGUMENT = re.compile(r"\\\$(?:\((\d\d)|\[(\d+)\]|([0-9*@]))")
_COMMENT = re.compile(r'(?<!\\)((?:\\\\)*)\\["#].*')
_REQUEST = re.compile(r"[.'][ \t]*([^\s\\]*)(?:\\(?=\s|$))?[ \t]*(.*)", re.DOTALL)
_INTEGER = re.compile(r"[-+]?\d+")
_COMPARISON = re.compile(r"\(?\s*([-+]?\d+)[a-z]?\s*(>=|<=|==|=|>|<)\s*([-+]?\d+)[a-z]?\s*\)?")
_CONDITION = re.compile(r"\s*(!?)\s*(?:([ntoev])(?![\w(])|([dr])\s*(\S+)|(.))", re.DOTALL)

# A page's own definitions of these macros are ignored, because they change only the typesetting.
KNOWN = frozenset(
    re.findall(
        r"\S+",
        "TH SH SS PP LP P TP TQ IP HP RS RE B I BR IR RB RI BI IB SM SB UR UE MT ME OP SY YS EX EE Sp Vb Ve IX TS "
        "TE Dd Dt Os Sh Ss Nm Nd Pp Bl It El Bd Ed Fl Ar Op Cm Ic Xr Pa Em Sy Ql Dq Sq Qq Pq",
    )
)

_STRINGS = {"R": "\u00ae", "S": "", "Tm": "\u2122", "lq": "\u201c", "rq": "\u201d", "Aq": "'", "Ba": "|", "HF": ""}

CHARACTERS = {
    "aq": "'", "cq": "'", "oq": "'", "dq": '"', "lq": '"', "rq": '"', "Fo": "\u00ab", "Fc": "\u00bb", "fo": "\u2039",
    "fc": "\u203a", "bq": ",", "Bq": "\u201e", "em": " \u2014 ", "en": "\u2013", "hy": "-", "mi": "-", "-": "-",
    "bu": "\u2022", "ci": "\u25cb", "sq": "\u25a1", "co": "\u00a9", "rg": "\u00ae", "tm": "\u2122", "de": "\u00b0",
    "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "aa": "\u00b4", "ul": "_", "ru": "_", "ba": "|", "or": "|", "bv": "|",
    "sl": "/", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "<", "ra": ">", "at": "@", "sh": "#", "Do": "$",
    "<-": "\u2190", "->": "\u2192", "<>": "\u2194", "ua": "\u2191", "da": "\u2193", "uA": "\u21d1", "dA": "\u21d3",
    "lA": "\u21d0", "rA": "\u21d2", "mu": "\u00d7", "di": "\u00f7", "+-": "\u00b1", "<=": "\u2264", ">=": "\u2265",
    "!=": "\u2260", "==": "\u2261", "~~": "\u2248", "if": "\u221e", "pl": "+", "eq": "=", "**": "*", "sc": "\u00a7",
    "ps": "\u00b6", "dg": "\u2020", "dd": "\u2021", "12": "\u00bd", "14": "\u00bc", "34": "\u00be", "ff": "ff",
    "fi": "fi", "fl": "fl", "Fi": "ffi", "Fl": "ffl", "ss": "\u00df", "ae": "\u00e6", "AE": "\u00c6", "oe": "\u0153",
    "o/": "\u00f8", "O/": "\u00d8", "oA": "\u00c5", "oa": "\u00e5", "*a": "\u03b1", "*b": "\u03b2", "*m": "\u03bc",
    "*p": "\u03c0", "*W": "\u03a9", "mc": "\u00b5", "Eu": "\u20ac", "eu": "\u20ac", "Po": "\u00a3", "Ye": "\u00a5",
    "ct": "\u00a2", "u00A0": " ", "no": "\u00ac", "md": "\u00b7", "pc": "\u00b7", "dA ": "", "br": "|", "Bx": "BSD",
}  # fmt: skip
_ACCENTS = {"'": "\u0301", "`": "\u0300", ":": "\u0308", "^": "\u0302", "~": "\u0303", ",": "\u0327", "o": "\u030a"}

_SINGLE = {
    "-": "-", "&": "", ")": "", "%": "", ":": "", "|": "", "^": "", "/": "", ",": "", "{": "", "}": "", "a": "",
    "t": "\t",
    "e": "\\", "\\": "\\", "E": "\\", " ": "\u00a0", "~": "\u00a0", "0": "\u00a0", "'": "'", "`": "`", ".": ".",
    "_": "_",
    "c": JOIN, "p": "", "u": "", "d": "", "r": "", "!": "", "?": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page after expansion: a macro with its arguments, or text if `macro` is empty.

    `number` is the number of the line in the source, counted from 1. For a macro, `text` has all its arguments as one
    text. Escapes are not resolved yet (`unescaped`).
    """

    number: int
    macro: str
    arguments: tuple[str, ...] = ()
    text: str = ""


class Page:
    """Expands one page: its strings, registers, conditions and own macros."""

    def __init__(self, source: str) -> None:
        self._lines = list(_joined(source))
        self._strings = dict(_STRINGS)
        self._registers = {".g": 1, ".$": 0}
        self._macros: dict[str, list[str]] = {}
        self._taken: list[bool] = []
        self._left = MAX_LINES

    def lines(self) -> Iterator[Line]:
        """Yield the expanded lines in order: text, or a macro of man or mdoc with its arguments."""
        return self._run(self._lines, 0)

    def _run(self, lines: list[tuple[int, str]], depth: int) -> Iterator[Line]:
        at = 0
        while at < len(lines):
            self._left -= 1
            if self._left < 0:
                raise InvalidInput(f"its macros expand to more than {MAX_LINES} lines")
            number, line = lines[at]
            at += 1
            name, rest = _request(line)
            if name in ("de", "de1", "am", "am1", "ig"):
                at = self._define(name, rest, lines, at)
            elif name in ("if", "ie", "el", "while"):
                taken, body = self._condition(name, rest)
                opens = body.startswith("\\{")
                if opens and not taken:
                    at = _skip_block(body, lines, at)
                elif taken:
                    lines.insert(at, (number, body[2:].lstrip() if opens else body))
            elif name is not None:
                yield from self._macro(number, name, rest, depth)
            elif line != "\x00":
                yield Line(number, "", (), self._expanded(_without_braces(line)))

    def _define(self, request: str, rest: str, lines: list[tuple[int, str]], at: int) -> int:
        words = rest.split()
        end = words[1 if request != "ig" else 0] if len(words) > (request != "ig") else "."
        body = []
        while at < len(lines) and re.sub(r"\A[.'][ \t]*", "", lines[at][1], count=1).rstrip() != end:
            body.append(lines[at][1].replace("\\\\", "\\"))
            at += 1
        if words and request != "ig":
            self._macros[words[0]] = (self._macros.get(words[0], []) if request.startswith("am") else []) + body
        return at + 1

    def _condition(self, name: str, rest: str) -> tuple[bool, str]:
        """Return whether the condition of a request is true, and the text after the condition.

        `name` is the name of the request: ``if``, ``ie``, ``el`` or ``while``. `rest` is the text after the name. A
        ``while`` loop is never executed, so its condition is always false.
        """
        if name == "while":
            return False, rest.lstrip()
        if name == "el":
            return (not self._taken.pop()) if self._taken else False, rest.lstrip()
        taken = self._evaluate(self._expanded(rest.split("\\{", 1)[0]))
        if name == "ie":
            self._taken.append(taken)
        return taken, self._after_condition(rest)

    def _after_condition(self, rest: str) -> str:
        """Return the unexpanded text that follows the condition at the start of `rest`; empty if no text follows."""
        match = _CONDITION.match(rest)
        if match is None:
            return ""
        if match[2] or match[3]:
            return rest[match.end() :].lstrip()
        begin = match.start(5)
        if rest[begin] in "'\"" or (not rest[begin].isalnum() and rest[begin] not in "(\\-+"):
            parts = rest[begin + 1 :].split(rest[begin], 2)
            return parts[2].lstrip() if len(parts) == 3 else ""
        depth = 0
        for place in range(begin, len(rest)):
            depth += {"(": 1, ")": -1}.get(rest[place], 0) if rest[place - 1 : place] not in ("n", "*") else 0
            if (rest[place] in " \t" and depth <= 0) or rest.startswith("\\{", place):
                return rest[place:].lstrip()
        return ""

    def _evaluate(self, condition: str) -> bool:
        match = _CONDITION.match(condition)
        if match is None:
            return False
        negated, letter, kind, defined, other = match.groups()
        if letter:
            value = letter in "neo"
        elif kind:
            known = self._registers if kind == "r" else {**self._strings, **self._macros}
            value = defined in known
        elif other in "'\"" or not (other.isalnum() or other in "(-+"):
            parts = condition[match.start(5) + 1 :].split(other, 2)
            value = len(parts) == 3 and parts[0] == parts[1]
        else:
            value = _number(condition[match.start(5) :].strip())
        return value != bool(negated)

    def _macro(self, number: int, name: str, rest: str, depth: int) -> Iterator[Line]:
        if name in ("ds", "ds1", "as", "as1"):
            self._set_string(rest, append=name.startswith("as"))
        elif name == "nr":
            self._set_register(rest)
        elif name in ("rn", "als"):
            self._rename(rest.split(), keep=name == "als")
        elif name in ("rm", "rr"):
            for each in rest.split():
                self._macros.pop(each, None)
        elif name in self._macros and name not in KNOWN:
            if depth < MAX_DEPTH:
                arguments = split_arguments(self._expanded(rest))
                body = [(number, _with_arguments(line, arguments)) for line in self._macros[name]]
                self._registers[".$"] = len(arguments)
                yield from self._run(body, depth + 1)
        elif name == "do":
            yield from self._run([(number, f".{rest}")], depth + 1) if depth < MAX_DEPTH else ()
        elif name:
            yield Line(
                number, name, tuple(split_arguments(self._expanded(_without_braces(rest)))), self._expanded(rest)
            )

    def _set_string(self, rest: str, *, append: bool) -> None:
        name, _, value = rest.partition(" ")
        value = value.lstrip().removeprefix('"')
        self._strings[name] = ((self._strings.get(name, "") if append else "") + value)[:MAX_STRING]

    def _set_register(self, rest: str) -> None:
        name, _, value = rest.strip().partition(" ")
        found = _INTEGER.match(self._expanded(value).strip())
        self._registers[name] = int(found[0][:9]) if found else 0

    def _rename(self, names: list[str], *, keep: bool) -> None:
        if len(names) == 2:
            old, new = (names[1], names[0]) if keep else (names[0], names[1])
            if old in self._macros:
                self._macros[new] = self._macros[old] if keep else self._macros.pop(old)

    def _expanded(self, text: str) -> str:
        """Return a text with its strings and registers expanded. Other escapes are unchanged."""
        for _ in range(MAX_DEPTH):
            if "\\*" not in text and "\\n" not in text:
                break
            text = _REGISTER.sub(lambda match: str(self._registers.get(_name(match), 0)), text)
            text = _STRING.sub(lambda match: self._strings.get(_name(match), ""), text)[: MAX_STRING * 16]
        return text


def _name(match: re.Match[str]) -> str:
    found = next((group for group in match.groups() if group is not None), "")
    return found.split(" ")[0] if match[2] is not None else found


def _joined(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, each with the number of its first line in the source.

    A line that ends with a backslash continues in the next line, so both are yielded as one line.
    """
    held, first = "", 0
    for number, raw in enumerate(source.split("\n"), 1):
        line = _COMMENT.sub(r"\1", raw)
        if line != raw and not line.strip(" \t.'"):
            continue
        trimmed = line.rstrip("\r")
        first = first or number
        if (len(trimmed) - len(trimmed.rstrip("\\"))) % 2 and not trimmed.endswith("\\{\\"):
            held += trimmed[:-1]
            continue
        yield first, held + (trimmed[:-1] if trimmed.endswith("\\{\\") else trimmed)
        held, first = "", 0
    if held:
        yield first, held


def _request(line: str) -> tuple[str | None, str]:
    if not line.startswith((".", "'")):
        return None, ""
    match = _REQUEST.match(line)
    if match is None:
        return "", ""
    name, rest = match.groups()
    for known in ("ie", "if", "el"):  # `.if\n(.g` and `.el\{` have no space
        if line[1:].lstrip().startswith((known + "\\", known + "!", known + "'")):
            return known, line[1:].lstrip()[2:]
    return name.replace("\\}", ""), rest


def _skip_block(body: str, lines: list[tuple[int, str]], at: int) -> int:
    depth = body.count("\\{") - body.count("\\}")
    while depth > 0 and at < len(lines):
        depth += lines[at][1].count("\\{") - lines[at][1].count("\\}")
        at += 1
    return at


def _without_braces(line: str) -> str:
    return line.replace("\\}", "").replace("\\{", "") if "\\}" in line or "\\{" in line else line


def _number(text: str) -> bool:
    compared = _COMPARISON.match(text)
    if compared:
        left, right = int(compared[1][:9]), int(compared[3][:9])
        return {">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right}.get(
            compared[2], left == right
        )
    found = _INTEGER.match(text)
    return found is not None and int(found[0][:9]) > 0


def _with_arguments(line: str, arguments: list[str]) -> str:
    def argument(match: re.Match[str]) -> str:
        wanted = match[1] or match[2] or match[3]
        if wanted in ("*", "@"):
            return " ".join(arguments)
        return arguments[int(wanted) - 1] if 0 < int(wanted) <= len(arguments) else ""

    return _ARGUMENT.sub(argument, line)


def split_arguments(text: str) -> list[str]:
    """Split the arguments of a macro: words, or texts in double quotes. Two double quotes inside a text mean one.

    >>> split_arguments('-f "a ""b"" c" d\\\\ e')
    ['-f', 'a "b" c', 'd\\\\ e']
    """
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        quoted = text[at] == '"'
        at += quoted
        word: list[str] = []
        while at < len(text):
            if text[at] == "\\" and at + 1 < len(text):
                word.append(text[at : at + 2])
                at += 2
            elif quoted and text.startswith('""', at):
                word.append('"')
                at += 2
            elif (quoted and text[at] == '"') or (not quoted and text[at] in " \t"):
                break
            else:
                word.append(text[at])
                at += 1
        at += 1
        found.append("".join(word))
    return found


_ESCAPE = re.compile(
    r"""\\(?:
    (?P<special>\((?P<two>..)|\[(?P<long>[^\]\n]{0,256}+)\]|C'(?P<named>[^']*)')
    |(?P<skip>[fFgkmMnVY*](?:\(..|\[[^\]\n]{0,256}+\]|.)|[sS][-+]?(?:\(\d\d|\[[^\]\n]{0,256}+\]|[1-3]\d(?!\d)|\d|'[^']*')
      |[bDhHlLvwXxAZRB](?P<quote>['"|!]).*?(?P=quote)|[$].)
    |N'(?P<code>\d{1,7})'
    |o'(?P<over>[^']*)'
    |z(?P<zero>.)
    |(?P<single>.)|(?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)


def unescaped(text: str) -> str:
    """Return a text with its escapes resolved.

    >>> unescaped(r"\\fB\\-f\\fR, \\-\\-force\\ \\(aqx\\(aq")
    "-f, --force\\xa0'x'"
    """
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_resolved, text)


def _resolved(match: re.Match[str]) -> str:
    if match["special"]:
        return _character(match["two"] or match["long"] or match["named"] or "")
    if match["code"]:
        return _code_point(int(match["code"]))
    if match["skip"] is not None:
        return ""
    if match["over"] is not None:
        return match["over"][:1]
    if match["zero"] is not None:
        return match["zero"]
    return "" if match["single"] is None else _SINGLE.get(match["single"], match["single"])


def _character(name: str) -> str:
    if name in CHARACTERS:
        return CHARACTERS[name]
    if len(name) == 2 and name[0] in _ACCENTS and name[1].isalpha():
        return name[1] + _ACCENTS[name[0]]
    if re.fullmatch(r"u[0-9A-Fa-f]{4,6}(_[0-9A-Fa-f]{4,6})*", name):
        return "".join(_code_point(int(part, 16)) for part in name[1:].split("_"))
    if re.fullmatch(r"char\d{1,7}", name):
        return _code_point(int(name[4:]))
    return name if len(name) == 1 else ""


def _code_point(number: int) -> str:
    return chr(number) if 0x20 <= number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else ""
