"""The hooked read: a function computes a missing key, and the client gets the function's answer. Also atomic blocks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.gears.conftest import LEASE_MS
from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute, pairs

SHORT_LEASE_MS = 4000
"""The lease of the block that exceeds it. The block must run one command within this time."""
ANSWER = """
import asyncio
calls = [0]
async def answer(record):
    calls[0] += 1
    await asyncio.sleep(0.01)
    execute('SET', record['key'], 'stored')
    override_reply('computed %d' % calls[0])
GB('KeysReader').map(answer).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def registration(server: Server) -> dict[str, Any]:
    (entry,) = execute(server, "RG.DUMPREGISTRATIONS")
    return pairs(entry[7])


def test_first_read_is_computed_and_the_second_is_plain(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", ANSWER)
    assert execute(shard, "GET", "ask a question: with, spaces 'and' ünïcode?") == "computed 1"
    assert execute(shard, "GET", "ask a question: with, spaces 'and' ünïcode?") == "stored"
    assert registration(shard)["numSuccess"] == 1
    assert execute(shard, "GET", "other") is None


def test_many_clients_at_once(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", ANSWER)
    answers: list[str] = []

    def ask(number: int) -> None:
        with shard.client() as client:
            answers.extend(client.get(f"ask:{number}:{n}") for n in range(20))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    assert all(answer.startswith("computed") for answer in answers)
    assert registration(shard)["numSuccess"] == 160


def test_a_failing_function_leaves_the_servers_own_reply(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", ANSWER.replace("calls[0] += 1", "1 / 0"))
    assert execute(shard, "GET", "ask") is None
    found = registration(shard)
    assert found["numFailures"] == 1
    assert found["lastError"].startswith("ERR ZeroDivisionError")


def test_status_and_error_replies(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", ANSWER.replace("'computed %d' % calls[0]", "'-NOTFOUND no such document'"))
    with pytest.raises(redis.ResponseError, match="NOTFOUND no such document"):
        execute(shard, "GET", "ask")


def test_a_client_that_disconnects_cancels_the_function_of_its_read(shard: Server) -> None:
    script = """
import asyncio
async def slow(record):
    try:
        execute('SET', 'begun', 1)
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        execute('SET', 'cancelled', record['key'])
        raise
GB('KeysReader').map(slow).register(prefix='slow*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""
    execute(shard, "RG.PYEXECUTE", script)
    with Pending(shard, "GET", "slow:1"):
        eventually(lambda: execute(shard, "GET", "begun"))
    assert eventually(lambda: execute(shard, "GET", "cancelled")) == "slow:1"


def test_atomic_block_reads_and_writes(shard: Server) -> None:
    script = """
def increment(r):
    with atomic():
        assert isInAtomicBlock()
        n = int(execute('GET', 'n') or 0) + 1
        execute('SET', 'n', n)
    assert not isInAtomicBlock()
    return n
def twice(r):
    with atomic():
        with atomic():
            pass
async def waits(r):
    with atomic():
        await asyncio.sleep(0)
def long(r):
    import time
    with atomic():
        execute('SET', 'kept', 1)
        time.sleep(%s)
def fails(r):
    with atomic():
        execute('INCR', 'word')
for f in (increment, twice, waits, long, fails):
    GB('CommandReader').map(f).register(trigger=f.__name__, convertToStr=False)
"""
    execute(shard, "RG.PYEXECUTE", script % (SHORT_LEASE_MS / 1000 + 0.3))
    assert [execute(shard, "RG.TRIGGER", "increment") for _ in range(3)] == [[1], [2], [3]]
    execute(shard, "SET", "word", "x")
    for trigger, message in (
        ("twice", "Already inside an atomic block"),
        ("waits", "await is not allow inside atomic block"),
        ("long", f"exceeded its lease of {SHORT_LEASE_MS} ms"),
        ("fails", "value is not an integer"),
    ):
        execute(shard, "CONFIG", "SET", "qa.atomic-lease-ms", SHORT_LEASE_MS if trigger == "long" else LEASE_MS)
        with pytest.raises(redis.ResponseError, match=message):
            execute(shard, "RG.TRIGGER", trigger)
        execute(shard, "CONFIG", "SET", "qa.atomic-lease-ms", LEASE_MS)
        assert execute(shard, "RG.TRIGGER", "increment")
    assert execute(shard, "GET", "kept") == "1"


OTHER_THREAD = """
import threading
def count(record):
    told = []
    other = threading.Thread(target=lambda: told.append(execute('ECHO', 'other')))
    with atomic():
        other.start()
        inside = [execute('ECHO', number) for number in range(50)]
    other.join(60)
    return [inside == [str(number) for number in range(50)], told == ['other']]
GB('CommandReader').flatmap(count).register(trigger='count', mode='async_local', convertToStr=False)
"""


def test_other_threads_send_nothing_inside_an_atomic_block(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", OTHER_THREAD)
    for _ in range(5):
        assert execute(shard, "RG.TRIGGER", "count") == [1, 1]
