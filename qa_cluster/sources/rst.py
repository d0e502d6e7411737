"""Reads reStructuredText. docutils converts it to HTML with line numbers, and `html` reads that HTML.

Before it parses a file, this module registers the roles and directives that docutils does not know. It also replaces
the directives `_OVERRIDDEN`. It does not read a file that the directive `include` names, and it ignores raw HTML.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from docutils import nodes
from docutils.core import publish_parts
from docutils.parsers.rst import Directive, directives, roles
from docutils.readers import standalone
from docutils.transforms import Transform
from docutils.writers import html5_polyglot

from qa_cluster.errors import InputTooLong

from .extracted import Extracted
from .html import parsed, write
from .roles import words_of_role

_ROLE = re.compile(r"(?<![`\w]):([a-zA-Z][\w:+.-]*):`")
_DIRECTIVE = re.compile(r"^[ \t]*\.\. +(?:\|[^|\n]+\| +)?([a-zA-Z][\w:+.-]*)::", re.MULTILINE)
_LABEL = re.compile(
    r"^\.\. _`?([^:`\n]+)`?:[ \t]*\n\s*(?:([=~#*^\"'+-]{3,})\n)?[ \t]*(\S[^\n]*)\n([=~#*^\"'+-]{3,})[ \t]*$", re.M
)
_CODE = frozenset(
    re.findall(
        r"\S+",
        "code-block sourcecode code-cell doctest testcode testoutput testsetup prompt ipython click:example "
        "click:run jinja console highlight-block program-output productionlist graphviz mermaid uml",
    )
)
_SILENT = frozenset(
    re.findall(
        r"\S+",
        "toctree currentmodule py:currentmodule py:module module highlight highlightlang index tabularcolumns "
        "literalinclude include image figure raw autosummary automodule contents sectionauthor codeauthor "
        "moduleauthor default-domain program acks centered hlist role default-role testsetup testcleanup setting "
        "templatetag templatefilter fieldlookup ifconfig only skip meta title date "
        "sphinx_tabs eval-rst describe-nothing",
    )
)
_LABELS = {
    "versionadded": "New in version {}", "versionchanged": "Changed in version {}", "seealso": "See also",
    "deprecated": "Deprecated since version {}", "versionremoved": "Removed in version {}", "todo": "To do",
}  # fmt: skip
_OBJECTS = frozenset(
    re.findall(
        r"\S+",
        "class method function attribute data exception property classmethod staticmethod decorator option envvar "
        "confval describe object macro type member var cmdoption django-admin django-admin-option setting "
        "rst:directive globalvar fixture autoclass autofunction automethod autoexception autodata autoattribute "
        "autodecorator autoproperty",
    )
)
# The options of a directive in `_OBJECTS` whose values Sphinx shows on the page.
_STATED = ("type", "default", "value")
_SETTINGS = {
    "_disable_config": True, "file_insertion_enabled": False, "raw_enabled": False, "report_level": 5, "halt_level": 5,
    "line_length_limit": 10_000_000, "docinfo_xform": False, "syntax_highlight": "none", "warning_stream": False,
    "smart_quotes": False, "traceback": True, "strict_visitor": False, "doctitle_xform": False,
    "input_encoding": "unicode",
    "sectsubtitle_xform": False, "dump_settings": False, "character_level_inline_markup": False,
    "embed_stylesheet": False, "stylesheet_path": "", "math_output": "LaTeX", "initial_header_level": 1,
}  # fmt: skip
_REGISTERED: set[str] = set()
MAX_EXPANDED = 500_000
# For each level of nesting, docutils takes memory and time for all text below it. For the columns of a table, it takes
# quadratic time. No known manual comes near these limits.
MAX_LEVELS = 100
MAX_COLUMNS = 500
_MARKERS = re.compile(r"[ \t]*((?:[-*+\u2022]|\(?[0-9a-zA-Z#]{1,3}[.)])[ \t]+)*+")


def read(source: str) -> Extracted:
    """Return the text of an RST file. Its title is its first heading."""
    _check_shape(source)
    _register(source)
    parts = publish_parts(_resolved_labels(source), reader=_Reader(), writer=_Writer(), settings_overrides=_SETTINGS)
    return write(parsed(f"<html><body>{parts['body']}</body></html>"), "")


def _check_shape(source: str) -> None:
    """Raise InputTooLong if nesting or tables exceed the limits, before docutils parses the file."""
    indents: list[int] = []
    for line in source.splitlines():
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        while indents and indents[-1] >= indent:
            indents.pop()
        indents.append(indent)
        marked = _MARKERS.match(line)
        levels = len(indents) + (len(marked[0].split()) if marked is not None else 0)
        if levels > MAX_LEVELS:
            raise InputTooLong(f"its text is nested in more than {MAX_LEVELS} levels, the limit: convert it to text")
        is_grid, is_simple = text.startswith(("+-", "+=")), not text.strip("= \t")
        columns = text.count("+") - 1 if is_grid else len(text.split()) if is_simple else 0
        if columns > MAX_COLUMNS:
            raise InputTooLong(f"a table has {columns} columns, the limit is {MAX_COLUMNS}: divide the table")


class _ExpansionLimit(Transform):
    """Refuses a document whose substitutions expand to too much text.

    A substitution may contain another substitution twice, so a short file can expand to an exponentially long text.
    """

    default_priority = 210  # before docutils expands substitutions

    def apply(self) -> None:
        """Count the nodes and characters of all substitutions, and raise InputTooLong above the limit."""
        definitions = {name.lower(): node for name, node in self.document.substitution_defs.items()}
        used = [*self.document.findall(nodes.substitution_reference)]
        inside = {name: [*node.findall(nodes.substitution_reference)] for name, node in definitions.items()}
        sizes: dict[str, int] = {}
        opened: list[str] = []

        def size(name: str) -> int:
            if name not in definitions or name in opened:  # docutils reports a circular definition
                return 0
            if name not in sizes:
                opened.append(name)
                own = len(definitions[name].astext()) + len(inside[name]) + 1
                sizes[name] = min(own + sum(size(ref["refname"].lower()) for ref in inside[name]), MAX_EXPANDED + 1)
                opened.pop()
            return sizes[name]

        if sum(size(ref["refname"].lower()) for ref in used) > MAX_EXPANDED:
            raise InputTooLong(f"its substitutions expand to more than {MAX_EXPANDED} characters")


class _WordsOnly(Transform):
    """Removes what is not text of the document: pictures, numbers of footnotes, messages, tables of contents.

    An unknown name, such as ``|version|``, becomes ``version``.
    """

    default_priority = 855  # after docutils has resolved all references, before it removes its messages

    def apply(self) -> None:
        """Replace references that docutils cannot resolve, and remove the nodes that are not text of the document.

        ``|name|`` becomes ``name``, a footnote such as ``[9]_`` becomes nothing, and other references keep their source
        text.
        """
        for unknown in [*self.document.findall(nodes.problematic)]:
            text = re.sub(r"\A\|(.+)\|\Z|\A\[[^\]]*\]_\Z", r"\1", unknown.astext())
            unknown.parent.replace(unknown, nodes.Text(text))
        for node in [*self.document.findall(lambda found: isinstance(found, _NO_TEXT) or _is_contents(found))]:
            if node.parent is not None:
                node.parent.remove(node)


_NO_TEXT = (
    nodes.system_message, nodes.raw, nodes.image, nodes.decoration, nodes.comment, nodes.label,
    nodes.footnote_reference, nodes.citation_reference,
)  # fmt: skip


def _is_contents(node: nodes.Node) -> bool:
    return isinstance(node, nodes.topic) and "contents" in node.get("classes", ())


class _Reader(standalone.Reader):  # type: ignore[type-arg]
    def get_transforms(self) -> list[type[Transform]]:
        """Return the usual transforms and the transforms of this file."""
        return [*super().get_transforms(), _ExpansionLimit, _WordsOnly]


class _Translator(html5_polyglot.HTMLTranslator):
    def starttag(self, node: Any, tagname: str, suffix: str = "\n", empty: bool = False, **attributes: Any) -> str:
        """Return a tag with the line where its node starts."""
        line = _line(node) if isinstance(node, nodes.Element) else 0
        if line:
            attributes["data-line"] = str(line)
        return str(super().starttag(node, tagname, suffix, empty, **attributes))

    def visit_classifier(self, node: nodes.classifier) -> None:
        """Separate a classifier from its term."""
        self.body.append(" : ")
        super().visit_classifier(node)


class _Writer(html5_polyglot.Writer):
    def __init__(self) -> None:
        super().__init__()
        self.translator_class = _Translator


def _register(source: str) -> None:
    for name in {match[1] for match in _ROLE.finditer(source)}:
        key = name.lower()
        if f"role {key}" not in _REGISTERED and key not in _DOCUTILS_ROLES:
            roles.register_local_role(key, _role)  # type: ignore[arg-type]  # its type stubs only allow references
            _REGISTERED.add(f"role {key}")
    for name in {match[1].lower() for match in _DIRECTIVE.finditer(source)}:
        if name not in _REGISTERED and (name in _OVERRIDDEN or name not in _known_directives()):
            directives.register_directive(name, type("_Named", (_Any,), {"named": name}))
            _REGISTERED.add(name)


_DOCUTILS_ROLES = frozenset(
    re.findall(
        r"\S+",
        "abbreviation acronym code emphasis literal math strong subscript sub superscript sup title-reference title t",
    )
)
_OVERRIDDEN = frozenset(
    ("class", "code-block", "sourcecode", "raw", "include", "contents", "image", "figure", "title", "date", "meta")
)


def _known_directives() -> frozenset[str]:
    registry: Any = vars(directives)["_directive_registry"]
    return frozenset(registry)


def _resolved_labels(source: str) -> str:
    """Replace ``:ref:`label``` by the heading below the label, if the label is in the same file."""
    known = {match[1].lower(): match[3].strip() for match in _LABEL.finditer(source)}
    if not known:
        return source

    def title(match: re.Match[str]) -> str:
        found = known.get(match[1].strip().lower())
        return match[0] if found is None or "`" in found else f":ref:`{found} <{match[1]}>`"

    return re.sub(r":ref:`([^`<>]+)`", title, source)


def _role(  # noqa: PLR0917 - the signature that docutils requires
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    words = words_of_role(name, text.replace("\x00", ""))
    return [nodes.inline(rawtext, words)], []


class _AnyOption(dict[str, Any]):
    """Accepts options of any name, with unchanged values."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged


