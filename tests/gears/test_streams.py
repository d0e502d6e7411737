"""Registrations on streams: order, acknowledgement and trimming of batches, failures, and the death of a worker."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, pairs

GROUP = "__gears_consumer_group__"
_names = itertools.count()


@pytest.fixture
def client(shared_shard: Server) -> Iterator[Any]:
    with shared_shard.client() as connected:
        connected.flushall()
        yield connected
        for entry in connected.execute_command("RG.DUMPREGISTRATIONS"):
            connected.execute_command("RG.UNREGISTER", entry[1])


def register(client: Any, script: str) -> None:
    assert client.execute_command("RG.PYEXECUTE", script, "ID", f"s{next(_names)}") == "OK"


def data(client: Any) -> dict[str, Any]:
    """The RegistrationData of the only registration."""
    (entry,) = client.execute_command("RG.DUMPREGISTRATIONS")
    return pairs(pairs(entry)["RegistrationData"])


COLLECT = """
GB('StreamReader').aggregate([], lambda a, r: [*a, r['value']['n']], lambda a, r: a + r).foreach(
    lambda numbers: execute('RPUSH', 'seen', ','.join(numbers))).register(%s)
"""


def test_entries_run_in_batches_in_order(client: Any) -> None:
    for number in range(5):
        client.xadd("in:old", {"n": number})
    register(client, COLLECT % "prefix='in:*', batch=3")
    eventually(lambda: client.lrange("seen", 0, -1) == ["0,1,2"])
    client.xadd("in:old", {"n": 5})
    eventually(lambda: client.lrange("seen", 0, -1) == ["0,1,2", "3,4,5"])
    eventually(lambda: client.xlen("in:old") == 0)
    for number in range(3):
        client.xadd("in:new", {"n": f"n{number}"})
        client.xadd("other", {"n": 1})
    eventually(lambda: client.lrange("seen", 0, -1)[2:] == ["n0,n1,n2"])
    assert client.xlen("other") == 3
    counts = eventually(lambda: data(client) if data(client)["numSuccess"] == 3 else None)
    assert (counts["status"], counts["numFailures"], counts["numTriggered"]) == ("OK", 0, 3)
    assert counts["args"] == [
        *("batchSize", 3, "durationMS", 0, "stream", "in:*"),
        *("trimStream", 1, "onFailedPolicy", "continue", "retryInterval", 1),
    ]


def test_records_and_a_duration(client: Any) -> None:
    register(client, "GB('StreamReader').foreach(lambda r: execute('RPUSH', 'seen', str(r))).register(\n"
             "    prefix='in', batch=100, duration=200, trimStream=False, convertToStr=False)")  # fmt: skip
    name = client.xadd("in", {"f": "v"})
    eventually(lambda: client.lrange("seen", 0, -1) == [str({"key": "in", "id": name, "value": {"f": "v"}})])
    eventually(lambda: client.xpending("in", GROUP)["pending"] == 0)
    assert client.xlen("in") == 1
    counts = eventually(lambda: data(client) if data(client)["numSuccess"] == 1 else None)
    assert counts["lastEstimatedLagMS"] >= 150


FAILS = """
def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    if r['value']['n'] == 'bad' and not execute('EXISTS', 'healed'):
        raise ValueError('no')
GB('StreamReader').foreach(step).register(prefix='in', %s)
"""


def test_a_failed_batch_is_skipped(client: Any) -> None:
    register(client, FAILS % "onFailedPolicy='continue'")
    for number in ("1", "bad", "2"):
        client.xadd("in", {"n": number})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "bad", "2"])
    counts = eventually(lambda: data(client) if data(client)["numSuccess"] == 2 else None)
    assert counts["numFailures"] == 1
    assert "ValueError" in counts["lastError"]
    eventually(lambda: client.xlen("in") == 0)


def test_a_failed_batch_is_retried_until_it_works(client: Any) -> None:
    register(client, FAILS % "onFailedPolicy='retry', onFailedRetryInterval=1")
    for number in ("1", "bad", "2"):
        client.xadd("in", {"n": number})
    eventually(lambda: data(client)["status"] == "WAITING_FOR_RETRY_ON_FAILURE")
    first, *others = client.lrange("seen", 0, -1)
    assert (first, set(others)) == ("1", {"bad"})  # several retries if the test takes longer than the interval
    assert "ValueError" in data(client)["lastError"]
    client.set("healed", 1)
    eventually(lambda: client.lrange("seen", 0, -1)[-2:] == ["bad", "2"])
    eventually(lambda: (data(client)["status"], data(client)["lastError"]) == ("OK", None))
    eventually(lambda: client.xlen("in") == 0)


def test_a_failed_batch_ends_the_registration(client: Any) -> None:
    register(client, FAILS % "onFailedPolicy='abort'")
    for number in ("1", "bad", "2"):
        client.xadd("in", {"n": number})
    eventually(lambda: data(client)["status"] == "ABORTED")
    client.xadd("in", {"n": "3"})
    assert client.lrange("seen", 0, -1) == ["1", "bad"]
    assert client.xlen("in") == 3  # the failed entry and later entries stay


def test_a_function_pauses_its_registration(client: Any, shared_shard: Server) -> None:
    script = """
