"""Futures, coroutines, kept executions and timers of functions, on a real server."""

from __future__ import annotations

import signal
import time

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute

pytestmark = pytest.mark.one_server("futures exist only in the worker")

SCRIPT = """
import threading
kept = []
def twice(r):
    gearsFuture()
    gearsFuture()
def continued_twice(r):
    future = gearsFuture()
    future.continueRun('once')
    try:
        future.continueRun('twice')
    except Exception as error:
        execute('SET', 'told', str(error))
    return future
def forgotten(r):
    return gearsFuture()
def failed(r):
    future = gearsFuture()
    future.continueFailed('not today')
    return future
async def one_after_the_other(r):
    found = []
    for value in (1, 2):
        future = gearsFuture()
        threading.Timer(0.01, future.continueRun, (value,)).start()
        found.append(await future)
    return found
async def late(value):
    return value
async def delayed(r):
    began = loop.time()
    value = await runCoroutine(late('late'), delay=0.1)
    return [value, loop.time() - began > 0.09]
async def given_future(r):
    future = createFuture()
    runCoroutine(late('given'), future)
    return await future
async def failed_future(r):
    future = createFuture()
    setFutureException(future, 'as told')
    return await future
def names(r):
    return [isAsyncAllow(), isInAtomicBlock()]
async def nested_run(r):
    results, errors = await GB('ShardsIDReader').map(lambda x: 'inner').run()
    return results + errors
def left_out(r):
    told = []
    for call in (callNext, lambda: registerTE(1, late, 'key'), getCommand, gearsCtx):
        try:
            call()
        except Exception as error:
            told.append(str(error))
    return told
from redisgears import callNext, getCommand
for f in (twice, continued_twice, forgotten, failed, one_after_the_other, delayed, given_future, failed_future, names,
          nested_run, left_out):
    GB('CommandReader').map(f).register(trigger=f.__name__, mode='async_local', convertToStr=False)
"""


@pytest.fixture(scope="module")
def shard(shared_shard: Server) -> Server:
    assert execute(shared_shard, "RG.PYEXECUTE", SCRIPT, "ID", "futures") == "OK"
    return shared_shard


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ("twice", "Can not create async record twice on the same step"),
        ("forgotten", "Async record did not called continue"),
        ("failed", "not today"),
        ("failed_future", "as told"),
    ],
)
def test_errors(shard: Server, trigger: str, message: str) -> None:
    with pytest.raises(redis.ResponseError, match=message):
        execute(shard, "RG.TRIGGER", trigger)


def test_a_future_can_be_continued_only_once(shard: Server) -> None:
    assert execute(shard, "RG.TRIGGER", "continued_twice") == ["once"]
    assert execute(shard, "GET", "told") == "Can not continue with the same future twice"


def test_a_future_can_be_created_in_steps_only(shard: Server) -> None:
    with pytest.raises(redis.ResponseError, match="Future object can only be created inside certain execution steps"):
        execute(shard, "RG.PYEXECUTE", "gearsFuture()")


@pytest.mark.parametrize(
    ("trigger", "result"),
    [
        ("one_after_the_other", [1, 2]),
        ("delayed", ["late", 1]),
        ("given_future", "given"),
        ("names", [1, 0]),
        ("nested_run", ["inner"]),
    ],
)
def test_results(shard: Server, trigger: str, result: object) -> None:
    assert execute(shard, "RG.TRIGGER", trigger) == [result]


def test_unsupported_names_say_what_to_use(shard: Server) -> None:
    (told,) = execute(shard, "RG.TRIGGER", "left_out")
    hints = ("call_next is left out: ", "registerTE with a key is left out", "CommandHook ctx", "GearsBuilder")
    assert [hint in text for text, hint in zip(told, hints, strict=True)] == [True] * 4


