"""Reads Markdown: CommonMark with tables, and the text in MyST's and MkDocs' extensions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lxml import etree
from markdown_it import MarkdownIt
from markdown_it.token import Token

from .extracted import Extracted
from .html import write
from .html_content import content_of
from .roles import words_of_role

_FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_ROLE = re.compile(r"\{([a-z][\w:+.-]*)\}(`+)([^`\n](?:.*?[^`])??)\2(?!`)", re.DOTALL)
_LABEL = re.compile(r"(?:\([\w.-]+\)=|%.*|\[TOC\]|\[\[_?TOC_?\]\])[ \t]*$")
_COLON_FENCE = re.compile(r"^[ \t]*:{3,}[ \t]*(?:\{([\w:+-]+)\}[ \t]*(.*))?$")
_ADMONITION = re.compile(r"^([ \t]*)(?:!!!|\?\?\?\+?)[ \t]+([\w-]+)[^\"\n]*(?:\"([^\"\n]*)\")?[ \t]*$")
_OPTION = re.compile(r"^[ \t]*:[\w-]+:")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$")
_DIRECTIVE = re.compile(r"\{([\w:+-]+)\}[ \t]*(.*)")
_ATTRIBUTES = re.compile(r"(?<![ \t])[ \t]*+\{:?[ \t]*+[#.][^{}\n]*+\}[ \t]*+$")
_CODE = frozenset(
    [
        "code",
        "code-block",
        "sourcecode",
        "code-cell",
        "literalinclude",
        "doctest",
        "testcode",
        "prompt",
        "parsed-literal",
        "math",
    ]
)
_SILENT = frozenset(
    [
        "toctree",
        "contents",
        "index",
        "include",
        "image",
        "eval-rst",
        "raw",
        "automodule",
        "autoclass",
        "autofunction",
        "tableofcontents",
    ]
)
_NAMES = {
    "versionadded": "New in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since version",
}
_LABELLED = frozenset(
    re.findall(
        r"\S+",
        "note warning tip hint important caution danger attention error seealso admonition info question success "
        "failure bug example quote abstract versionadded versionchanged deprecated",
    )
)


def read(source: str) -> Extracted:
    """Return the text of a Markdown file; its title is its first heading, or the title in its front matter."""
    title = ""
    front = _FRONT.match(source)
    if front:
        found = _FRONT_TITLE.search(front[1])
        title = found[1] if found else ""
        source = "\n" * front[0].count("\n") + source[front.end() :]
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(_plain(source))
    for token in tokens:
        if token.map and token.nesting >= 0:
            token.attrSet("data-line", str(token.map[0] + 1))
    page = parser.renderer.render(_with_code(_with_definitions(tokens)), parser.options, {})
    html_parser = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(f"<html><body>{page}</body></html>".encode("utf-8", "replace"), html_parser)
    return write(content_of(root), title)


def _with_code(tokens: Sequence[Token]) -> Sequence[Token]:
    """Replace code blocks by a `<pre>` with their line; the usual renderer puts the line on an inner element."""
    for token in tokens:
        if token.type in ("fence", "code_block"):
            from html import escape

            line = token.attrGet("data-line") or "0"
            token.type, token.tag = "html_block", ""
            token.content = f'<pre data-line="{line}">{escape(token.content)}</pre>\n'
    return tokens


def _with_definitions(tokens: Sequence[Token]) -> Sequence[Token]:
    """Make a paragraph that starts with a colon the definition of the previous one, or of its first line."""
    found: list[Token] = []
    for place, token in enumerate(tokens):
        children = token.children or []
        if token.type == "inline" and found and found[-1].type == "paragraph_open" and children:
            after = next((at for at, child in enumerate(children) if at and _is_definition(children, at)), None)
            if _is_definition(children, 0) and len(found) >= 4 and found[-2].type in ("paragraph_close", "html_block"):
                children[0].content = children[0].content.removeprefix(":").lstrip()
                opened = max(
                    (at for at, other in enumerate(found[:-1]) if other.type == "paragraph_open"), default=None
                )
                if opened is not None and found[opened].tag == "p":
                    found[opened].tag = found[-2].tag = "dt"
                    found[-1].tag = tokens[place + 1].tag = "dd"
                elif found[-2].tag == "dd":
                    found[-1].tag = tokens[place + 1].tag = "dd"
            elif after is not None:
                children[after].content = children[after].content.removeprefix(":").lstrip()
                children[after - 1] = Token("html_inline", "", 0, content="</dt><dd>")
                found[-1].tag, tokens[place + 1].tag = "dt", "dd"
        found.append(token)
    return found


def _is_definition(children: Sequence[Token], at: int) -> bool:
    begins = at == 0 or children[at - 1].type == "softbreak"
    return begins and children[at].type == "text" and re.match(r":\s", children[at].content + " ") is not None


def _plain(source: str) -> str:
    """Return the source with roles as their words and directives as their contents, line by line."""
    reader = _PlainLines()
    return "\n".join(reader.plain(line) for line in source.split("\n"))


class _PlainLines:
    """Processes the lines; each becomes one line, so that line numbers stay."""

    def __init__(self) -> None:
        self._fences: list[tuple[str, bool]] = []  # open fences: their mark, and whether they are removed directives
        self._admonition: int | None = None  # its indentation
        self._options = False  # options of a directive may follow

    def plain(self, line: str) -> str:
        """Return the line without extensions of Markdown."""
        if self._admonition is not None:
            if line.strip() and len(line) - len(line.lstrip(" ")) < self._admonition + 4:
                self._admonition = None
            else:
                line = line[: self._admonition] + line[self._admonition + 4 :]
        if self._options and _OPTION.match(line):
            return ""
        self._options = False
        opened = _FENCE.match(line)
        if opened and self._fences and not opened[2].strip() and opened[1].startswith(self._fences[-1][0]):
            return "" if self._fences.pop()[1] else line
        if self._fences and not self._fences[-1][1]:
            return line
        return self._opening(line, opened[1], opened[2]) if opened else self._prose(line)

    def _opening(self, line: str, mark: str, info: str) -> str:
        directive = _DIRECTIVE.match(info.strip())
        is_code = directive is None or directive[1] in _CODE or directive[1] in _SILENT
        self._fences.append((mark, not is_code))
        self._options = directive is not None
        if directive is None:
            return line
        return mark if is_code else _directive(directive[1], directive[2])

    def _prose(self, line: str) -> str:
        colon = _COLON_FENCE.match(line)
        if colon:
            self._options = bool(colon[1])
            return _directive(colon[1], colon[2]) if colon[1] else ""
        noted = _ADMONITION.match(line)
        if noted:
            self._admonition = len(noted[1])
            name = noted[3] if noted[3] is not None else noted[2].capitalize()
            return f"{noted[1]}**{name}:**" if name else ""
        if _LABEL.match(line):
            return ""
        return _ROLE.sub(lambda found: f"`{words_of_role(found[1], found[3])}`", _ATTRIBUTES.sub("", line))


def _directive(name: str, argument: str) -> str:
    """Return the line that replaces a directive's first line: its label or argument."""
    base = name.rpartition(":")[2]
    if base in _NAMES:
        return f"{_NAMES[base]} {argument}:"
    if base in _LABELLED:
        own = argument if base == "admonition" else ""
        label = "See also" if base == "seealso" else own or base.capitalize()
        return f"**{label}:**" + (f" {argument}" if argument and label != argument else "")
    return f"**{argument}**" if argument and base not in _SILENT else ""
