"""What is said about a cluster that cannot answer yet: each missing thing, on each shard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from qa_cluster.cluster.connect import login
from qa_cluster.cluster.inspection import inspect_cluster
from qa_cluster.cluster.ports import free_node_ports
from qa_cluster.cluster.processes import stop
from qa_cluster.cluster.server_process import ServerSpec, find_program, start
from qa_cluster.cluster.setup import provision, read_reader
from qa_cluster.cluster.state import read_state

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError, ModelError

from .conftest import MakeCluster


def test_plain_servers_lack_the_module(make_cluster: MakeCluster, server: str) -> None:
    cluster = make_cluster(server=server)
    url = cluster.up().url
    report = inspect_cluster(Settings(), url)
    assert not report.ready
    assert len(report.shards) == 3
    problems = report.all_problems()
    for shard in report.shards:
        assert any(text.startswith(f"{shard.address}: the native module is not loaded") for text in problems)
    assert any("qa:partitions" in text for text in problems)
    with pytest.raises(ClusterError, match="loadmodule"):
        provision(Settings(), url, None)


def test_a_server_that_is_in_no_cluster_is_named(tmp_path: Path) -> None:
    spec = ServerSpec(tmp_path / "alone", find_program(""), free_node_ports(1)[0], cluster=False)
    process = start(spec, 10)
    try:
        with pytest.raises(ClusterError, match="not part of a cluster"):
            inspect_cluster(Settings(), f"redis://127.0.0.1:{spec.port}")
    finally:
        stop(process, 5)


def test_a_shard_that_is_down_is_reported(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    url = cluster.up().url
    state = read_state(cluster.data_dir)
    assert state is not None
    stop(cluster.processes(state)[2], 5)
    report = inspect_cluster(replace(Settings(), connect_timeout_ms=500), url)
    assert any("cannot be read" in text for text in report.all_problems())


@pytest.mark.parametrize("url", ["db:7000", "http://db:7000", "redis://", "redis://db:x", "redis://db:7000,:1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="cluster_url"):
        login(Settings(), url)


def test_the_login_comes_from_the_settings_or_the_address() -> None:
    found = login(Settings(), "rediss://me:p%40ss@db-1:7000,[fd00::1]:7001")
    assert (found["username"], found["password"], found["ssl"]) == ("me", "p@ss", True)
    found = login(replace(Settings(), cluster_password="other"), "redis://me:p%40ss@db-1:7000")
    assert (found["username"], found["password"]) == ("me", "other")
    assert "ssl" not in found


def test_a_folder_without_a_reader(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"manifest\.json"):
        read_reader(tmp_path)
