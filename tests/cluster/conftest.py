"""Local clusters with each server program of this machine. Each cluster stops at the end of its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.config import Settings
from tests.cluster.command import Qa, WithoutEncoder
from tests.cluster.sites import MANY, Site, fill, site
from tests.functions.tiny_shards import TinyShards, tiny_shards
from tests.harness.programs import binary_or_skip, chosen_servers

MakeCluster = Callable[..., LocalCluster]


@pytest.fixture
def server(server_binary: Path) -> str:
    """The setting `server`, for each server program in turn."""
    return str(server_binary)


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


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three shards of Valkey with all kinds of contents."""
    for made in site(tmp_path_factory.mktemp("source"), "", 3):
        fill(made)
        yield made


@pytest.fixture(scope="session")
def backup(source: Site) -> Path:
    target = source.folder / "backup"
    told = source("backup", str(target))
    assert f"{MANY + 4} documents, 4 collections, 3 models, 1 script with functions, 3 API keys saved" in told.stdout
    assert "note:" not in told.stderr
    return target


@pytest.fixture(scope="session")
def redis_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(tmp_path_factory.mktemp("redis"), "redis-server", 1)


@pytest.fixture(scope="session")
def valkey_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(tmp_path_factory.mktemp("valkey"), "", 2)


@pytest.fixture(scope="session")
def reader_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyShards]:
    """Two shards whose only reader is `first`, before and after each test."""
    settings = {"appendonly": "yes", "cluster-require-full-coverage": "no", "cluster-node-timeout": 15000}
    binary = binary_or_skip(chosen_servers()[0])
    with tiny_shards(binary, tmp_path_factory.mktemp("readers"), **settings) as found:
        found.written("fault")
        yield found


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qa]:
    """A running cluster; each test stores its documents under a separate prefix."""
    made = WithoutEncoder(tmp_path_factory.mktemp("up"))
    made("--set", "shards=2", "up", "--no-password")
    yield made
    made("down")