def test_the_client_of_a_miss_waits_for_the_coroutines_of_its_execution(shard: Server) -> None:
    script = """
async def answer(value):
    await asyncio.sleep(0.1)
    override_reply(value)
def on_miss(r):
    runCoroutine(answer('coroutine')) if r['key'] == 'm:c' else None
    if r['key'] == 'm:s':
        session = getGearsSession()
        runCoroutine(later(session))
async def later(session):
    setGearsSession(None)
    await asyncio.sleep(0.1)
    with GearsSession(session):
        override_reply('session')
GB('KeysReader').foreach(on_miss).register('m:*', eventTypes=['keymiss'], commands=['get'], mode='async_local')
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "misses") == "OK"
    assert execute(shard, "GET", "m:c") == "coroutine"
    assert execute(shard, "GET", "m:s") == "session"
    assert execute(shard, "GET", "m:n") is None


def test_readers_of_generators(shard: Server) -> None:
    execute(shard, "MSET", "kor:1", "1", "kor:2", "2", "other", "3")
    script = "GB('PythonReader').run(createKeysOnlyReader('kor:*', count=1))"
    results, errors = execute(shard, "RG.PYEXECUTE", script)
    assert (sorted(results), errors) == (["kor:1", "kor:2"], [])
    script = "GB('KeysOnlyReader').run(patternGenerator=lambda: ('kor:1', True), count=2)"
    assert execute(shard, "RG.PYEXECUTE", script) == [["kor:1"], []]
    assert execute(shard, "RG.PYEXECUTE", "GB('PythonReader').run(shardReaderCallback)") == [["1"], []]


def test_a_coroutine_outlives_the_script_that_started_it(shard: Server) -> None:
    script = """
async def later():
    await asyncio.sleep(0.05)
    execute('SET', 'outlived', str(await GB('ShardsIDReader').run()))
runCoroutine(later())
"""
    with shard.client() as client:
        assert client.execute_command("RG.PYEXECUTE", script) == "OK"
        eventually(lambda: client.get("outlived") == "[['1'], []]")


def test_a_thread_of_a_function_starts_runs_on_the_loop(shard: Server) -> None:
    script = """
import threading
def in_thread(r):
    future = gearsFuture()
    def work():
        try:
            GB('ShardsIDReader').run()
        except Exception as error:
            future.continueFailed(error)
    threading.Thread(target=work).start()
    return future
GB('CommandReader').map(in_thread).register(trigger='run-in-thread')
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "threads") == "OK"
    with pytest.raises(redis.ResponseError, match="use runCoroutine"):
        execute(shard, "RG.TRIGGER", "run-in-thread")
    assert "created" not in str(execute(shard, "RG.DUMPEXECUTIONS"))


def test_timers_end_with_their_session(shard: Server) -> None:
    script = """
def tick():
    execute('INCR', 'ticks')
async def slow_tick():
    await asyncio.sleep(0)
    execute('INCR', 'slow')
    raise ValueError('once more')
registerTE(0.02, tick)
registerTE(0.02, slow_tick)
GB('CommandReader').map(lambda r: 1).register(trigger='timed')
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "timed") == "OK"
    eventually(lambda: int(execute(shard, "GET", "ticks") or 0) >= 3)
    eventually(lambda: int(execute(shard, "GET", "slow") or 0) >= 3)
    (session,) = execute(shard, "RG.PYDUMPSESSIONS", "SESSIONS", "timed")
    assert session[5] == 3
    (registration,) = session[15]
    execute(shard, "RG.UNREGISTER", registration)
    eventually(lambda: "timed" not in str(execute(shard, "RG.PYDUMPSESSIONS")))

    def still() -> bool:
        ticks = execute(shard, "GET", "ticks")
        time.sleep(0.2)
        return bool(execute(shard, "GET", "ticks") == ticks)

    eventually(still)  # repeated, because a call of the timer may still run
    with pytest.raises(redis.ResponseError, match="registerTE needs a number of seconds of at least"):
        execute(shard, "RG.PYEXECUTE", "registerTE(0, print)")


def test_a_script_without_registrations_replaces_its_timers(shard: Server) -> None:
    for name in ("older", "newer"):
        script = f"registerTE(0.02, lambda: execute('INCR', '{name}'))"
        assert execute(shard, "RG.PYEXECUTE", script, "ID", "ticking", "UPGRADE") == "OK"
        eventually(lambda name=name: execute(shard, "GET", name))  # type: ignore[misc]

    def replaced() -> bool:
        execute(shard, "DEL", "older")
        time.sleep(0.2)
        return execute(shard, "GET", "older") is None

    eventually(replaced)  # repeated, because a call of the timer may still run
    assert execute(shard, "RG.PYEXECUTE", "", "ID", "ticking", "UPGRADE") == "OK"
    assert "ticking" not in str(execute(shard, "RG.PYDUMPSESSIONS"))


def test_timers_of_on_registered_start_again_with_the_worker(shard: Server) -> None:
    script = """
def started():
    registerTE(0.02, lambda: execute('INCR', 'beats'))
GB('CommandReader').map(lambda r: 1).register(trigger='beating', onRegistered=started)
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "beating") == "OK"
    eventually(lambda: int(execute(shard, "GET", "beats") or 0) >= 2)
    shard.signal_worker(signal.SIGKILL)
    execute(shard, "SET", "beats", 0)
    eventually(lambda: int(execute(shard, "GET", "beats") or 0) >= 2)
