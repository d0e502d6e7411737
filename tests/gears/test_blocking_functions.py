"""Blocking functions run in parallel with each other and with models. An abort ends them. They delay no other work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from tests.gears.onnx_file import add_model
from tests.harness.polling import SECONDS, eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import WORKER

BLOCKING = """
import time
def block(r):
    while True:
        execute('INCR', %r)
        time.sleep(0.05)
GB('ShardsIDReader').map(block).run()
"""
THREADS = 4


@pytest.fixture(scope="module")
def few_threads(shared_binary: Path) -> Iterator[Server]:
    """A server whose worker has few function threads."""
    # the lease is long enough for a worker on a busy machine
    with Server(shared_binary, {"qa.function-threads": THREADS, "qa.atomic-lease-ms": 8000}, worker=WORKER) as running:
        running.wait_ready(SECONDS)
        # Only the module uses the new value. The worker keeps its start value, so it soon reports a function as stuck.
        execute(running, "CONFIG", "SET", "qa.cancel-grace-ms", 60_000)
        yield running


@pytest.fixture
def shard(few_threads: Server) -> Iterator[Server]:
    """The shared server; after each test, its runs and registrations are removed."""
    number = few_threads.field("worker_number")
    yield few_threads
    for entry in execute(few_threads, "RG.DUMPREGISTRATIONS"):
        execute(few_threads, "RG.UNREGISTER", entry[1], "ABORTPENDING")
    for entry in execute(few_threads, "RG.DUMPEXECUTIONS"):
        with suppress(redis.ResponseError):  # the execution was dropped with its registration
            execute(few_threads, "RG.ABORTEXECUTION", entry[1])
    eventually(lambda: few_threads.field("worker_functions_running") == 0, SECONDS)
    execute(few_threads, "FLUSHALL")
    assert few_threads.field("worker_number") == number


def states(server: Server) -> dict[str, str]:
    return {entry[1]: entry[3] for entry in execute(server, "RG.DUMPEXECUTIONS")}


def count(server: Server, key: str) -> int:
    return int(execute(server, "GET", key) or 0)


@contextmanager
def call_into_c(server: Server, file: str) -> Iterator[str]:
    """Start a run whose function is inside one call into C until the block ends; yield the execution id.

    The call itself creates a file, so that an abort meets the function inside the call.
    """
    begun, over = (server.directory / f"{file}-{moment}" for moment in ("begun", "over"))
    waits = f"touch {begun}; while [ -e {begun} -a ! -e {over} ]; do sleep 0.05; done"
    script = f"import os\nGB('ShardsIDReader').foreach(lambda r: os.system({waits!r})).run()"
    try:
        name = str(execute(server, "RG.PYEXECUTE", script, "UNBLOCKING"))
        eventually(begun.exists, SECONDS)
        yield name
    finally:
        over.touch()


def test_functions_that_block_run_in_parallel_with_each_other_and_with_models_and_triggers(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", "GB('CommandReader').map(lambda r: 'served').register(trigger='other')")
    for name in ("one", "two"):
        execute(shard, "RG.PYEXECUTE", BLOCKING % name, "UNBLOCKING")
    with shard.client() as client:
        client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", add_model())
        for name in ("one", "two"):
            eventually(lambda name=name: count(shard, name) > 3, SECONDS)  # type: ignore[misc]
        seen = [count(shard, "one"), count(shard, "two")]
        ones = np.ones(2, "<f4").tobytes()
        for key in ("a", "b"):
            client.execute_command("AI.TENSORSET", key, "FLOAT", 2, "BLOB", ones)
        assert client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
        assert client.execute_command("RG.TRIGGER", "other") == ["served"]
        assert client.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]
    eventually(lambda: count(shard, "one") > seen[0] and count(shard, "two") > seen[1], SECONDS)


@pytest.mark.parametrize("loop", ["time.sleep(0.05)", "pass", "execute('PING')"])
def test_an_aborted_function_ends_and_its_execution_stays_listed(shard: Server, loop: str) -> None:
    script = f"""
import time
def block(r):
    try:
        execute('SET', 'begun', 1)
        while True:
            {loop}
    except Exception:
        execute('SET', 'swallowed', 1)
    finally:
        execute('SET', 'ended', 1)
