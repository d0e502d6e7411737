"""The effects of functions that never end or that kill their worker, on their clients and on other clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import WORKER

pytestmark = pytest.mark.one_server("the limits apply to the worker; tests/module restarts workers on both servers")

# long enough for a worker on a busy machine, which the module would otherwise replace
GRACE = {"qa.cancel-grace-ms": 20_000, "qa.worker-backoff-ms": 1}
LIMITS = {**GRACE, "qa.job-timeout-ms": 1500}
SECONDS = 30.0


def test_an_endless_loop_ends_without_its_worker_and_others_are_served(server_binary: Path) -> None:
    script = """
def endless(r):
    while True:
        pass
GB('CommandReader').map(endless).register(trigger='endless', mode='async_local')
GB('CommandReader').map(lambda r: 'served').register(trigger='other', mode='async_local')
"""
    with Server(server_binary, LIMITS, worker=WORKER) as shard:
        shard.wait_ready(SECONDS)
        assert execute(shard, "RG.PYEXECUTE", script) == "OK"
        with Pending(shard, "RG.TRIGGER", "endless") as waiting:
            assert b"DEADLINE" in waiting.reply()
        eventually(lambda: execute(shard, "RG.TRIGGER", "other") == ["served"], SECONDS, ignore=redis.ResponseError)
        eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
        assert shard.field("worker_number") == 1


def test_a_loop_without_a_waiting_client_is_ended(server_binary: Path) -> None:
    """Otherwise it would run until its deadline, which can be minutes away."""
    with Server(server_binary, GRACE, worker=WORKER) as shard:
        shard.wait_ready(SECONDS)
        with Pending(shard, "RG.PYEXECUTE", "while True: pass") as waiting:
            eventually(lambda: shard.field("worker_functions_running") == 1, SECONDS)
            waiting.hang_up()
        eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
        assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').count().run()") == [["1"], []]
        # a waiting function is cancelled, too
        slow = "async def f(r):\n    await asyncio.sleep(600)\nGB('ShardsIDReader').foreach(f).run()"
        with Pending(shard, "RG.PYEXECUTE", slow) as waiting:
            eventually(lambda: "running" in str(execute(shard, "RG.DUMPEXECUTIONS")))
            waiting.hang_up()
        eventually(lambda: execute(shard, "RG.DUMPEXECUTIONS") == [])
        assert shard.field("worker_number") == 1


def test_a_coroutine_that_waits_too_long_ends_alone(server_binary: Path) -> None:
    script = "async def f(r):\n    await asyncio.sleep(60)\nGB('CommandReader').map(f).register(trigger='f')"
    with Server(server_binary, LIMITS, worker=WORKER) as shard:
        shard.wait_ready(SECONDS)
        assert execute(shard, "RG.PYEXECUTE", script) == "OK"
        with pytest.raises(redis.ResponseError, match="DEADLINE"):
            execute(shard, "RG.TRIGGER", "f")
        assert shard.field("worker_number") == 1


STREAM = """
import os
def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    if r['value']['n'] == 'bad':
        %s
GB('StreamReader').foreach(step).register(prefix='in:*')
"""


def test_a_stream_entry_that_kills_two_workers_is_skipped(server_binary: Path) -> None:
    with Server(server_binary, LIMITS, worker=WORKER) as shard, shard.client() as client:
        shard.wait_ready(SECONDS)
        assert execute(shard, "RG.PYEXECUTE", STREAM % "os._exit(1)") == "OK"
        for number in ("1", "bad", "2"):
            client.xadd("in:x", {"n": number})
        eventually(lambda: client.lrange("seen", 0, -1) == ["1", "bad", "bad", "2"])
        eventually(lambda: client.xlen("in:x") == 0)
        assert shard.field("worker_number") == 3
        assert "WORKERLOST two workers died while this batch ran" in str(execute(shard, "RG.DUMPREGISTRATIONS"))


def test_a_timer_that_blocks_delays_no_other_work_and_ends_with_its_session(server_binary: Path) -> None:
    script = """
def block():
    while True:
        execute('PING')
registerTE(0.1, block)
GB('CommandReader').map(lambda r: 'served').register(trigger='other')
"""
    with Server(server_binary, GRACE, worker=WORKER) as shard:
        shard.wait_ready(SECONDS)
        assert execute(shard, "RG.PYEXECUTE", script) == "OK"
        eventually(lambda: shard.field("worker_functions_running") == 1, SECONDS)
        assert execute(shard, "RG.TRIGGER", "other") == ["served"]
        (entry,) = execute(shard, "RG.DUMPREGISTRATIONS")
        execute(shard, "RG.UNREGISTER", entry[1])
        eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
        assert shard.field("worker_number") == 1
