"""Imports form a star: gears, models, api and cluster know the core of qa_cluster and themselves, never each other.

In the core too, folders know each other one way only.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POINTS = ("gears", "models", "api", "cluster")
# Folders of the core, and which others each may know.
BELOW: dict[str, set[str]] = {
    "reading": set(),
    "ranking": {"reading"},
    "evaluation": {"reading", "ranking"},
    "huggingface": {"reading"},
    "asking": {"reading", "ranking", "huggingface"},
}


def imported(source: str) -> Iterator[str]:
    """Dotted names of everything a module imports, relative imports as ``.``-prefixed names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def offences(folder: str, source: str) -> list[str]:
    """Imports of a file in `folder` that break the star."""
    forbidden = {f"qa_cluster.{point}" for point in POINTS if point != folder}
    forbidden |= {point for point in POINTS}  # `import gears` from the checkout would be a second copy
    return [name for name in imported(source) if any(name == bad or name.startswith(bad + ".") for bad in forbidden)]


@pytest.mark.parametrize("folder", ["qa_cluster", *POINTS])
def test_star(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(path.relative_to(ROOT)): bad for path in files if (bad := offences(folder, path.read_text()))}
    assert not found


def upward(folder: str, source: str) -> list[str]:
    """Imports of a file in a `folder` of the core that lead to a folder it may not know."""
    forbidden = [f"qa_cluster.{other}" for other in set(BELOW) - BELOW[folder] - {folder}]
    return [name for name in imported(source) if name.startswith("..") or name.startswith(tuple(forbidden))]


def test_a_worker_loads_nothing_that_asks() -> None:
    worker = "import sys, qa_cluster.gears.process.service, qa_cluster.gears.functions.register; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True).stdout.split()
    assert "qa_cluster.reading.spans" in loaded
    assert not [name for name in loaded if name.startswith(("qa_cluster.asking", "qa_cluster.evaluation"))]


def test_every_folder_of_the_core_has_its_place() -> None:
    assert {path.parent.name for path in (ROOT / "qa_cluster").glob("*/__init__.py")} == set(BELOW)


@pytest.mark.parametrize("folder", BELOW)
def test_folders_of_the_core_know_each_other_one_way(folder: str) -> None:
    files = sorted((ROOT / "qa_cluster" / folder).rglob("*.py"))
    found = {path.name: bad for path in files if (bad := upward(folder, path.read_text()))}
    assert not found


def test_a_planted_offence_is_found() -> None:
    assert upward("reading", "from qa_cluster.asking.shards import Shards") == ["qa_cluster.asking.shards.Shards"]
    assert upward("asking", "from qa_cluster.reading.spans import Span") == []
    assert offences("api", "from qa_cluster.gears import worker") == ["qa_cluster.gears.worker"]
    assert offences("qa_cluster", "import qa_cluster.models.export") == ["qa_cluster.models.export"]
    assert offences("gears", "from qa_cluster.gears.link import Link") == []