GB('ShardsIDReader').map(block).run()
"""
    name = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    eventually(lambda: execute(shard, "GET", "begun") == "1", SECONDS)
    assert execute(shard, "RG.ABORTEXECUTION", name) == "OK"
    eventually(lambda: states(shard)[name] == "aborted")
    eventually(lambda: execute(shard, "GET", "ended") == "1")
    assert execute(shard, "GET", "swallowed") is None
    assert "execution was aborted" in execute(shard, "RG.GETRESULTS", name)[1]
    assert states(shard)[name] == "aborted"


def test_an_endless_trigger_ends_at_its_deadline_and_costs_no_worker(shard: Server) -> None:
    script = """
def endless(r):
    while True:
        pass
GB('CommandReader').map(endless).register(trigger='endless', mode='async_local', timeout=5000)
GB('CommandReader').map(lambda r: 'served').register(trigger='other', mode='async_local')
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    with Pending(shard, "RG.TRIGGER", "endless") as waiting:
        assert b"DEADLINE" in waiting.reply()
    eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
    assert execute(shard, "RG.TRIGGER", "other") == ["served"]


def test_a_loop_without_a_waiting_client_is_ended(shard: Server) -> None:
    """Otherwise it would run until its deadline, which can be minutes away."""
    listed = states(shard)
    with Pending(shard, "RG.PYEXECUTE", "while True: pass") as waiting:
        eventually(lambda: shard.field("worker_functions_running") == 1, SECONDS)
        waiting.hang_up()
    eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
    assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').count().run()") == [["1"], []]
    # a waiting function is cancelled, too
    slow = "async def f(r):\n    await asyncio.sleep(600)\nGB('ShardsIDReader').foreach(f).run()"
    with Pending(shard, "RG.PYEXECUTE", slow) as waiting:
        eventually(lambda: "running" in states(shard).values())
        waiting.hang_up()
    eventually(lambda: states(shard) == listed)


def test_a_timer_that_blocks_delays_no_other_work_and_ends_with_its_session(shard: Server) -> None:
    script = """
def block():
    while True:
        execute('PING')
registerTE(0.1, block)
GB('CommandReader').map(lambda r: 'served').register(trigger='other')
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    eventually(lambda: shard.field("worker_functions_running") == 1, SECONDS)
    assert execute(shard, "RG.TRIGGER", "other") == ["served"]
    (entry,) = execute(shard, "RG.DUMPREGISTRATIONS")
    execute(shard, "RG.UNREGISTER", entry[1])
    eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)


def test_a_call_that_never_returns_blocks_only_its_thread(shard: Server) -> None:
    with call_into_c(shard, "stuck") as name:
        execute(shard, "RG.ABORTEXECUTION", name)
        eventually(lambda: states(shard)[name] == "aborted")
        eventually(lambda: shard.field("worker_functions_stuck") == 1, SECONDS)
        assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]
    eventually(lambda: shard.field("worker_functions_stuck") == 0, SECONDS)


def test_threads_are_bounded_and_waiting_calls_are_counted(shard: Server) -> None:
    with ExitStack() as stack:
        for number in range(2 * THREADS):
            execute(shard, "RG.PYEXECUTE", BLOCKING % f"run{number}", "UNBLOCKING")
        counts = ("worker_functions_waiting", "worker_functions_running")
        eventually(lambda: shard.fields(*counts) == (THREADS, THREADS), SECONDS)
        script = BLOCKING.replace("run()", "register(trigger='slow')").replace("ShardsID", "Command") % "slow"
        execute(shard, "RG.PYEXECUTE", script)
        for _ in range(2 * THREADS):
            stack.enter_context(Pending(shard, "RG.TRIGGER", "slow"))
        # a registration can use half of the threads of its pool
        eventually(lambda: shard.field("worker_functions_running") == THREADS + THREADS // 2, SECONDS)
        eventually(lambda: shard.field("worker_functions_waiting") == THREADS + 2 * THREADS - THREADS // 2, SECONDS)
        assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]


def test_own_functions_never_wait_for_user_functions(shard: Server) -> None:
    own = "from qa_cluster.gears.scripts.own_functions import register_all; register_all()"
    assert execute(shard, "RG.PYEXECUTE", own, "ID", "qa-functions") == "OK"
    script = """
import time
def block(r):
    while True:
        time.sleep(0.05)
