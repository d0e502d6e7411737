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
from tests.harness.servers import Server, execute
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


WORKER_ONLY = pytest.mark.one_server("the workers repeat requests; the tests of bus keys run on both servers")


@WORKER_ONLY
def test_a_shard_whose_worker_starts_late_takes_part(server_binary: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = f"while ! test -e {shlex.quote(str(gate))}; do sleep 0.1; done; exec {WORKER}"
    escaped = words.replace("\\", "\\\\").replace('"', '\\"')
    late: dict[str, object] = {"qa.worker-command": f'sh -c "{escaped}"', "qa.worker-start-ms": IDLE_MS}
    with Cluster(server_binary, worker=WORKER, size=2, own=[{}, late]) as cluster:
        first = cluster.nodes[0]
        first.wait_ready()
        execution = begin(first)
        eventually(lambda: begun(cluster) == [1, 0])
        assert is_running(first, execution)
        gate.touch()
        assert finished(first, execution) == [["40"] * 2, []]
        assert begun(cluster) == [1, 1]


@WORKER_ONLY
def test_a_trigger_waits_for_the_sessions_of_a_worker_that_starts(cluster: Cluster) -> None:
    first, _, third = cluster.nodes
    for node in cluster.nodes:
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


def test_a_cluster_without_any_setting_runs_functions(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a password or a key in the settings, the servers of a user create a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    with ready_cluster(server_binary, {"qa.bus-key-file": ""}, size=2) as cluster:
        first, second = cluster.nodes
        assert execute(first, "RG.PYEXECUTE", "GB().count().run()") == [[], []]
        script = "GB('CommandReader').map(lambda record: 'done').register(trigger='anywhere')"
        assert execute(first, "RG.PYEXECUTE", script) == "OK"
        eventually(lambda: "done" in execute(second, "RG.TRIGGER", "anywhere"), ignore=redis.ResponseError)


def test_requests_and_records_that_a_shard_refuses_are_sent_again(server_binary: Path, tmp_path: Path) -> None:
    """A shard without the key of the other shard, or with another key, refuses all messages."""
    keys = [tmp_path / f"bus-{number}.key" for number in range(2)]
    keys[0].write_text("1" * 40 + "\n")
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
    with Cluster(server_binary, worker=WORKER, size=2, own=own) as cluster:
        first, second = cluster.nodes
        for node in cluster.nodes:
            node.wait_ready()

        def refuses(node: Server) -> None:
            before = int(node.field("bus_messages_refused"))
            eventually(lambda: int(node.field("bus_messages_refused")) > before)

        # the second shard has no key yet
        execution = begin(first)
        refuses(second)
        eventually(lambda: begun(cluster) == [1, 0])
        assert is_running(first, execution)
        keys[1].write_text("1" * 40 + "\n")
        assert finished(first, execution) == [["40"] * 2, []]
        assert begun(cluster) == [1, 1]
        # its key changes during a run
        for node in cluster.nodes:
            execute(node, "FLUSHALL")
        execution = begin(first, script)
        eventually(lambda: begun(cluster) == [1, 1])
        keys[1].write_text("2" * 40 + "\n")
        refuses(first)  # while the function runs
        for node in cluster.nodes:
            for key in execute(node, "KEYS", "begun:*"):
                execute(node, "SET", str(key).replace("begun", "go"), 1)
        refuses(first)  # the records of the function
        assert is_running(first, execution)
        keys[0].write_text("2" * 40 + "\n")
        assert finished(first, execution) == [["2000"], []]
        assert begun(cluster) == [1, 1]


@WORKER_ONLY
def test_a_shard_whose_worker_is_replaced_does_not_start_a_run_twice(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    script = COUNTED.replace("return shard", "__import__('time').sleep(600)")
    execution = begin(first, script)
    eventually(lambda: begun(cluster) == [1, 1, 1])
    pid = second.signal_worker(signal.SIGKILL)
    eventually(lambda: second.field("worker_pid") not in (0, pid))
    second.wait_ready()
    eventually(lambda: reaches(second, 3))
    assert begun(cluster) == [1, 1, 1]
    assert is_running(first, execution)
