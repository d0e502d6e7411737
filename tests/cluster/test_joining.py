"""`qa-cluster node` and `up --form`: supervised servers form a cluster, and rejoin it after a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from qa_cluster.cluster.nodes.formation import incomplete
from qa_cluster.cluster.nodes.joining import join_servers
from qa_cluster.cluster.nodes.node import Node, nodes_of
from qa_cluster.cluster.servers import single
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from tests.harness.polling import eventually
from tests.harness.ports import free_port

PASSWORD = "a password"
NO_WORKER = "/bin/true"


class Nodes:
    """Servers of `qa-cluster node`, each in its own folder, without workers.

    The command starts the first server. This process starts the other servers with the same configuration as the
    command.
    """

    def __init__(self, folder: Path, server: str, count: int) -> None:
        self.folder, self.server = folder, server
        self.ports = [free_port() for _ in range(count)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, index: int) -> None:
        with (self.folder / f"{index}.log").open("ab") as log:
            self.processes[index] = subprocess.Popen(
                self.command(index) if index == 0 else self.server_command(index),
                env={**os.environ, "QA_CLUSTER_PASSWORD": PASSWORD},
                stdout=log,
                stderr=log,
            )

    def command(self, index: int) -> list[str]:
        options = ["--data-dir", str(self.folder / str(index)), "--set", f"server={self.server}"]
        options += ["--set", f"worker_python={NO_WORKER}", "--set", "start_timeout_ms=60000"]
        port = str(self.ports[index])
        node = ["node", "--port", port, "--announce", "127.0.0.1"]
        return [sys.executable, "-m", "qa_cluster.cluster.cli", *options, *node]

    def server_command(self, index: int) -> list[str]:
        settings = replace(
            Settings(),
            data_dir=self.folder / str(index),
            server=self.server,
            worker_python=NO_WORKER,
            cluster_password=PASSWORD,
        )
        spec = single.prepare(settings, "127.0.0.1", self.ports[index], "127.0.0.1")
        spec.socket_path.unlink(missing_ok=True)
        return [spec.program, str(spec.config_path)]

    def launch(self, index: int) -> None:
        """Start a new server and wait until it answers. If another process uses the port, choose another port."""
        self._start_anywhere(index)

        def answers() -> bool:
            if self.processes[index].poll() is not None:
                self.ports[index] = free_port()
                self._start_anywhere(index)
            with self.client(index) as client:
                return bool(client.info("server")["process_id"] == self.processes[index].pid)

        eventually(answers, 60, ignore=redis.RedisError)

    def _start_anywhere(self, index: int) -> None:
        while True:
            try:
                return self.start(index)
            except ConfigError:  # another process uses the port
                self.ports[index] = free_port()

    def kill(self, index: int) -> None:
        self.processes[index].kill()
        self.processes.pop(index).wait()

    def client(self, index: int) -> redis.Redis:
        return redis.Redis(port=self.ports[index], password=PASSWORD)

    def settings(self, shards: int, replicas: int = 0) -> Settings:
        url = "redis://" + ",".join(f"localhost:{port}" for port in self.ports)
        return replace(
            Settings(),
            cluster_url=url,
            cluster_password=PASSWORD,
            shards=shards,
            replicas=replicas,
            start_timeout_ms=60_000,
        )

    def seen(self, index: int = 0) -> dict[int, Node]:
        """The nodes by port, in the view of a server."""
        with self.client(index) as client:
            return {node.port: node for node in nodes_of(client)}

    def whole(self) -> bool:
        with ExitStack() as stack:
            clients = [stack.enter_context(self.client(index)) for index in range(len(self.ports))]
            return not any(incomplete(client, len(self.ports)) for client in clients)


@pytest.fixture
def nodes(tmp_path: Path, server: str, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    made = Nodes(tmp_path, server, getattr(request, "param", 3))
    try:
        for index in range(len(made.ports)):
            made.launch(index)
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


def test_servers_form_a_cluster_after_refusals_and_an_interruption(nodes: Nodes) -> None:
    settings = nodes.settings(3)
    with pytest.raises(ClusterError, match="refused the login"):
        join_servers(replace(settings, cluster_password="another"))
    with nodes.client(2) as client:  # a server with data outside of a cluster
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: client.set("key", "value"), ignore=redis.ResponseError)
        client.execute_command("CLUSTER DELSLOTSRANGE", 0, 16383)
        with pytest.raises(ClusterError, match=rf"localhost:{nodes.ports[2]} is not in a cluster and holds data"):
            join_servers(settings)
        assert len(nodes.seen()) == 1
        client.flushall()
    with nodes.client(0) as first:  # the work of an interrupted run
        first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 5460)
        first.execute_command("CLUSTER MEET", "127.0.0.1", nodes.ports[2])
    join_servers(settings)
    assert nodes.whole()
    formed = nodes.seen()
    assert [formed[port].slot_count for port in nodes.ports] == [5461, 5462, 5461]
    join_servers(settings)
    assert {port: (node.id, node.slots) for port, node in formed.items()} == {
        port: (node.id, node.slots) for port, node in nodes.seen().items()
    }
    # the command `node` has become the server, and receives its signals
    process = nodes.processes[0]
    with nodes.client(0) as first:
        assert first.info("server")["process_id"] == process.pid
    assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize("nodes", [4], indirect=True)
def test_a_killed_server_returns_with_its_data_and_its_role(nodes: Nodes) -> None:
    settings = nodes.settings(2, 1)
    join_servers(settings)
    before = nodes.seen()
    assert [before[port].primary_id for port in nodes.ports[2:]] == [before[port].id for port in nodes.ports[:2]]
    with redis.RedisCluster("127.0.0.1", nodes.ports[0], password=PASSWORD) as client:
        client.set("key", "value")
    nodes.kill(1)
    nodes.start(1)
    eventually(nodes.whole, 60, ignore=redis.RedisError)
    join_servers(settings)
    with redis.RedisCluster("127.0.0.1", nodes.ports[0], password=PASSWORD) as client:
        assert client.get("key") == b"value"
    assert {node.id for node in nodes.seen().values()} == {node.id for node in before.values()}


def test_servers_that_forgot_each_other_rejoin(nodes: Nodes) -> None:
    join_servers(nodes.settings(3))
    ids = {port: node.id for port, node in nodes.seen().items()}
    for index in range(3):
        with nodes.client(index) as client:
            for port, node_id in ids.items():
                # Valkey propagates FORGET, so this server may already have forgotten the node
                if port != nodes.ports[index]:
                    with suppress(redis.ResponseError):
                        client.execute_command("CLUSTER FORGET", node_id)
    for index in range(3):  # a running server rejects a forgotten node for a while
        nodes.kill(index)
        nodes.start(index)
    join_servers(nodes.settings(3))
    assert {port: node.id for port, node in nodes.seen().items()} == ids
    assert nodes.whole()


@pytest.mark.parametrize(
    ("url", "shards", "replicas", "counted"),
    [
        ("redis://a:1,b:1", 3, 0, "names 2 servers"),
        ("redis://a:1,a:1,b:1", 3, 0, "names 2"),
        ("redis://a:1", 1, 1, "1"),
    ],
)
def test_a_wrong_number_of_servers_is_refused(url: str, shards: int, replicas: int, counted: str) -> None:
    settings = replace(Settings(), cluster_url=url, shards=shards, replicas=replicas)
    with pytest.raises(ConfigError, match=counted):
        join_servers(settings)


def test_the_wait_for_missing_servers_has_a_limit() -> None:
    port = free_port()
    settings = replace(Settings(), cluster_url=f"redis://127.0.0.1:{port}", shards=1, start_timeout_ms=300)
    with pytest.raises(ClusterError, match=rf"was not complete within start_timeout_ms: 127.0.0.1:{port}: "):
        join_servers(settings)


def test_a_server_on_a_public_address_needs_a_password(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"listens on 0\.0\.0\.0 needs a password"):
        single.prepare(settings, "0.0.0.0", free_port())
    with pytest.raises(ConfigError, match=r"--announce nowhere\.invalid: this host cannot resolve the name"):
        single.prepare(settings, "127.0.0.1", free_port(), "nowhere.invalid")
    with pytest.raises(ConfigError, match="port 60000 is out of range"):
        single.prepare(settings, "127.0.0.1", 60_000)
    assert not list(tmp_path.iterdir())
