"""The recipes of docs/changing.md: their steps, and the names that their files define.

A recipe sends a reader to files. So a name in a sentence must be defined in a file of the same sentence, and in the
form "NAME in FILE" in that file. A sentence without a file continues the sentence before it. An import or a call of a
name is no definition.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.programs import ROOT

OPEN_FIRST = re.compile(r"\n\nOpen first: ((?:`[^`]+`(?:,\s)?)+)\.\n")
MAX_FIRST = 3
# The beginnings of paths in a recipe. A path has a slash, or is a file of the root.
TOP_FOLDERS = "qa_cluster|gears|models|api|cluster|native|integrations|client|tests|docs"
_ROOT_FILES = "Makefile|pyproject.toml|CHANGELOG.md|constraints.txt|README.md|LICENSE"
_PATH = re.compile(rf"(?:(?:{TOP_FOLDERS})/[\w./*-]*|{_ROOT_FILES})\Z")
_NAME = re.compile(r"[A-Za-z]\w+(?:\.\w+)*\Z|_\w+\Z")
# Names on the wire and in the server. Other tests compare them with the documents.
_ON_THE_WIRE = re.compile(r"(?:AI|RG|QA)\.[A-Z]+\Z|qa\.\w+\Z|CONFIG\Z|INFO\Z|ONNX\Z")
# "NAME in FILE", also with several names
_SPAN = r"`[^`]+`"
_NAMES_IN_FILE = re.compile(rf"({_SPAN}(?:(?:, | and | or |, and ){_SPAN})*) (?:in|of) ({_SPAN})")
_C_FILES = (".c", ".h")


def spans(text: str) -> list[str]:
    """Return the texts between backticks."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def files_in(text: str) -> list[str]:
    """Return the files of this checkout between backticks and in links."""
    linked = [f"docs/{link}" for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text)]
    named = [span for span in spans(text) if _PATH.match(span)]
    return [path for path in (*named, *linked) if (ROOT / path).is_file()]


def names_in(text: str) -> list[str]:
    """Return the names of code between backticks; `A.b` gives `A` and `b`."""
    found = [
        span for span in spans(text) if _NAME.match(span) and not _ON_THE_WIRE.match(span) and not _PATH.match(span)
    ]
    return [part for name in found for part in name.split(".")]


def places_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each name with its file, for the form "NAME in FILE"."""
    for names, place in _NAMES_IN_FILE.findall(text):
        for path in files_in(place):
            yield from ((name, path) for name in names_in(names))


# ---- What a file defines ----


@functools.cache
def definitions(path: str) -> frozenset[str]:
    """Return the names that a file defines. For a file that is neither Python nor C, return its words."""
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        return frozenset(_in_python(ast.parse(text)))
    if path.endswith(_C_FILES):
        return frozenset(_in_c(text))
    return frozenset(re.findall(r"\w+", text))


def _in_python(tree: ast.AST) -> Iterator[str]:
    """Yield functions, classes, parameters, assigned names and attributes, and strings that are one word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _in_c(text: str) -> Iterator[str]:
    """Yield functions, types, variables outside functions, macros, enumerators, and strings that are one word."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    yield from re.findall(r'"(\w+)"', text)
    yield from re.findall(r"^#define (\w+)", text, re.MULTILINE)
    for body in re.findall(r"\benum\b[^{;()]*\{([^}]*)\}", text):
        yield from re.findall(r"(?:^|,)\s*(\w+)", body)
    yield from re.findall(r"^(?:typedef\b.*)?\} ?(\w+)", text, re.MULTILINE)
    # a line that is not indented: a function with its type, or a variable
    yield from re.findall(r"^(?:[A-Za-z_]\w*[ *]+)+\**\(?\*?(?:const )?(\w+)(?=\(|\[|\)|;| =)", text, re.MULTILINE)


# ---- Recipes ----


@dataclass(frozen=True)
class Recipe:
    """A section of the page: its title, the files to open first, its sentences, and its tests that fail."""

    title: str
    first: tuple[str, ...] | None
    sentences: tuple[tuple[str, tuple[str, ...]], ...]
    red: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Parse a section without its hashes."""
        title = text.partition("\n")[0]
        opened = OPEN_FIRST.match(text[len(title) :])
        first = None if opened is None else tuple(re.findall(r"`([^`]+)`", opened[1]))
        rest = text[len(title) :] if opened is None else text[len(title) + opened.end() :]
        *_, red = rest.split("\nRed: ")
        return cls(title, first, tuple(_sentences(rest)), () if red == rest else tuple(files_in(red)))

    @property
    def files(self) -> list[str]:
        """All files of the steps."""
        return list(dict.fromkeys(path for _, paths in self.sentences for path in paths))

    def faults(self) -> Iterator[str]:
        """Yield every fault of the recipe."""
        yield from self._wrong_frame()
        used: set[str] = set()
        for sentence, paths in self.sentences:
            names = names_in(sentence)
            known = {path: definitions(path) for path in paths or self.files}
            for name in names:
                if not any(name in defined for defined in known.values()):
                    yield f"{self.title}: {name} is not defined in {', '.join(known) or 'a file of the recipe'}"
            for name, path in places_in(sentence):
                if name not in definitions(path):
                    yield f"{self.title}: {name} is not defined in {path}"
            used |= {path for path in paths if definitions(path) & {*names}}
        for path in self.first or ():
            if path not in used:
                yield f"{self.title}: {path} is to be opened first, but no step names what to change in it"

    def _wrong_frame(self) -> Iterator[str]:
        if self.first is None:
            yield f"{self.title}: does not begin with the files to open first"
        elif len(self.first) > MAX_FIRST or [path for path in self.first if not (ROOT / path).is_file()]:
            yield f"{self.title}: {[*self.first]} are not at most three files"
        if not any(path.startswith("tests/") and path.endswith(".py") for path in self.red):
            yield f"{self.title}: names no test that goes red"


def _sentences(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sentences with their files. Each paragraph and each item of a list starts without a file."""
    for step in re.split(r"\n\n|\n(?= *(?:-|\d+\.) )", text):
        paths: tuple[str, ...] = ()
        for sentence in re.split(r"(?<=[.)])\s+(?=[A-Z`\[])", " ".join(step.split())):
            paths = tuple(files_in(sentence)) or paths
            yield sentence, paths
