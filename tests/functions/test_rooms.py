"""Modules of the own functions have no state. A worker creates the functions' objects once and passes them on."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.functions import own_functions
from qa_cluster.gears.functions.own_functions import OwnFunctions, OwnKeyFunction, OwnTrigger
from qa_cluster.shard_functions import FUNCTIONS

FOLDER = Path(own_functions.__file__).parent


def sources() -> dict[str, str]:
    """Every module of the functions by its name, for example ``readers.loaded``, with its text."""
    files = [path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py"]
    return {".".join(path.relative_to(FOLDER).with_suffix("").parts): path.read_text() for path in files}


def remembered(text: str) -> list[str]:
    """Names of module variables that are neither constants nor types, and `global` statements."""
    tree = ast.parse(text)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    changed = [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    return [name for name in names if not name.isupper() and not name.lstrip("_")[0].isupper()] + changed


@pytest.mark.parametrize("module", sources())
def test_a_module_has_no_state(module: str) -> None:
    assert remembered(sources()[module]) == []


def test_planted_state_is_found() -> None:
    found = remembered("_seen: dict[str, int] = {}\nMAX = 3\n_Key = tuple[str]\nones, _twos = [], []")
    assert found == ["ones", "_twos", "_seen"]
    assert remembered("def f():\n    global LAST\n    LAST = 1") == ["LAST"]


@pytest.fixture
async def functions() -> OwnFunctions:
    """The own functions on a shard whose settings are all 1."""
    shard: Any = SimpleNamespace(answer=lambda kind, handler: None, setting=lambda name: "1")
    models: Any = None
    return OwnFunctions(shard, models)


async def test_the_table_has_every_function_that_clients_know(functions: OwnFunctions) -> None:
    assert functions.by_name.keys() == set(FUNCTIONS)
    triggers = [found for found in functions.by_name.values() if isinstance(found, OwnTrigger)]
    assert {found.name: found.cost_from for found in triggers if found.cost_from} == {"qa.read": 3, "qa.embed": 1}
    keys = [found for found in functions.by_name.values() if isinstance(found, OwnKeyFunction)]
    assert {found.name for found in keys if found.commands} == {"bertqa*"}


async def test_a_registration_names_a_function_until_it_is_removed(functions: OwnFunctions) -> None:
    functions.add("id-1", "qa.read")
    assert functions.registered("id-1") is functions.by_name["qa.read"]
    assert functions.registered("id-2") is None
    functions.remove("id-1")
    assert functions.registered("id-1") is None