def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    if not execute('EXISTS', 'ready'):
        raise flat_error('PAUSE until it is ready')
GB('StreamReader').foreach(step).register(prefix='in')
"""
    register(client, script)
    client.xadd("in", {"n": "1"})
    counts = eventually(lambda: data(client) if data(client)["status"] == "PAUSED" else None)
    assert counts["lastError"] == "PAUSE until it is ready"
    client.xadd("in", {"n": "2"})
    client.set("ready", 1)
    (entry,) = client.execute_command("RG.DUMPREGISTRATIONS")
    client.execute_command("RG.UNPAUSEREGISTRATIONS", entry[1])
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "1", "2"])
    client.execute_command("RG.PAUSEREGISTRATIONS", entry[1])
    eventually(lambda: data(client)["status"] == "PAUSED")
    number = shared_shard.field("worker_number")
    shared_shard.signal_worker(signal.SIGKILL)
    eventually(lambda: shared_shard.field("worker_number") == number + 1)
    shared_shard.wait_ready(30)
    client.xadd("in", {"n": "3"})
    register(client, COLLECT % "prefix='other'")
    client.xadd("other", {"n": 4})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "1", "2", "4"])
    client.execute_command("RG.UNPAUSEREGISTRATIONS", entry[1])
    eventually(lambda: client.lrange("seen", 0, -1)[-1] == "3")


def test_streams_and_groups_may_vanish(client: Any) -> None:
    register(client, COLLECT % "prefix='in'")
    client.xadd("in", {"n": 1})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1"])
    client.delete("in")
    client.xadd("in", {"n": 2})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "2"])
    eventually(lambda: client.xlen("in") == 0)
    client.xgroup_destroy("in", GROUP)
    client.xadd("in", {"n": 3})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "2", "3"])
    client.set("in", "no stream any more")
    register_again = COLLECT % "prefix='out'"
    (entry,) = client.execute_command("RG.DUMPREGISTRATIONS")
    client.execute_command("RG.UNREGISTER", entry[1])
    register(client, register_again)
    client.xadd("out", {"n": 4})
    eventually(lambda: client.lrange("seen", 0, -1)[-1] == "4")


def test_entries_that_a_dead_worker_left_unacknowledged_come_first(client: Any, shared_shard: Server) -> None:
    script = """
async def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.02)
GB('StreamReader').foreach(step).register(prefix='in')
"""
    register(client, script)
    for number in range(3):
        client.xadd("in", {"n": number})
    eventually(lambda: client.lrange("seen", 0, -1) == ["0"])
    assert client.xpending("in", GROUP)["pending"] >= 1
    shared_shard.signal_worker(signal.SIGKILL)
    client.set("go", 1)
    eventually(lambda: client.lrange("seen", 0, -1) == ["0", "0", "1", "2"])
    eventually(lambda: client.xlen("in") == 0)


@pytest.mark.one_server("the worker keeps the count; tests/module restarts workers on both servers")
def test_an_entry_that_kills_two_workers_is_skipped(client: Any, shared_shard: Server) -> None:
    script = """
import os
def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    if r['value']['n'] == 'bad':
        os._exit(1)
GB('StreamReader').foreach(step).register(prefix='in:*')
"""
    number = shared_shard.field("worker_number")
    register(client, script)
    for text in ("1", "bad", "2"):
        client.xadd("in:x", {"n": text})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "bad", "bad", "2"])
    eventually(lambda: client.xlen("in:x") == 0)
    assert shared_shard.field("worker_number") == number + 2
    assert "WORKERLOST two workers died while this batch ran" in data(client)["lastError"]


def test_repeated_runs_of_batches_do_not_delay_other_streams(client: Any, shared_shard: Server) -> None:
    script = """
async def step(r):
    execute('SADD', 'begun', r['key'])
    while r['value']['n'] == 'slow' and not execute('EXISTS', 'go'):
        await asyncio.sleep(0.05)
