"""A hostile server that claims slots of a cluster, but lacks its password, learns no password and runs no code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.provision.inspection import inspect_cluster
from qa_cluster.cluster.servers.local import LocalCluster, with_local_password
from qa_cluster.cluster.servers.module_options import module_options
from qa_cluster.cluster.servers.server_process import ServerSpec, connect, running
from qa_cluster.cluster.servers.state import read_state
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError
from tests.cluster.conftest import MakeCluster
from tests.harness.fake_primary import FakePrimary
from tests.harness.figures import Figures
from tests.harness.polling import eventually
from tests.harness.programs import MODULE
from tests.harness.servers import execute
from tests.harness.workers import COMPILED, WORKER
from tests.module.persistence import without_tags

pytestmark = pytest.mark.hostile

# A registration whose code creates a file with the process id of its server.
PLANTED = """
import os
class Planted:
    def __reduce__(self):
        return (eval, ("open(%r + '/' + str(__import__('os').getppid()), 'w').close()",))
planted = Planted()
GB('CommandReader').map(lambda record, planted=planted: 'planted').register(trigger='planted')
"""
EVIL = ("ACL", "SETUSER", "evil", "on", "nopass", "~*", "&*", "+@all")


def packed(*words: str) -> bytes:
    parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{parts}".encode()


@pytest.fixture
def victim(server_binary: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    """The servers of `qa-cluster up`, with a generated password and without a reader."""
    settings = with_local_password(
        replace(
            Settings(),
            data_dir=tmp_path / "data",
            server=str(server_binary),
            module_path=MODULE,
            model_cache_dir=str(COMPILED),
            start_timeout_ms=240_000,
        )
    )
    cluster = LocalCluster(settings, options=module_options(settings))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def outcome_of(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except (ClusterError, redis.exceptions.RedisError) as error:
        return str(error)


def ask(settings: Settings) -> object:
    with ClusterClient(settings) as client:
        return client.ask("Who wrote the first program?")


def specs_of(cluster: LocalCluster) -> list[ServerSpec]:
    state = read_state(cluster.data_dir)
    assert state is not None
    return cluster.specs(state)


def can_only_replicate(spec: ServerSpec) -> None:
    """Check the rights of the user that a server sends to each server that claims to be its primary."""
    assert spec.replication_password != spec.password
    with redis.Redis(port=spec.port, username="qa-replication", password=spec.replication_password) as client:
        assert client.ping()
        for command in ("GET x", "SET x 1", "INFO", "CONFIG GET requirepass", "RG.PYEXECUTE 1", "ACL LIST"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_a_fake_primary_learns_no_password_and_runs_no_code(
    victim: LocalCluster, server_binary: Path, tmp_path: Path, figures: Figures
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    specs = specs_of(victim)
    password = victim.settings.cluster_password
    pids = {(spec.directory / "server.pid").read_text().strip() for spec in specs}
    for spec in specs:
        can_only_replicate(spec)
    with FakePrimary(server_binary, tmp_path, worker=WORKER) as fake:
        fake.server.wait_ready()
        script = PLANTED % str(marks)
        assert eventually(lambda: execute(fake.server, "RG.PYEXECUTE", script), ignore=redis.RedisError) == "OK"
        fake.take_over(spec.port for spec in specs)
        clients = [connect(spec) for spec in specs]
        for client in clients:
            eventually(lambda client=client: client.info("replication")["master_link_status"] == "up")  # type: ignore[misc]
        for client in clients:
            eventually(lambda client=client: client.info("modules")["qa_worker_state"] == "ready")  # type: ignore[misc]
        code = str(marks / "injected")
        assert fake.tap is not None
        fake.tap.inject(packed(*EVIL) + packed("CONFIG", "SET", "requirepass", ""))
        fake.tap.inject(packed("RG.PYEXECUTE", f"open({code!r}, 'w').close()"))
        fake.tap.inject(packed("SET", "arrived", "1"))
        for client in clients:
            eventually(lambda client=client: int(client.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"]))  # type: ignore[misc]
        url = f"redis://127.0.0.1:{specs[0].port}"
        told = outcome_of(lambda: inspect_cluster(replace(victim.settings, cluster_url=url), url))
        told += outcome_of(lambda: ask(replace(victim.settings, cluster_url=url)))
        received = fake.received
        assert b"REPLCONF" in received, "no server of the cluster became a replica"
        leaked = received.count(password.encode())
        ran = [name for name in pids if (marks / name).exists()] + ["injected"] * (marks / "injected").exists()
        registered = [client.execute_command("RG.DUMPREGISTRATIONS") for client in clients]
        users = [client.execute_command("ACL", "USERS") for client in clients]
        passwords = [client.config_get("requirepass")["requirepass"] for client in clients]
        refused = [int(client.info("modules").get("qa_sessions_refused", 0)) for client in clients]
    figures.record("fake primary: times that it receives the administrator's password", leaked, "times", 0)
    figures.record("fake primary: servers that run its code", len(ran), "servers", 0)
    assert "does not receive the cluster's password" in told
    assert registered == [[], [], []]
    assert all(b"evil" not in names for names in users)
    assert passwords == [password] * 3
    assert min(refused) >= 1
    assert "they are not signed" in specs[0].log_path.read_text() or "signature" in specs[0].log_path.read_text()
    for spec in specs:
        assert "may be hostile" in spec.log_path.read_text()
        assert password not in spec.log_path.read_text()


ANSWERS = "GB('CommandReader').map(lambda record: 'here').register(trigger='kept')"


@pytest.mark.one_server("the steps are those of `up`, and test_registry_files.py has both servers")
def test_a_cluster_of_an_earlier_version_adopts_its_registrations_once(victim: LocalCluster) -> None:
    specs = specs_of(victim)

    def registered() -> list[int]:
        found = []
        for spec in specs:
            with connect(spec) as client:
                found.append(len(client.execute_command("RG.DUMPREGISTRATIONS")))
        return found

    with connect(specs[0]) as client:
        eventually(lambda: client.execute_command("RG.PYEXECUTE", ANSWERS), ignore=redis.RedisError)
    eventually(lambda: registered() == [1, 1, 1])
    victim.down()
    for log in victim.data_dir.glob("node-*/appendonlydir/*.incr.aof"):
        log.write_bytes(without_tags(log.read_bytes()))
    settings = replace(victim.settings, adopt_registrations=True)
    LocalCluster(settings, options=module_options(settings)).up()
    eventually(lambda: registered() == [1, 1, 1])
    for spec in specs:
        with connect(spec) as client:
            assert client.config_get("qa.adopt-registrations") == {"qa.adopt-registrations": "no"}
            eventually(lambda client=client: not client.info("persistence")["aof_rewrite_in_progress"])  # type: ignore[misc]
            assert int(client.info("modules")["qa_sessions_refused"]) == 0
    victim.down()
    victim.up()
    eventually(lambda: registered() == [1, 1, 1])


def test_up_adds_the_user_for_replication_to_servers_of_an_earlier_version(
    make_cluster: MakeCluster, server: str
) -> None:
    cluster = make_cluster(server=server, shards=1, replicas=1, cluster_password="hunter2")
    cluster.up()
    primary, replica = specs_of(cluster)
    with connect(primary) as client:  # restore the configuration of an earlier version
        client.execute_command("ACL", "DELUSER", "qa-replication")
        client.execute_command("CONFIG", "SET", "masteruser", "", "masterauth", "hunter2")
    with connect(replica) as client, suppress(redis.exceptions.RedisError):
        client.execute_command("SHUTDOWN", "NOSAVE", "FORCE")
    eventually(lambda: running(replica) is None)
    cluster.up()
    with connect(replica) as client:
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        assert client.config_get("masteruser") == {"masteruser": "qa-replication"}
    with connect(primary) as client:
        assert client.config_get("masterauth") == {"masterauth": primary.replication_password}
