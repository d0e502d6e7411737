"""Imports within `cluster/` point one way: between its rooms, and between the files of a room."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
# Rooms, lowest first, and which others each may know.
BELOW: dict[str, set[str]] = {
    "terminal": set(),
    "nodes": set(),
    "servers": {"nodes"},
    "readers": {"nodes"},
    "provision": {"nodes", "servers", "readers", "terminal"},
    "evaluation": {"nodes", "servers", "readers", "provision", "terminal"},
    "commands": {"nodes", "servers", "readers", "provision", "evaluation", "terminal"},
    "commands.model": {"nodes", "servers", "readers", "provision", "evaluation", "terminal", "commands"},
    "": {"commands", "commands.model", "terminal"},
}
SOURCES = {
    ".".join(path.relative_to(CLUSTER).with_suffix("").parts): path.read_text() for path in CLUSTER.rglob("*.py")
}


def imported(module: str, source: str, known: Mapping[str, str]) -> Iterator[str]:
    """The modules of `cluster/` that a module imports, also under TYPE_CHECKING and inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*module.split(".")[: -node.level], *(node.module or "").split(".")]
            for names in ([*base, alias.name] for alias in node.names):
                found = ".".join(filter(None, names))
                yield found if found in known else found.rpartition(".")[0]


def room(module: str) -> str:
    return module.rpartition(".")[0]


def breaches(sources: Mapping[str, str]) -> list[str]:
    """Imports that lead to a room that the importing one may not know."""
    return [
        f"{module} imports {other}"
        for module, source in sources.items()
        for other in imported(module, source, sources)
        if room(other) not in BELOW[room(module)] | {room(module)}
    ]


def circle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle; empty when there is none."""
    sorter = TopologicalSorter({name: set(imported(name, source, sources)) for name, source in sources.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in SOURCES if not module.endswith("__init__")} == set(BELOW)


def test_rooms_know_each_other_one_way() -> None:
    assert breaches(SOURCES) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(SOURCES) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from ..commands.up import up",
        "if TYPE_CHECKING:\n    from ..commands import up",
        "def late() -> None:\n    from ..cli import app",
    ],
)
def test_a_planted_breach_is_found(planted: str) -> None:
    assert len(breaches({**SOURCES, "nodes.node": SOURCES["nodes.node"] + "\n" + planted})) == 1


def test_a_planted_circle_is_found() -> None:
    planted = SOURCES["nodes.node"] + "\nfrom .formation import create\n"
    assert set(circle({**SOURCES, "nodes.node": planted})) == {"nodes.node", "nodes.formation"}
