"""Imports form a star: gears, models, api and cluster know the core of qa_cluster and themselves, never each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POINTS = ("gears", "models", "api", "cluster")


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


def test_a_planted_offence_is_found() -> None:
    assert offences("api", "from qa_cluster.gears import worker") == ["qa_cluster.gears.worker"]
    assert offences("qa_cluster", "import qa_cluster.models.export") == ["qa_cluster.models.export"]
    assert offences("gears", "from qa_cluster.gears.link import Link") == []
