"""The structure of qa-cluster's functions: rooms that know each other one way, the public API, one state."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from qa_cluster.gears.functions import register
from qa_cluster.gears.functions.state import FunctionState
from qa_cluster.gears.scripting import api

FOLDER = Path(api.__file__).parents[1] / "functions"
PACKAGE = "qa_cluster.gears.functions."
PUBLIC = "qa_cluster.gears.scripting.api"
# The others that each room, or module beside the rooms, may know.
BELOW: dict[str, set[str]] = {
    "state": set(),
    "shard": {"state"},
    "readers": {"state", "shard"},
    "answering": {"state", "shard", "readers"},
    "indexing": {"state", "shard", "readers"},
    "watch": {"state", "shard", "readers", "indexing"},
    "register": {"shard", "readers", "answering", "indexing", "watch"},
}


def sources() -> dict[str, str]:
    """Every module of the functions by its name, for example ``readers.loaded``, with its text."""
    files = [path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py"]
    return {".".join(path.relative_to(FOLDER).with_suffix("").parts): path.read_text() for path in files}


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def known(text: str) -> set[str]:
    """The modules of the functions that one imports, in any way."""
    names = {name.removeprefix(PACKAGE) for name in imported(text) if name.startswith(PACKAGE)}
    return {module for module in sources() for name in names if f"{name}.".startswith(f"{module}.")}


def upward(module: str, text: str) -> set[str]:
    room = module.partition(".")[0]
    return {other for other in known(text) if other.partition(".")[0] not in BELOW[room] | {room}}


def inner(text: str) -> list[str]:
    """Imports of the function runtime outside its public API, and relative imports."""
    return [
        name
        for name in imported(text)
        if name.startswith(".") or (name.startswith("qa_cluster.gears.") and not name.startswith((PACKAGE, PUBLIC)))
    ]


def remembered(text: str) -> list[str]:
    """Names of module variables that are neither constants nor types, and `global` statements."""
    tree = ast.parse(text)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    changed = [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    return [name for name in names if not name.isupper() and not name.lstrip("_")[0].isupper()] + changed


@pytest.mark.parametrize("module", sources())
def test_a_module(module: str) -> None:
    text = sources()[module]
    assert upward(module, text) == set()
    assert inner(text) == []
    assert remembered(text) == (["state"] if module == "state" else [])


def test_no_module_is_in_a_circle() -> None:
    graph = {module: known(text) - {module} for module, text in sources().items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)
    with pytest.raises(CycleError):
        TopologicalSorter(graph | {"state": {"register"}}).prepare()


def test_planted_breaches_are_found() -> None:
    assert upward("readers.report", f"from {PACKAGE}indexing import sweep") == {"indexing.sweep"}
    assert upward("shard.slots", f"def f():\n    from {PACKAGE}readers.reader import Reader") == {"readers.reader"}
    assert inner("from qa_cluster.gears.shard.peers import Peers") == ["qa_cluster.gears.shard.peers.Peers"]
    assert inner("from ..state import state") == ["..state.state"]
    assert remembered("_seen: dict[str, int] = {}\nMAX = 3\n_Key = tuple[str]\nones, _twos = [], []") == [
        "ones",
        "_twos",
        "_seen",
    ]
    assert remembered("def f():\n    global LAST\n    LAST = 1") == ["LAST"]


def test_functions_are_stored_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions stored by value would bring a state of their own with them."""
    registered: list[Callable[..., Any]] = []

    class Builder:
        def __init__(self, *_: object, **__: object) -> None: ...

        def step(self, function: Callable[..., Any]) -> Builder:
            registered.append(function)
            return self

        foreach = map = flatmap = step

        def register(self, onRegistered: Callable[[], Any] | None = None, **_: object) -> None:
            if onRegistered is not None:
                registered.append(onRegistered)

    monkeypatch.setattr(register.rg, "GearsBuilder", Builder)
    register.register_all()
    assert len(registered) > 10
    assert [cloudpickle.loads(cloudpickle.dumps(function)) for function in registered] == registered


def test_a_part_of_the_state_is_made_once() -> None:
    state = FunctionState()
    part = state.of(list)
    assert state.of(list) is part
    state.forget()
    assert state.of(list) is not part
