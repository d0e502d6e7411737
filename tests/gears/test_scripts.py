"""`RG.PYEXECUTE` on a real server: runs, registrations, sessions, errors, names, and a killed worker."""

from __future__ import annotations

import ast
import signal

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute, pairs

ECHO = "GB('CommandReader').map(lambda r: r[1:]).register(trigger='echo', convertToStr=False)"


def test_runs_answer_results_and_errors(shard: Server) -> None:
    with shard.client() as client:
        client.mset({"a:1": "x", "a:2": "y"})
        client.hset("h", mapping={"f": "v"})
        client.execute_command("SET", "bin", b"\xff\xfe")
    results, errors = execute(shard, "RG.PYEXECUTE", "GB().map(lambda r: (r['key'], r['value'], r['type'])).run('*')")
    assert errors == []
    assert sorted(results) == [
        "('a:1', 'x', 'string')",
        "('a:2', 'y', 'string')",
        "('bin', bytearray(b'\\xff\\xfe'), 'string')",
        "('h', {'f': 'v'}, 'hash')",
    ]
    assert execute(shard, "RG.PYEXECUTE", "GB().count().run('a:*')") == [["2"], []]
    assert execute(shard, "RG.PYEXECUTE", "GB('KeysOnlyReader').filter(lambda k: k == 'h').run()") == [["h"], []]
    assert execute(shard, "RG.PYEXECUTE", "GB().run('a:1', noScan=True, readValue=False)")[0] == [
        "{'key': 'a:1', 'event': None}"
    ]
    assert execute(shard, "RG.PYEXECUTE", "GB('PythonReader').run(lambda: iter([1, 2]))") == [["1", "2"], []]
    assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: hashtag()).run()") == [["06S"], []]


def test_script_errors_are_the_list_of_traceback_lines(shard: Server) -> None:
    with pytest.raises(redis.ResponseError) as caught:
        execute(shard, "RG.PYEXECUTE", "def f():\n    1/0\nf()")
    lines = ast.literal_eval(str(caught.value))
    assert lines[-1] == "ZeroDivisionError: division by zero\n"
    assert "line 2, in f" in lines[-2]
    with pytest.raises(redis.ResponseError, match="invalid syntax"):
        execute(shard, "RG.PYEXECUTE", "1 +")
    results, errors = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: execute('NOSUCH')).run()")
    assert results == []
    assert "unknown command" in errors[0]


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "import sys; sys.exit()", "raise KeyboardInterrupt"])
def test_a_script_cannot_end_the_worker(shard: Server, leave: str) -> None:
    number = shard.field("worker_number")
    with pytest.raises(redis.ResponseError):
        execute(shard, "RG.PYEXECUTE", leave)
    script = (
        f"import asyncio\nasync def f(r):\n    async def g():\n        {leave}\n    await asyncio.create_task(g())\n"
    )
    execute(shard, "RG.PYEXECUTE", script + "GB('ShardsIDReader').map(f).run()")
    assert shard.field("worker_number") == number


def test_sessions_are_named_upgraded_and_replaced(shard: Server) -> None:
    assert execute(shard, "RG.PYEXECUTE", ECHO, "ID", "one", "DESCRIPTION", "says it again") == "OK"
    assert execute(shard, "RG.TRIGGER", "echo", "a", "b") == [["a", "b"]]
    with pytest.raises(redis.ResponseError, match="Session one already exists"):
        execute(shard, "RG.PYEXECUTE", ECHO, "ID", "one")
    with pytest.raises(redis.ResponseError, match="trigger already registered: echo"):
        execute(shard, "RG.PYEXECUTE", ECHO, "ID", "two")
    with pytest.raises(redis.ResponseError, match="trigger already registered in this session: twice"):
        execute(shard, "RG.PYEXECUTE", "GB('CommandReader').register(trigger='twice');" * 2, "ID", "two")
    second = ECHO.replace("r[1:]", "'second'")
    assert execute(shard, "RG.PYEXECUTE", second, "ID", "one", "UPGRADE") == "OK"
    assert execute(shard, "RG.TRIGGER", "echo") == ["second"]
    with pytest.raises(redis.ResponseError, match="Can not replace with none, session does not exists"):
        execute(shard, "RG.PYEXECUTE", ECHO, "ID", "two", "REPLACE_WITH", "none")
    assert execute(shard, "RG.PYEXECUTE", ECHO, "ID", "two", "REPLACE_WITH", "one") == "OK"
    (session,) = execute(shard, "RG.PYDUMPSESSIONS")
    assert session[1] == "two"


