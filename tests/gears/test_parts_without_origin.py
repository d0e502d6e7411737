"""A part of a run ends when the worker or server of the run's origin is lost, names the reason and frees its thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clusters import Cluster, ready_cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute, pairs

PATIENCE_SECONDS = 180.0
IDLE_MS = 5000
SLEEPS = """
import time
def sleeps(shard):
    while True:
        time.sleep(0.05)
GB('ShardsIDReader').foreach(sleeps).run()
"""
COMPUTES = SLEEPS.replace("time.sleep(0.05)", "pass")
AWAITS = """
async def waits(shard):
    await asyncio.sleep(100000)
GB('ShardsIDReader').foreach(waits).run()
"""


@pytest.fixture(scope="module")
def pair(shared_binary: Path) -> Iterator[Cluster]:
    # a long timeout: a server that detects the down cluster would unblock its clients with CLUSTERDOWN
    with ready_cluster(shared_binary, {"cluster-node-timeout": 600_000}, size=2) as running:
        yield running


def state(node: Server, execution: str) -> str:
    """The state of a run on a shard; empty if it is not listed there."""
    return next((entry[3] for entry in execute(node, "RG.DUMPEXECUTIONS") if entry[1] == execution), "")


def begin(cluster: Cluster, script: str, idle_ms: int = IDLE_MS) -> str:
    """Start a run on the first shard without a waiting client; return its id when all shards take part."""
    for node in cluster.nodes:
        execute(node, "RG.CONFIGSET", "ExecutionMaxIdleTime", idle_ms)
    execution = str(execute(cluster.nodes[0], "RG.PYEXECUTE", script, "UNBLOCKING"))
    for node in cluster.nodes:
        eventually(lambda node=node: state(node, execution) == "running")  # type: ignore[misc]
    return execution


def reasons(node: Server, execution: str) -> list[Any]:
    return list(execute(node, "RG.GETRESULTS", execution)[1])


def test_a_part_ends_when_the_worker_of_its_origin_dies(pair: Cluster) -> None:
    first, second = pair.nodes
    executions = [begin(pair, script, 3_600_000) for script in (SLEEPS, COMPUTES, AWAITS)]
    eventually(lambda: second.field("worker_functions_running") == 2)
    worker = second.field("worker_pid")
    first.signal_worker(signal.SIGKILL)
    name = execute(first, "CLUSTER", "MYID")
    for execution in executions:
        eventually(lambda execution=execution: state(second, execution) == "aborted", PATIENCE_SECONDS)  # type: ignore[misc]
        assert reasons(second, execution) == [
            f"ERR shard {name} no longer leads this run: the run has ended there, or the worker was replaced"
        ]
    eventually(lambda: second.fields("worker_functions_running", "worker_functions_waiting") == (0, 0))
    assert second.field("worker_pid") == worker, "the worker was not replaced"
    first.wait_ready()
    assert [state(first, execution) for execution in executions] == [""] * 3, "no run must start a second time"


def test_a_part_whose_origin_works_continues(pair: Cluster) -> None:
    """It runs for more than twice the idle time, and asks its origin repeatedly, also while the origin is stopped."""
    first, second = pair.nodes
    execution = begin(pair, SLEEPS.replace("while True:", "for _ in range(400):"))
    with first.stopped_worker():
        # the part's own clock measures its duration
        eventually(lambda: duration_ms(second, execution) > 11_000)
    eventually(lambda: state(first, execution) == "done", PATIENCE_SECONDS)
    assert reasons(first, execution) == []
    assert state(second, execution) == "done"


def duration_ms(node: Server, execution: str) -> int:
    (entry,) = execute(node, "RG.GETEXECUTION", execution, "SHARD")
    return int(pairs(pairs(entry)["execution_plan"])["total_duration"])


def test_a_part_ends_when_the_server_of_its_origin_dies(pair: Cluster) -> None:
    """The last test of this file: the server of the shared cluster does not start again."""
    first, second = pair.nodes
    execution = begin(pair, SLEEPS)
    eventually(lambda: second.field("worker_functions_running") == 1)
    first.stop(signal.SIGKILL)
    eventually(lambda: state(second, execution) == "aborted", PATIENCE_SECONDS)
    (reason,) = reasons(second, execution)
    assert "which leads this run, has not answered for 20 s" in reason
    eventually(lambda: second.field("worker_functions_running") == 0)
