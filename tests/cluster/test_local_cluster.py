"""Creating, stopping, restarting and killing a local cluster of plain servers, with every server program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from qa_cluster.cluster.nodes.connect import NotRunning, cluster_client, seed_client
from qa_cluster.cluster.nodes.node import nodes_of, primaries
from qa_cluster.cluster.servers import local, ports, server_process
from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.cluster.servers.processes import ProcessRef
from qa_cluster.cluster.servers.server_process import ServerSpec
from qa_cluster.cluster.servers.state import ClusterState, locked, read_state, write_state
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from tests.harness.polling import eventually
from tests.harness.ports import free_port

from .conftest import MakeCluster

WORDS = [f"key-{number}" for number in range(200)]
# settings of every server
SAFE = {
    "bind": "127.0.0.1",
    "protected-mode": "yes",
    "appendonly": "yes",
    "maxmemory-policy": "volatile-lru",
    "unixsocketperm": "700",
}


@contextmanager
def client_of(cluster: LocalCluster) -> Iterator[redis.RedisCluster]:
    with cluster_client(cluster.settings, cluster.url()) as client:
        yield client


def pids(cluster: LocalCluster) -> list[int]:
    state = read_state(cluster.data_dir)
    assert state is not None
    return [process.pid for process in cluster.processes(state)]


def test_data_survives_a_kill_and_down_and_up(make_cluster: MakeCluster, server: str) -> None:
    cluster = make_cluster("d" * 120, server=server)
    with pytest.raises(NotRunning, match="no cluster in"):
        cluster.url()
    first = cluster.up()
    assert (first.created, first.started) == (True, 3)
    state = read_state(cluster.data_dir)
    assert state is not None
    for spec in cluster.specs(state):  # even with a long name of the folder
        assert len(os.fsencode(spec.socket_path)) < 100
        assert spec.socket_path.parent.stat().st_mode & 0o077 == 0
    with client_of(cluster) as client:
        for word in WORDS:
            client.set(word, word)
        servers = [node.redis_connection for node in client.get_primaries()]
        assert sum(node.slot_count for node in primaries(nodes_of(servers[0]))) == 16384
        for each in servers:
            assert each.config_get("*").items() >= SAFE.items()
            # wait, because with `appendfsync everysec` a server delays writes to its file during a sync
            eventually(lambda each=each: not each.info("persistence")["aof_buffer_length"])  # type: ignore[misc]

    before = pids(cluster)
    assert cluster.up().started == 0
    assert pids(cluster) == before
    os.kill(before[1], signal.SIGKILL)
    eventually(lambda: len(pids(cluster)) == 2)
    assert cluster.up().started == 1
    assert all_words(cluster)

    address = cluster.url()
    assert len(cluster.down()) == 3
    with pytest.raises(NotRunning, match="is not running"):
        cluster.url()
    assert cluster.down() == []
    again = cluster.up()
    assert (again.created, again.url) == (False, address)
    assert all_words(cluster)


def all_words(cluster: LocalCluster) -> bool:
    with client_of(cluster) as client:
        return [client.get(word) for word in WORDS] == [word.encode() for word in WORDS]


def test_replicas_follow_their_primaries_and_the_password_is_required(make_cluster: MakeCluster, server: str) -> None:
    cluster = make_cluster(server=server, cluster_password='a "quoted" secret', shards=2, replicas=1)
    cluster.up()
    with client_of(cluster) as client:
        primary = client.get_primaries()[0].redis_connection

        def followed() -> bool:
            nodes = nodes_of(primary)
            assert len(nodes) == 4
            following = sorted(node.primary_id for node in nodes if node.primary_id)
            return following == sorted(node.id for node in primaries(nodes))

        eventually(followed)  # the cluster bus reports the replica to the other servers
    with pytest.raises(ClusterError, match="refused the login"):
        seed_client(Settings(), cluster.url())
    state = read_state(cluster.data_dir)
    assert state is not None
    [spec, *_] = cluster.specs(state)
    assert spec.config_path.stat().st_mode & 0o077 == 0
    assert "secret" not in repr(spec)
    with pytest.raises(ConfigError, match=r"'shards' is 5, but .* has 2: .*qa-cluster scale 5"):
        make_cluster(shards=5).up()


def test_a_port_in_use_is_reported_and_replaced(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.up()
    with client_of(cluster) as client:
        client.set("a", "b")
    cluster.down()
    state = read_state(cluster.data_dir)
    assert state is not None
    with socket.socket() as first, socket.socket() as second:
        for taken, port in ((first, state.ports[0]), (second, state.ports[1] + ports.BUS_OFFSET)):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((ports.HOST, port))
            taken.listen()
        report = cluster.up()
    assert len(report.notices) == 2
    assert str(state.ports[0]) in report.notices[0]
    moved = read_state(cluster.data_dir)
    assert moved is not None
    assert moved.ports[2] == state.ports[2]
    assert not {moved.ports[0], moved.ports[1]} & set(state.ports)
    with client_of(cluster) as client:
        assert client.get("a") == b"b"
        assert {node.port for node in client.get_primaries()} == set(moved.ports)


@pytest.mark.parametrize("offset", [0, ports.BUS_OFFSET])
def test_a_port_that_another_process_takes_during_the_start_is_replaced(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    cluster = make_cluster(shards=2)
    launched: list[ServerSpec] = []
    with socket.socket() as taken:

        def launch(spec: ServerSpec) -> ProcessRef:
            if not launched:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind((ports.HOST, spec.port + offset))
                taken.listen()
            launched.append(spec)
            return server_process.launch(spec)

        monkeypatch.setattr(local, "launch", launch)
        report = cluster.up()
    assert [spec.directory.name for spec in launched] == ["node-0", "node-1", "node-0"]
    assert (report.created, report.started) == (True, 2)
    (notice,) = report.notices
    assert str(launched[0].port) in notice and f"node-0 now listens on port {launched[2].port}" in notice
    with client_of(cluster) as client:
        assert {node.port for node in client.get_primaries()} == {launched[1].port, launched[2].port}


def test_a_failed_start_has_its_reason_is_not_repeated_and_leaves_nothing(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(shards=2)
    launched: list[ServerSpec] = []

    def launch(spec: ServerSpec) -> ProcessRef:
        launched.append(spec)
        return server_process.launch(spec)

    monkeypatch.setattr(local, "launch", launch)
    broken = LocalCluster(cluster.settings, options=[("loadmodule", "/nowhere/qa.so")])
    with pytest.raises(ClusterError, match=r"(?s)ended during its start.*/nowhere/qa\.so"):
        broken.up()
    assert len(launched) == 2
    assert not cluster.is_running()
    assert cluster.up().created


def test_the_ports_can_be_chosen(make_cluster: MakeCluster) -> None:
    with socket.socket() as taken:
        first = next(port for port in iter(free_port, None) if ports.is_free_for_node(port + 1))
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((ports.HOST, first + 1 + ports.BUS_OFFSET))
        taken.listen()
        cluster = make_cluster(shards=2, first_port=first)
        with pytest.raises(ConfigError, match=f"'first_port' is {first}: port {first + 1 + ports.BUS_OFFSET}"):
            cluster.up()
        assert not cluster.is_running()
    assert cluster.up().url == f"redis://{ports.HOST}:{first},{ports.HOST}:{first + 1}"
    cluster.down()
    with pytest.raises(ConfigError, match=f"created with the ports {first}, {first + 1}"):
        make_cluster(shards=2, first_port=first + 5).up()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((ports.HOST, first))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {first} cannot be used"):
            cluster.up()
    assert not cluster.up().created


def test_two_commands_do_not_change_one_cluster(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with locked(cluster.data_dir), pytest.raises(ClusterError, match="another qa-cluster command"):
        cluster.up()


def test_an_unfinished_creation_is_started_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.data_dir.mkdir()
    write_state(
        cluster.data_dir, ClusterState(3, 0, tuple(free_port() for _ in range(3)), "/gone/server", created=False)
    )
    (cluster.data_dir / "node-0").mkdir()
    (cluster.data_dir / "node-0" / "nodes.conf").write_text("garbage")
    assert cluster.up().created


def test_a_server_program_that_does_not_exist_is_refused(make_cluster: MakeCluster) -> None:
    with pytest.raises(ConfigError, match="'no-such-server'"):
        make_cluster(server="no-such-server").up()


def test_a_broken_state_file_is_named(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.data_dir.mkdir()
    file = cluster.data_dir / "cluster.json"
    file.write_text('{"format": 99}')
    with pytest.raises(ClusterError, match="format 99"):
        cluster.up()
    file.write_text("{")
    with pytest.raises(ClusterError, match=r"cannot read .*cluster\.json"):
        cluster.up()
    file.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process together with its parent")
def test_a_tethered_cluster_ends_when_its_command_is_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    code = (
        "import sys, time; from dataclasses import replace; from pathlib import Path\n"
        "from qa_cluster.cluster.servers.local import LocalCluster; from qa_cluster.config import Settings\n"
        "settings = replace(Settings(), data_dir=Path(sys.argv[1]), shards=2)\n"
        "LocalCluster(settings, tethered=True).up(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cluster.data_dir)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert len(pids(cluster)) == 2
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    eventually(lambda: not cluster.is_running())


def test_the_state_file_is_replaced_at_once(tmp_path: Path) -> None:
    state = ClusterState(1, 0, (7000,), "server", created=True)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