def test_a_refused_upgrade_leaves_the_old_version_and_its_state(shard: Server) -> None:
    script = """
n = [0]
def count(r):
    n[0] += 1
    return n[0]
GB('CommandReader').map(count).register(trigger='count', convertToStr=False)
"""
    execute(shard, "RG.PYEXECUTE", script, "ID", "one")
    execute(shard, "RG.PYEXECUTE", ECHO, "ID", "two")
    hook = "GB().register(prefix='x', commands=['set'], eventTypes=['keymiss'])"
    assert execute(shard, "RG.TRIGGER", "count") == [1]
    for calls, (refused, told) in enumerate(((ECHO, "trigger already registered: echo"), (hook, "Can not hook a")), 2):
        with pytest.raises(redis.ResponseError, match=told):
            execute(shard, "RG.PYEXECUTE", script + refused, "ID", "one", "UPGRADE")
        assert execute(shard, "RG.TRIGGER", "count") == [calls]


def test_requirements_must_be_installed(shard: Server) -> None:
    assert execute(shard, "RG.PYEXECUTE", "1", "REQUIREMENTS", "numpy", "redis>=5") == "OK"
    with pytest.raises(redis.ResponseError, match="Could not satisfy requirements: install 'no-such-thing'"):
        execute(shard, "RG.PYEXECUTE", "1", "REQUIREMENTS", "no-such-thing==3")


