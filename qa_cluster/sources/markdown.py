"""Reads Markdown. markdown-it converts it to HTML with line numbers, and `html` reads that HTML.

The accepted Markdown is CommonMark with tables, footnotes, definition lists and alerts. Before the conversion, roles,
directives and admonitions of MyST and MkDocs are replaced by the text that they contain.
"""

from __future__ import annotations

import re
from html import escape

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.footnote import footnote_plugin

from .extracted import Extracted, clean
from .front_matter import split_front_matter
from .html import parsed, write
from .html_content import content_of
from .roles import words_of_role

_ROLE = re.compile(r"\{([a-z][\w:+.-]*)\}(`+)([^`\n](?:.*?[^`])??)\2(?!`)", re.DOTALL)
_LABEL = re.compile(r"(?:\([\w.-]+\)=|%.*|\[TOC\]|\[\[_?TOC_?\]\])[ \t]*$")
_COLON_FENCE = re.compile(r"^[ \t]*:{3,}[ \t]*(?:\{([\w:+-]+)\}[ \t]*(.*))?$")
_ADMONITION = re.compile(r"^([ \t]*)(?:!!!|\?\?\?\+?)[ \t]+([\w-]+)[^\"\n]*(?:\"([^\"\n]*)\")?[ \t]*$")
_OPTION = re.compile(r"^[ \t]*:[\w-]+:")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$")
_DIRECTIVE = re.compile(r"\{([\w:+-]+)\}[ \t]*(.*)")
_ATTRIBUTES = re.compile(r"(?<![ \t])[ \t]*+\{:?[ \t]*+[#.][^{}\n]*+\}[ \t]*+$")
_CODE = frozenset(
    re.findall(
        r"\S+", "code code-block sourcecode code-cell literalinclude doctest testcode prompt parsed-literal math"
    )
)
_SILENT = frozenset(
    re.findall(
        r"\S+",
        "toctree contents index include image eval-rst raw automodule autoclass autofunction tableofcontents",
    )
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
    """Return the text of a Markdown file. The title comes from its front matter; without it, from its first heading."""
    metadata, source = split_front_matter(source)
    title = metadata.pop("title", "")
    found = write(content_of(parsed(f"<html><body>{to_html(source)}</body></html>")).element, "")
    return found.named(clean(str(title)), metadata)


def to_html(source: str) -> str:
    """Convert Markdown without front matter to HTML. The elements have the line numbers of the source."""
    parser = MarkdownIt("commonmark", {"alerts": True}).enable(["table", "strikethrough"])
    parser.use(footnote_plugin, inline=False).use(deflist_plugin)
    parser.core.ruler.disable("footnote_tail")  # a footnote stays where it is written
    tokens = [token for token in map(_with_line, parser.parse(_plain(source))) if token is not None]
    return str(parser.renderer.render(tokens, parser.options, {}))


def _with_line(token: Token) -> Token | None:
    """Return the token with its line number as an attribute; None for the tokens around a footnote."""
    if token.type in ("footnote_reference_open", "footnote_reference_close"):
        return None
    line = token.map[0] + 1 if token.map else 0
    if token.type in ("fence", "code_block"):  # their renderer writes the line at the inner element
        content = f'<pre data-line="{line}">{escape(token.content)}</pre>\n'
        return Token("html_block", "", 0, content=content)
    if line and token.nesting >= 0:
        token.attrSet("data-line", str(line))
    if token.children is not None:
        token.children = [child for child in token.children if child.type != "footnote_ref"]
    return token


def _plain(source: str) -> str:
    """Return the source with each role and directive replaced by its text. The number of lines stays the same."""
    reader = _PlainLines()
    return "\n".join(reader.plain(line) for line in source.split("\n"))


class _PlainLines:
    """Replaces extensions of Markdown line by line.

    The number of lines stays the same, so line numbers stay correct.
    """

    def __init__(self) -> None:
        self._fences: list[tuple[str, bool]] = []  # for each open fence: its mark, and whether only its contents stay
        self._admonition: int | None = None  # the indentation of the open admonition
        self._options = False  # options of a directive may follow

    def plain(self, line: str) -> str:
        """Return the next line of the source without extensions of Markdown. Pass all lines in order."""
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
    """Return the line that replaces the first line of a directive: its label, or its argument in bold.

    `argument` is the text after the name of the directive. The result is empty for a directive that has no label, if
    `argument` is empty or the directive is in `_SILENT`.
    """
    base = name.rpartition(":")[2]
    if base in _NAMES:
        return f"{_NAMES[base]} {argument}:"
    if base in _LABELLED:
        own = argument if base == "admonition" else ""
        label = "See also" if base == "seealso" else own or base.capitalize()
        return f"**{label}:**" + (f" {argument}" if argument and label != argument else "")
    return f"**{argument}**" if argument and base not in _SILENT else ""