GB('CommandReader').foreach(block).register(trigger='slow')
GB('KeysReader').foreach(block).register(prefix='slow:*')
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    with ExitStack() as stack, shard.client() as client:
        for _ in range(600):  # more than the worker takes at once
            stack.enter_context(Pending(shard, "RG.TRIGGER", "slow"))
        client.mset({f"slow:{number}": 1 for number in range(600)})
        eventually(lambda: shard.field("queued_clients") > 0 and shard.field("queued_events") > 0, SECONDS)
        assert isinstance(client.execute_command("RG.TRIGGER", "qa.models"), list)
        with pytest.raises(redis.ResponseError, match="no reader on this shard"):
            client.execute_command("GET", "bertqa{06S}_none:{06S}:0_why")


def test_a_coroutine_that_blocks_stops_coroutines_only_and_is_aborted(shard: Server) -> None:
    script = """
import time
async def block(r):
    while True:
        execute('SET', 'blocking', 1)
        time.sleep(0.05)
GB('ShardsIDReader').map(block).run()
"""
    execute(shard, "RG.PYEXECUTE", "GB('CommandReader').map(lambda r: 'served').register(trigger='other')")
    name = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    eventually(lambda: execute(shard, "GET", "blocking") == "1", SECONDS)
    assert execute(shard, "RG.TRIGGER", "other") == ["served"]
    assert execute(shard, "RG.ABORTEXECUTION", name) == "OK"
    eventually(lambda: states(shard)[name] == "aborted")
    waits = "async def f(r):\n    await asyncio.sleep(0.01)\n    return 'waited'\nGB('ShardsIDReader').map(f).run()"
    assert execute(shard, "RG.PYEXECUTE", waits) == [["waited"], []]


def test_a_blocked_atomic_block_stops_the_server_only_for_its_lease(shard: Server) -> None:
    over = shard.directory / "over"
    script = f"""
import os, time
def hold(r):
    with atomic():
        execute('SET', 'held', 1)
        while not os.path.exists({str(over)!r}):
            time.sleep(0.02)
        execute('SET', 'late', 1)
GB('ShardsIDReader').foreach(hold).run()
"""
    name = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    eventually(lambda: execute(shard, "GET", "held") == "1", SECONDS)
    other = "def f(r):\n    with atomic():\n        return execute('INCR', 'n')\nGB('ShardsIDReader').map(f).run()"
    assert execute(shard, "RG.PYEXECUTE", other) == [["1"], []]
    assert states(shard)[name] == "running"
    assert execute(shard, "RG.PYEXECUTE", other) == [["2"], []]
    over.touch()
    _, errors = execute(shard, "RG.GETRESULTSBLOCKING", name)
    assert "atomic block exceeded its lease" in errors[0]
    assert execute(shard, "GET", "late") is None
    assert execute(shard, "RG.PYEXECUTE", other) == [["3"], []]


@pytest.mark.one_server("the worker ends the block; the other tests of this file run on both servers")
def test_a_timeout_in_an_atomic_block_releases_the_server(server_binary: Path) -> None:
    script = """
import time
def hold(r):
    try:
        with atomic():
            execute('SET', 'held', r[0])
            while True:
                pass
    finally:
        time.sleep(0)
        execute('RPUSH', 'cleaned', r[0])
async def wait(r):
    try:
        with atomic():
            execute('SET', 'held', r[0])
            while True:
                pass
    finally:
        await asyncio.sleep(0.2)
        execute('RPUSH', 'cleaned', r[0])
for f in (hold, wait):
    GB('CommandReader').foreach(f).register(trigger=f.__name__, mode='async_local', timeout=5000)
GB('CommandReader').map(lambda r: isInAtomicBlock()).register(trigger='other', mode='async_local', convertToStr=False)
"""
    # a long lease: only the end of the block releases the server
    with Server(server_binary, {"qa.atomic-lease-ms": 60_000}, worker=WORKER) as own:
        own.wait_ready(SECONDS)
        assert execute(own, "RG.PYEXECUTE", script) == "OK"
        for trigger in ("hold", "wait"):
            with Pending(own, "RG.TRIGGER", trigger) as waiting:
                assert b"DEADLINE" in waiting.reply()
                assert execute(own, "GET", "held") == trigger
            assert execute(own, "RG.TRIGGER", "other") == [0]
        eventually(lambda: execute(own, "LRANGE", "cleaned", 0, -1) == ["hold", "wait"], SECONDS)