def test_trigger_error_is_one_line(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", "GB('CommandReader').map(lambda r: 1 // 0).register(trigger='bad')", "ID", "s")
    with pytest.raises(redis.ResponseError, match=r"ZeroDivisionError: .* \(<script s>:1 in <lambda>\)"):
        execute(shard, "RG.TRIGGER", "bad")


def test_events_are_filtered_by_key_type(shard: Server) -> None:
    script = """
GB().foreach(lambda r: execute('RPUSH', 'seen', str(sorted(r.items())))).register(
    prefix='ev:*', keyTypes=['hash'], mode='async_local')
GB().foreach(lambda r: execute('RPUSH', 'gone', str(r['type']) + str(r['value']) + r['event'])).register(
    prefix='ev:1', eventTypes=['DEL'], mode='async_local')
"""
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    with shard.client() as client:
        client.set("ev:1", "text")
        client.hset("ev:2", mapping={"f": "v"})
        assert eventually(lambda: client.lrange("seen", 0, -1)) == [
            "[('event', 'hset'), ('key', 'ev:2'), ('type', 'hash'), ('value', {'f': 'v'})]"
        ]
        client.delete("ev:1")
        assert eventually(lambda: client.lrange("gone", 0, -1)) == ["emptyNonedel"]

        def counted() -> list[int]:
            return [entry[7][3] for entry in execute(shard, "RG.DUMPREGISTRATIONS")]

        # the module does not count events that the worker reports as skipped for their key type
        eventually(lambda: counted() == [1, 1])


def test_an_event_that_kills_its_workers_fails_alone(shard: Server) -> None:
    script = """
import os
def run(record):
    if record['key'] == 'ev:2':
        os._exit(1)
GB().foreach(run).register(prefix='ev:*', mode='async_local')
"""
    execute(shard, "RG.PYEXECUTE", script)
    with shard.client() as client:
        pipe = client.pipeline()
        pipe.set("ev:1", "runs").set("ev:2", "kills").execute()

    def counted() -> tuple[int, int]:
        (entry,) = execute(shard, "RG.DUMPREGISTRATIONS")
        found = pairs(entry[7])
        return found["numSuccess"], found["numAborted"]

    eventually(lambda: sum(counted()) == 2)
    assert counted() == (1, 1)


def test_registrations_survive_the_worker_and_on_registered_runs_again(shard: Server) -> None:
    script = """
def started():
    execute('INCR', 'started')
n = [0]
def count(r):
    n[0] += 1
    return n[0]
GB('CommandReader').map(count).register(trigger='count', convertToStr=False, onRegistered=started)
GB('CommandReader').map(lambda r: n[0]).register(trigger='read', convertToStr=False)
"""
    execute(shard, "RG.PYEXECUTE", script)
    execute(shard, "RG.TRIGGER", "count")
    assert execute(shard, "RG.TRIGGER", "read") == [1]
    names = [entry[1] for entry in execute(shard, "RG.DUMPREGISTRATIONS")]
    execute(shard, "RG.UNREGISTER", names[1])
    shard.signal_worker(signal.SIGKILL)
    eventually(lambda: execute(shard, "GET", "started") == "2")
    eventually(lambda: execute(shard, "RG.TRIGGER", "count") == [1], ignore=redis.ResponseError)
    assert [entry[1] for entry in execute(shard, "RG.DUMPREGISTRATIONS")] == names[:1]
    with pytest.raises(redis.ResponseError, match="subcommand not found"):
        execute(shard, "RG.TRIGGER", "read")
    execute(shard, "RG.UNREGISTER", names[0])
    assert execute(shard, "RG.DUMPREGISTRATIONS") == []
    fresh = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: asyncio.sleep(0)).run()", "UNBLOCKING")
    assert fresh not in names


def test_unregistered_registrations_do_not_reappear(shard: Server) -> None:
    lines = [f"GB('CommandReader').map(lambda r: 1).register(trigger='t{number}')" for number in range(8)]
    with shard.client() as client:
        client.execute_command("RG.PYEXECUTE", "\n".join(lines))
        for entry in client.execute_command("RG.DUMPREGISTRATIONS"):
            client.execute_command("RG.UNREGISTER", entry[1])
        # a job arrives after earlier notices, so the worker has all notices now
        assert client.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').count().run()") == [["1"], []]
        assert client.execute_command("RG.DUMPREGISTRATIONS") == []
        assert client.execute_command("RG.PYEXECUTE", "\n".join(lines)) == "OK"


def test_a_function_cannot_wait_for_its_own_worker(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", ECHO)
    script = "GB('ShardsIDReader').map(lambda r: execute('RG.PYEXECUTE', 'GB()')).run()"
    _, errors = execute(shard, "RG.PYEXECUTE", script)
    assert "can not run inside a function" in errors[0]


def test_an_error_that_cannot_be_encoded_is_reported(shard: Server) -> None:
    script = (
        "def f(x):\n raise ValueError('\\ud800')\nGB('CommandReader').map(f).register(trigger='t', mode='async_local')"
    )
    execute(shard, "RG.PYEXECUTE", script)
    with pytest.raises(redis.ResponseError, match=r"ValueError: \\ud800"):
        execute(shard, "RG.TRIGGER", "t")


# Each expression must be true in scripts and in functions, without any import.
EXPRESSIONS = {
    "redisgears": "redisgears.executeCommand('ECHO', 'x') == 'x' and redisgears.getMyHashTag() is not None",
    "rg": "rg.execute('ECHO', 'x') == redisgears.executeCommand('ECHO', 'x')",
    "copy": "copy.deepcopy([[1]]) == [[1]]",
    "io": "io.StringIO('a').read() == 'a'",
    "time": "time.time() > 0",
    "Thread": "Thread(target=lambda: None).is_alive() is False",
    "Future": "issubclass(Future, asyncio.Future)",
    "asyncio": "asyncio.iscoroutinefunction(print) is False",
    "redisAI": "callable(redisAI.createModelRunner)",
    "GB": "GB is GearsBuilder is redisgears.GearsBuilder",
    "executeCommand": "executeCommand('ECHO', 'x') == execute('ECHO', 'x')",
    "atomic": "atomic().__enter__ is not None and isInAtomicBlock() is False and redgears_names",
    "hashtag": "hashtag() == redgears('getMyHashTag')() == '06S'",
    "log": "log('x') is None and Log('x', 'debug') is None",
    "configGet": "configGet('none') is None and ConfigGet('none') is None",
    "gearsConfigGet": "gearsConfigGet('none', 7) == 7 and GearsConfigGet('none', 7) == 7",
    "flat_error": "isinstance(flat_error('x'), redgears('GearsError')) and str(redgears('flatError')('x')) == 'x'",
    "isAsyncAllow": "isAsyncAllow() and redgears('isAsyncAllow')()",
    "getGearsSession": "GearsSession(getGearsSession()).__enter__ is not None and setGearsSession is not None",
    "createFuture": "isinstance(createFuture(), Future)",
    "setFutureResults": "setFutureResults(createFuture(), 1) is None",
    "setFutureException": "setFutureException(createFuture(), 'x') is None",
    "runCoroutine": "runCoroutine(asyncio.sleep(0)) is not None",
    "loop": "loop.time() > 0",
    "createKeysOnlyReader": "callable(createKeysOnlyReader('*'))",
    "shardReaderCallback": "next(shardReaderCallback()) == '1'",
    "registerGearsThread": "registerGearsThread() is None",
    "left out": "refused('gearsCtx') and refused('call_next') and refused('get_command')",
    "futures": "issubclass(GearsFuture, object) and callable(gearsFuture) and callable(registerTE)",
    "override_reply": "refused('override_reply', 1) and refused('overrideReply', 1)",
}
HELPERS = """
def redgears(name):
    return getattr(redgears_module(), name)
def redgears_module():
    return redgears_names
redgears_names = redisgears
def refused(name, *arguments):
    try:
        getattr(redisgears, name)(*arguments)
    except redisgears.GearsError:
        return callable(globals().get(name, print))
    return False
"""


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_script_uses_each_name_in_its_body_and_in_a_function(shard: Server, name: str) -> None:
    expression = EXPRESSIONS[name]
    script = f"""{HELPERS}
found = bool({expression})
GB('ShardsIDReader').map(lambda _: [found, bool({expression})]).run()
"""
    results, errors = execute(shard, "RG.PYEXECUTE", script)
    assert (results, errors) == (["[True, True]"], [])


def test_a_stored_function_finds_the_names_after_a_restart(shard: Server) -> None:
    body = "bool(" + " and ".join(f"({expression})" for expression in EXPRESSIONS.values()) + ")"
    script = f"{HELPERS}\nGB('CommandReader').map(lambda _: {body}).register(trigger='globals', mode='async_local')"
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    shard.signal_worker(9)
    shard.wait_ready()
    assert execute(shard, "RG.TRIGGER", "globals") == ["True"]
