"""The imports of a tree of Python files, resolved to modules, and their faults.

Every import counts: at the top, under TYPE_CHECKING, or inside a function; absolute, relative or of a submodule.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.harness.programs import ROOT

# The points of the star. They import the core, but never each other.
POINTS = ("gears", "models", "api", "cluster", "integrations")
FOLDERS = ("qa_cluster", *POINTS)


@functools.cache
def _imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]


@dataclass(frozen=True)
class Tree:
    """The sources of modules by their dotted names. `packages` are the names of the ``__init__.py`` files."""

    sources: Mapping[str, str]
    packages: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: Path, package: str) -> Tree:
        """Read a folder's files; `package` is its import name."""
        sources: dict[str, str] = {}
        packages = set()
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((package, *(parts[:-1] if is_package else parts)))
            sources[name] = path.read_text()
            if is_package:
                packages.add(name)
        return cls(sources, frozenset(packages))

    def imports(self, module: str) -> set[str]:
        """Return the dotted names that a module imports, in full: ``from a import b`` is ``a.b``."""
        found: set[str] = set()
        for node in _imports(self.sources[module]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                base = self._base(module, node)
                found |= {f"{base}.{alias.name}" for alias in node.names}
        return found

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        up = node.level - (module in self.packages)
        parts = parts[: len(parts) - up] if up else parts
        return ".".join((*parts, *(node.module or "").split("."))).rstrip(".")

    def imported_modules(self, module: str) -> set[str]:
        """Return the modules of this tree that a module imports."""
        return {known for name in self.imports(module) if (known := self._module_of(name)) and known != module}

    def _module_of(self, name: str) -> str:
        while name and name not in self.sources:
            name = name.rpartition(".")[0]
        return name


def tree_of(folder: str) -> Tree:
    """Return the tree of one of `FOLDERS`."""
    return Tree.read(ROOT / folder, folder if folder == "qa_cluster" else f"qa_cluster.{folder}")


def room_of(module: str, rooms: Mapping[str, object]) -> str | None:
    """Return the room of a module: the room with the longest name that is a prefix of the module's name."""
    while module and module not in rooms:
        module = module.rpartition(".")[0]
    return module or None


def wrong_directions(tree: Tree, rooms: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the imports from a room into a room that it may not import."""
    found = []
    for module in tree.sources:
        room = room_of(module, rooms)
        for name in sorted(tree.imports(module)):
            other = room_of(name, rooms)
            if room is not None and other is not None and other != room and other not in rooms[room]:
                found.append(f"{module} imports {name}")
    return found


def circle(tree: Tree) -> list[str] | None:
    """Return modules that import each other in a circle, with the first one again at the end; None without a circle."""
    edges = {module: sorted(tree.imported_modules(module)) for module in tree.sources}
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        path.append(module)
        found = next((circle for other in edges[module] if (circle := visit(other))), None)
        path.pop()
        done.add(module)
        return found

    return next((found for module in edges if (found := visit(module))), None)


def in_order(package: str, *rooms: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the rooms of a package from the bottom up, each with the rooms before it, which it may import."""
    names = [f"{package}.{room}" for room in rooms]
    return ((name, frozenset(names[:index])) for index, name in enumerate(names))
