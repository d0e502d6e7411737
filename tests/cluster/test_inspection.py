"""The report on a cluster that is not ready names everything that each shard lacks."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from qa_cluster.cluster.nodes.connect import cluster_client, login
from qa_cluster.cluster.nodes.formation import slot_ranges
from qa_cluster.cluster.provision.inspection import inspect_cluster
from qa_cluster.cluster.provision.provisioning import provision
from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.cluster.servers.processes import stop_all
from qa_cluster.cluster.servers.server_process import ServerSpec, find_program, start
from qa_cluster.cluster.servers.state import read_state
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.keys import PARTITIONS_KEY, paragraphs_key, partition_tags, slot
from qa_cluster.routing.cluster_address import address_of
from tests.harness.polling import eventually
from tests.harness.ports import free_port

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
    with pytest.raises(ClusterError, match="qa-cluster config --module"):
        provision(Settings(), url, None)


def test_a_server_outside_of_any_cluster_is_named(tmp_path: Path) -> None:
    spec = ServerSpec(tmp_path / "alone", find_program(""), free_port(), cluster=False)
    process = start(spec, 60)
    try:
        with pytest.raises(ClusterError, match="not part of a cluster"):
            inspect_cluster(Settings(), f"redis://127.0.0.1:{spec.port}")
    finally:
        stop_all([process], 5)


def wait_ended(cluster: LocalCluster, left: int) -> None:
    state = read_state(cluster.data_dir)
    assert state is not None
    eventually(lambda: len(cluster.processes(state)) <= left)


def test_a_shard_that_is_down_is_reported(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    url = cluster.up().url
    state = read_state(cluster.data_dir)
    assert state is not None
    tags = partition_tags(12)
    with cluster_client(cluster.settings, url) as client:
        client.set(PARTITIONS_KEY, 12)
        for tag in tags:
            client.set(paragraphs_key("d", tag), "Text.")
    whole = inspect_cluster(Settings(), url)
    knows = next(index for index, (a, b) in enumerate(slot_ranges(3)) if a <= slot(PARTITIONS_KEY) <= b)
    assert [shard.keys for shard in whole.shards] == [4 + (index == knows) for index in range(3)]
    os.kill(cluster.processes(state)[knows].pid, signal.SIGKILL)
    wait_ended(cluster, 2)
    report = inspect_cluster(Settings(), cluster.url())
    assert not report.ready
    assert report.down == (f"127.0.0.1:{state.ports[knows]}",)
    assert report.partitions is None
    assert [shard.keys for shard in report.shards] == [4 * (index != knows) for index in range(3)]
    problems = report.all_problems()
    assert any("does not answer" in text for text in problems)
    assert not any("not set" in text for text in problems)
    cluster.up()
    assert inspect_cluster(Settings(), url).down == ()


@pytest.mark.parametrize(
    "url", ["db:7000", "http://db:7000", "redis://", "redis://db:x", "redis://db:7000,:1", "redis://db:7000,[::1"]
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="cluster_url"):
        login(Settings(), url)


def test_the_login_comes_from_the_settings_or_the_address() -> None:
    found = login(Settings(), "rediss://me:p%40ss@db-1:7000,[fd00::1]:7001")
    assert (found["username"], found["password"]) == ("me", "p@ss")
    assert issubclass(found["connection_class"], redis.SSLConnection)
    seeds = address_of(replace(Settings(), cluster_url="REDIS://db-1:7000,[fd00::1]:7001/0")).seeds
    assert list(map(str, seeds)) == ["db-1:7000", "[fd00::1]:7001"]
    found = login(replace(Settings(), cluster_password="other"), "redis://me:p%40ss@db-1:7000")
    assert (found["username"], found["password"]) == ("me", "other")
    assert "connection_class" not in found
