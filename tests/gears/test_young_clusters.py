"""Runs in a new cluster, with shards that have no worker yet, or do not know the key or the sender yet."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster, reaches, ready_cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, bus_key_file, execute
from tests.harness.workers import WORKER

PATIENCE_SECONDS = 120
IDLE_MS = 1000 * PATIENCE_SECONDS
COUNTED = """
def once(shard):
    execute('INCR', 'begun:{%s}' % hashtag())
    return shard
GB('ShardsIDReader').map(once).repartition(str).map(len).run()
"""


def begin(node: Server, script: str = COUNTED) -> str:
    """Start a run without a waiting client, with a long idle limit for slow machines; return its id."""
    execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", IDLE_MS)
    return str(execute(node, "RG.PYEXECUTE", script, "UNBLOCKING"))


def begun(cluster: Cluster) -> list[int]:
    """How often each shard has started the run."""
    counts = []
    for node in cluster.nodes:
        keys = execute(node, "KEYS", "begun:*")
        counts.append(sum(int(execute(node, "GET", key)) for key in keys))
    return counts


def is_running(node: Server, execution: str) -> bool:
    return execution in [
        entry[1] for entry in execute(node, "RG.DUMPEXECUTIONS") if entry[3] not in ("done", "aborted")
    ]


def finished(node: Server, execution: str) -> Any:
    with node.client(socket_timeout=PATIENCE_SECONDS) as client:
        return client.execute_command("RG.GETRESULTSBLOCKING", execution)


def test_a_shard_whose_worker_starts_late_takes_part(server_binary: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = f"while ! test -e {shlex.quote(str(gate))}; do sleep 0.1; done; exec {WORKER}"
    escaped = words.replace("\\", "\\\\").replace('"', '\\"')
    own: list[dict[str, object]] = [{}, {}, {"qa.worker-command": f'sh -c "{escaped}"', "qa.worker-start-ms": IDLE_MS}]
    with Cluster(server_binary, worker=WORKER, own=own) as cluster:
        for node in cluster.nodes[:2]:
            node.wait_ready()
        first = cluster.nodes[0]
        execution = begin(first)
        eventually(lambda: begun(cluster) == [1, 1, 0])
        assert is_running(first, execution)
        gate.touch()
        assert finished(first, execution) == [["40"] * 3, []]
        assert begun(cluster) == [1, 1, 1]


def test_a_trigger_waits_for_the_sessions_of_a_worker_that_starts(own_cluster: Cluster) -> None:
    first, _, third = own_cluster.nodes
    for node in own_cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", IDLE_MS)
    where = "GB('CommandReader').repartition(lambda r: r[1]).map(lambda r: hashtag())"
    script = f"{where}.register(trigger='where', timeout={IDLE_MS})"
    assert execute(first, "RG.PYEXECUTE", script) == "OK"
    own = eventually(lambda: execute(third, "RG.TRIGGER", "where", "{06S}"), ignore=redis.ResponseError)
    with first.client(socket_timeout=PATIENCE_SECONDS) as client:
        for _ in range(3):
            pid = third.signal_worker(signal.SIGKILL)
            eventually(lambda pid=pid: third.field("worker_pid") != pid)  # type: ignore[misc]
            assert client.execute_command("RG.TRIGGER", "where", "{06S}") == own


def test_a_shard_that_does_not_have_the_key_yet_takes_part(server_binary: Path, tmp_path: Path) -> None:
    key = tmp_path / "bus.key"
    with Cluster(server_binary, worker=WORKER, own=[{}, {}, {"qa.bus-key-file": key}]) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        first, _, third = cluster.nodes
        execution = begin(first)
        eventually(lambda: int(third.field("bus_messages_refused")) > 0)
        eventually(lambda: begun(cluster) == [1, 1, 0])
        assert is_running(first, execution)
        key.write_text(bus_key_file().read_text())
        assert finished(first, execution) == [["40"] * 3, []]
        assert begun(cluster) == [1, 1, 1]


def test_a_cluster_without_any_setting_runs_functions(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a password or a key in the settings, the servers of a user create a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    with ready_cluster(server_binary, {"qa.bus-key-file": ""}) as cluster:
        first, second, _ = cluster.nodes
        assert execute(first, "RG.PYEXECUTE", "GB().count().run()") == [[], []]
        script = "GB('CommandReader').map(lambda record: 'done').register(trigger='anywhere')"
        assert execute(first, "RG.PYEXECUTE", script) == "OK"
        eventually(lambda: "done" in execute(second, "RG.TRIGGER", "anywhere"), ignore=redis.ResponseError)


def test_records_that_a_shard_refuses_are_sent_again(server_binary: Path, tmp_path: Path) -> None:
    """If a shard's key changes during a run, the shard refuses all messages until the other shards have the new key."""
    keys = [tmp_path / f"bus-{number}.key" for number in range(3)]
    for key in keys:
        key.write_text("1" * 40 + "\n")
    own: list[dict[str, object]] = [{"qa.bus-key-file": key} for key in keys]
    script = """
import time
def slow(shard):
    execute('INCR', 'begun:{%s}' % hashtag())
    while execute('EXISTS', 'go:{%s}' % hashtag()) == 0:
        time.sleep(0.05)
    return [shard] * 1000
GB('ShardsIDReader').flatmap(slow).repartition(str).map(len).count().run()
"""
    with Cluster(server_binary, worker=WORKER, own=own) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        first = cluster.nodes[0]
        execution = begin(first, script)
        eventually(lambda: begun(cluster) == [1, 1, 1])
        before = int(first.field("bus_messages_refused"))
        keys[2].write_text("2" * 40 + "\n")
        eventually(lambda: int(first.field("bus_messages_refused")) > before)  # while the function runs
        for node in cluster.nodes:
            for key in execute(node, "KEYS", "begun:*"):
                execute(node, "SET", str(key).replace("begun", "go"), 1)
        before = int(first.field("bus_messages_refused"))
        eventually(lambda: int(first.field("bus_messages_refused")) > before)  # the records of the function
        assert is_running(first, execution)
        for key in keys:
            key.write_text("2" * 40 + "\n")
        assert finished(first, execution) == [["3000"], []]
        assert begun(cluster) == [1, 1, 1]


def test_a_shard_whose_worker_is_replaced_does_not_start_a_run_twice(own_cluster: Cluster) -> None:
    first, second, _ = own_cluster.nodes
    script = COUNTED.replace("return shard", "__import__('time').sleep(600)")
    execution = begin(first, script)
    eventually(lambda: begun(own_cluster) == [1, 1, 1])
    pid = second.signal_worker(signal.SIGKILL)
    eventually(lambda: second.field("worker_pid") not in (0, pid))
    second.wait_ready()
    eventually(lambda: reaches(second, 3))
    assert begun(own_cluster) == [1, 1, 1]
    assert is_running(first, execution)
