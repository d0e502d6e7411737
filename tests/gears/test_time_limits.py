"""Time limits of functions. A trigger has its own limit. Background work has a limit only if a setting says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

# every function of this file takes longer
LIMITS = {"qa.job-timeout-ms": 400, "qa.cancel-grace-ms": 20_000}


@pytest.fixture(scope="module")
def impatient(shared_binary: Path) -> Iterator[Server]:
    """A server whose jobs have little time."""
    with Server(shared_binary, LIMITS, worker=WORKER) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def shard(impatient: Server) -> Iterator[Server]:
    """The shared server. Its worker must survive the test."""
    number = impatient.field("worker_number")
    yield impatient
    for entry in execute(impatient, "RG.DUMPREGISTRATIONS"):
        execute(impatient, "RG.UNREGISTER", entry[1])
    execute(impatient, "FLUSHALL")
    assert impatient.field("worker_number") == number


def seen(client: Any) -> list[str]:
    return list(client.lrange("seen", 0, -1))


STREAM = """
import time
def step(r):
    time.sleep(%s)
    execute('RPUSH', 'seen', r['key'] + ' ' + r['value']['n'])
GB('StreamReader').foreach(step).register(prefix='in:*', %s)
"""


def test_80_streams_with_slow_functions_run_once_each_and_nothing_is_killed(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", STREAM % (1, "mode='async_local'"))
    with shard.client() as client:
        pipeline = client.pipeline()
        for number in range(80):
            pipeline.xadd(f"in:{number}", {"n": number})
        pipeline.execute()
        eventually(lambda: client.llen("seen") == 80)
        eventually(lambda: not any(client.xlen(f"in:{number}") for number in range(80)))
        assert sorted(seen(client)) == sorted(f"in:{number} {number}" for number in range(80))
    assert shard.field("worker_killed") == 0


def test_slow_events_run_once_each_and_those_of_a_key_in_order(shard: Server) -> None:
    script = """
import time
def step(r):
    time.sleep(0.2)
    execute('RPUSH', 'seen', r['key'] + ' ' + r['value'])
GB('KeysReader').foreach(step).register(prefix='k:*', eventTypes=['set'])
"""
    execute(shard, "RG.PYEXECUTE", script)
    with shard.client() as client:
        for value in range(5):
            client.mset({f"k:{key}": value for key in range(16)})
            eventually(lambda value=value: shard.field("queued_events") == 0)  # type: ignore[misc]
        eventually(lambda: client.llen("seen") == 80)
        runs = Counter(entry.partition(" ")[0] for entry in seen(client))
        assert runs == {f"k:{key}": 5 for key in range(16)}
        for key in range(16):
            values = [entry for entry in seen(client) if entry.startswith(f"k:{key} ")]
            assert values == sorted(values)


def test_a_batch_of_a_stream_has_no_time_limit(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", STREAM % (0.1, "batch=20, mode='async_local'"))
    with shard.client() as client:
        for number in range(20):
            client.xadd("in:x", {"n": number})
        eventually(lambda: client.xlen("in:x") == 0)
        assert seen(client) == [f"in:x {number}" for number in range(20)]


def test_an_unblocking_run_has_no_time_limit(shard: Server) -> None:
    script = "import time\ndef f(r):\n    time.sleep(1)\n    return 'done'\nGB('ShardsIDReader').map(f).run()"
    name = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    with shard.client(socket_timeout=60) as client:
        assert client.execute_command("RG.GETRESULTSBLOCKING", name) == [["done"], []]


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        ("def f(r):\n    time.sleep(1)", "timeout=60000"),
        ("async def f(r):\n    await asyncio.sleep(1)", "timeout=0"),
    ],
)
def test_a_trigger_has_the_limit_of_its_registration(shard: Server, function: str, limit: str) -> None:
    script = f"import time\n{function}\n    return 'done'\n"
    register = "GB('CommandReader').map(f).register(trigger='%s', mode='async_local'%s)\n"
    execute(shard, "RG.PYEXECUTE", script + register % ("slow", f", {limit}") + register % ("preset", ""))
    assert execute(shard, "RG.TRIGGER", "slow") == ["done"]
    with pytest.raises(redis.ResponseError, match="DEADLINE"):
        execute(shard, "RG.TRIGGER", "preset")


def test_a_setting_limits_background_work(server_binary: Path) -> None:
    with Server(server_binary, {"qa.background-timeout-ms": 1100}, worker=WORKER) as own, own.client() as client:
        own.wait_ready()
        endless = "import time\ndef f(r):\n    while True:\n        time.sleep(0.05)\nGB('ShardsIDReader').map(f).run()"
        name = client.execute_command("RG.PYEXECUTE", endless, "UNBLOCKING")
        _, errors = client.execute_command("RG.GETRESULTSBLOCKING", name)
        assert errors == ["ERR it ran for 1100 ms, the limit of qa.background-timeout-ms"]
        listed = client.execute_command("RG.DUMPEXECUTIONS")
        assert [entry[3] for entry in listed if entry[1] == name] == ["aborted"]
        eventually(lambda: own.field("worker_functions_running") == 0)
        # an entry is trimmed only after its own function: the unstarted entries of a batch belong to the next batch
        slow = """
import time
def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    time.sleep(0.25)
GB('StreamReader').foreach(step).register(prefix='in', batch=12, mode='async_local')
"""
        for number in range(12):
            client.xadd("in", {"n": number})
        client.execute_command("RG.PYEXECUTE", slow)
        eventually(lambda: client.xlen("in") == 0)
        assert seen(client) == [str(number) for number in range(12)]
        assert "the limit of qa.background-timeout-ms" in str(client.execute_command("RG.DUMPREGISTRATIONS"))
        assert own.field("worker_number") == 1