class _Any(Directive):
    """A directive that docutils does not know, or that this module replaces (`_OVERRIDDEN`)."""

    named = ""
    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = _AnyOption({"class": directives.unchanged})

    def run(self) -> list[nodes.Node]:
        """Return the nodes for the words of the directive."""
        name, argument = self.named, " ".join(" ".join(self.arguments).split())
        base = name.rpartition(":")[2]
        if name in _CODE or base in _CODE:
            code = nodes.literal_block("", "\n".join(self.content))
            code.line = self.content_offset + 1
            return [code]
        if name in ("image", "figure", "raw", "include", "literalinclude", "contents", "title", "meta", "index"):
            return self._inside() if name == "figure" else []
        if base in _LABELS:
            return self._labelled(_LABELS[base].format(argument.split(" ")[0]), " ".join(argument.split(" ")[1:]))
        if base in _OBJECTS:
            return self._object(argument)
        if name in _SILENT or base in _SILENT:
            return self._inside()
        inside = self._inside()
        return [self._paragraph(argument), *inside] if argument and inside else inside

    def _labelled(self, label: str, argument: str) -> list[nodes.Node]:
        noted = nodes.admonition("", nodes.title("", "", nodes.Text(label)))
        if argument:
            noted += self._paragraph(argument)
        noted += self._inside()
        return [noted]

    def _object(self, argument: str) -> list[nodes.Node]:
        stated = [
            self._paragraph(f"{name.capitalize()}: {self.options[name]}") for name in _STATED if name in self.options
        ]
        inside = [*stated, *self._inside()]
        if not inside:
            return []
        signature = ", ".join(line.strip() for line in "\n".join(self.arguments).split("\n") if line.strip())
        item = nodes.definition_list_item("", nodes.term("", signature or argument), nodes.definition("", *inside))
        item.line = self.lineno
        return [nodes.definition_list("", item)]

    def _inside(self) -> list[nodes.Node]:
        node = nodes.Element()
        if self.content:
            self.state.nested_parse(self.content, self.content_offset, node, match_titles=False)
        return list(node.children)

    def _paragraph(self, text: str) -> nodes.Node:
        parsed, _ = self.state.inline_text(text, self.lineno)
        paragraph = nodes.paragraph("", "", *parsed)
        paragraph.line = self.lineno
        return paragraph


def _line(node: nodes.Element) -> int:
    at: Any = node
    while at is not None and not getattr(at, "line", None):
        at = at.parent
        if isinstance(at, nodes.document):
            return 0
    return int(at.line) if at is not None else 0