GB('StreamReader').foreach(step).register(prefix='in:*')
"""
    register(client, script)
    for number in range(64):
        client.xadd(f"in:{number}", {"n": "slow"})
    eventually(lambda: client.scard("begun") == 64)
    client.delete("begun")
    shared_shard.signal_worker(signal.SIGKILL)
    eventually(lambda: client.scard("begun") == 1)
    client.xadd("in:new", {"n": "quick"})
    eventually(lambda: client.sismember("begun", "in:new"))
    client.set("go", 1)
    eventually(lambda: client.scard("begun") == 65)
    # wait for all batches: a batch that still runs would delay the following tests
    eventually(lambda: not any(client.xlen(f"in:{number}") for number in range(64)))


WAITS = """
async def step(r):
    execute('RPUSH', 'seen', '%s' + r['value']['n'])
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.02)
GB('StreamReader').foreach(step).register(prefix='in')
GB('CommandReader').map(lambda r: '%s').register(trigger='version%s')
"""


def waiting(version: str) -> str:
    return WAITS % (version, version, version)


def test_a_new_version_starts_after_the_running_batch(client: Any) -> None:
    assert client.execute_command("RG.PYEXECUTE", waiting("a"), "ID", "version") == "OK"
    for number in range(3):
        client.xadd("in", {"n": number})
    eventually(lambda: client.lrange("seen", 0, -1) == ["a0"])
    assert client.execute_command("RG.PYEXECUTE", waiting("b"), "ID", "version", "UPGRADE") == "OK"
    register(client, COLLECT % "prefix='other'")
    client.xadd("other", {"n": "later"})
    eventually(lambda: "later" in client.lrange("seen", 0, -1))
    assert client.lrange("seen", 0, -1) == ["a0", "later"]
    client.set("go", 1)
    eventually(lambda: client.lrange("seen", 2, -1) == ["b1", "b2"])
    eventually(lambda: client.xlen("in") == 0)


@pytest.mark.parametrize("busy", [False, True], ids=["waits", "is at work"])
def test_another_function_gets_the_entries_of_an_unregistered_function(client: Any, busy: bool) -> None:
    register(client, FAILS % "onFailedPolicy='retry', onFailedRetryInterval=100")
    client.xadd("in", {"n": "bad"})
    eventually(lambda: data(client)["status"] == "WAITING_FOR_RETRY_ON_FAILURE")
    (first,) = (entry[1] for entry in client.execute_command("RG.DUMPREGISTRATIONS"))
    register(client, waiting("b"))
    if busy:
        client.xadd("in", {"n": "2"})
        eventually(lambda: client.lrange("seen", 0, -1) == ["bad", "b2"])
    client.execute_command("RG.UNREGISTER", first)
    client.set("go", 1)
    eventually(lambda: client.lrange("seen", 0, -1) == (["bad", "b2", "bbad"] if busy else ["bad", "bbad"]))
    eventually(lambda: client.xpending("in", GROUP)["pending"] == 0)


def test_two_functions_share_a_stream_and_run_no_entry_twice(client: Any) -> None:
    register(client, waiting("a"))
    for number in range(4):
        client.xadd("in", {"n": number})
    eventually(lambda: client.lrange("seen", 0, -1) == ["a0"])
    register(client, waiting("b"))
    eventually(lambda: len(client.lrange("seen", 0, -1)) == 2)
    client.set("go", 1)
    eventually(lambda: client.llen("seen") >= 4 and client.xpending("in", GROUP)["pending"] == 0)
    assert sorted(text[1:] for text in client.lrange("seen", 0, -1)) == ["0", "1", "2", "3"]


def test_an_error_that_cannot_be_encoded_ends_the_batch(client: Any) -> None:
    register(client, "def step(r):\n    raise ValueError('\\udc80')\nGB('StreamReader').foreach(step).register('in')")
    for number in range(2):
        client.xadd("in", {"n": number})
    counts = eventually(lambda: data(client) if data(client)["numFailures"] == 2 else None)
    assert "ValueError: \\udc80" in counts["lastError"]
    eventually(lambda: client.xpending("in", GROUP)["pending"] == 0)


def test_unregistering_stops_reading(client: Any) -> None:
    register(client, COLLECT % "prefix='in'")
    client.xadd("in", {"n": 1})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1"])
    eventually(lambda: client.xlen("in") == 0)
    (entry,) = client.execute_command("RG.DUMPREGISTRATIONS")
    client.execute_command("RG.UNREGISTER", entry[1])
    client.xadd("in", {"n": 2})
    register(client, COLLECT % "prefix='other'")
    client.xadd("other", {"n": 3})
    eventually(lambda: client.lrange("seen", 0, -1) == ["1", "3"])
    assert client.xlen("in") == 1


def test_a_stream_is_read_again_after_the_server_refused_writes(client: Any, shared_shard: Server) -> None:
    """The worker must retry by itself, because no later entry wakes it."""
    register(client, COLLECT % "prefix='in:*', batch=100, duration=5000")
    client.xadd("in:one", {"n": 1})
    eventually(lambda: client.xpending("in:one", GROUP)["pending"] == 1, ignore=redis.ResponseError)
    client.config_set("min-replicas-to-write", 1)
    try:
        eventually(lambda: "could not be read, and is read again: NOREPLICAS" in shared_shard.output())
    finally:
        client.config_set("min-replicas-to-write", 0)
    eventually(lambda: client.lrange("seen", 0, -1) == ["1"])
    eventually(lambda: client.xlen("in:one") == 0)