def test_triggers_in_order_wait_for_an_endless_trigger(shard: Server) -> None:
    over = shard.directory / "first-over"
    script = f"""
import os
def step(r):
    execute('RPUSH', 'seen', r[1] + ' begins')
    try:
        if r[1] == 'first':
            os.system('while [ -d {over.parent} -a ! -e {over} ]; do sleep 0.05; done')
    finally:
        execute('RPUSH', 'seen', r[1] + ' ends')
GB('CommandReader').foreach(step).register(trigger='step', inorder=True, mode='async_local', timeout=6000)
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    with Pending(shard, "RG.TRIGGER", "step", "first") as first:
        assert b"DEADLINE" in first.reply()
    assert execute(shard, "LRANGE", "seen", 0, -1) == ["first begins"]
    with pytest.raises(redis.ResponseError, match="DEADLINE"):
        execute(shard, "RG.TRIGGER", "step", "second")
    over.touch()
    eventually(lambda: execute(shard, "LRANGE", "seen", 0, -1) == ["first begins", "first ends"], SECONDS)
    execute(shard, "RG.TRIGGER", "step", "third")
    assert execute(shard, "LRANGE", "seen", 2, -1) == ["third begins", "third ends"]


def test_a_script_and_its_on_registered_may_block(shard: Server) -> None:
    script = """
import time
execute('SET', 'running', 1)
while not execute('EXISTS', 'go'):
    time.sleep(0.02)
def begin():
    time.sleep(0.3)
    execute('SET', 'begun', 1)
GB('CommandReader').map(lambda r: execute('GET', 'begun')).register(trigger='began', onRegistered=begin)
"""
    with Pending(shard, "RG.PYEXECUTE", script) as waiting:
        eventually(lambda: execute(shard, "GET", "running") == "1", SECONDS)
        assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]
        execute(shard, "SET", "go", 1)
        assert b"+OK" in waiting.reply()
    assert execute(shard, "RG.TRIGGER", "began") == ["1"]


def test_a_worker_with_more_stuck_functions_than_threads_is_replaced(server_binary: Path) -> None:
    limits = {"qa.function-threads": 1, "qa.cancel-grace-ms": 500, "qa.worker-backoff-ms": 1}
    with Server(server_binary, limits, worker=WORKER) as own, ExitStack() as stuck:
        own.wait_ready(SECONDS)
        for number in range(2):
            execute(own, "RG.ABORTEXECUTION", stuck.enter_context(call_into_c(own, f"stuck{number}")))
        eventually(lambda: own.field("worker_number") == 2, SECONDS)
        assert "functions do not end although they were aborted" in own.log.read_text()


def test_many_coroutines_wait_without_threads(shard: Server) -> None:
    script = """
async def wait(r):
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.5)
    return r[1]
GB('CommandReader').map(wait).register(trigger='wait', mode='async_local', timeout=120000)
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    with ExitStack() as stack:
        waiting = [stack.enter_context(Pending(shard, "RG.TRIGGER", "wait", str(n))) for n in range(50)]
        eventually(lambda: list(states(shard).values()).count("running") == 50, SECONDS)
        eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
        execute(shard, "SET", "go", 1)
        replies: list[Any] = [pending.reply() for pending in waiting]
    assert all(f"{number}\r\n".encode() in reply for number, reply in enumerate(replies))


def test_a_run_with_waiting_records_can_be_aborted_when_one_blocks(shard: Server) -> None:
    script = """
import time
async def wait(r):
    await asyncio.sleep(0.01)
    return r
def block(r):
    execute('INCR', 'begun')
    while True:
        time.sleep(0.05)
GB('PythonReader').map(wait).map(block).run(lambda: iter(range(3)))
"""
    name = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    eventually(lambda: count(shard, "begun") == shard.field("worker_functions_running") == 1, SECONDS)
    execute(shard, "RG.ABORTEXECUTION", name)
    eventually(lambda: shard.field("worker_functions_running") == 0, SECONDS)
    eventually(lambda: states(shard)[name] == "aborted")
    assert execute(shard, "RG.GETRESULTS", name) == [[], ["execution was aborted"]]
    # the records after the blocked record have not started their step
    assert count(shard, "begun") == 1
