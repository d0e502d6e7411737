"""Commands that show and end executions and sessions, on one shard."""

from __future__ import annotations

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute, pairs

pytestmark = pytest.mark.one_server("the worker stores executions")

SLOW = "async def slow(r):\n    await asyncio.sleep(30)\nGB('ShardsIDReader').map(slow).run()"


@pytest.fixture(scope="module")
def shard(shared_shard: Server) -> Server:
    return shared_shard


def test_a_plan_is_shown_with_its_durations(shard: Server) -> None:
    script = """
async def slow(r):
    await asyncio.sleep(1)
    return 1 // (r - 1)
GB('PythonReader').map(slow).filter(bool).run(lambda: iter([1, 2]))
"""
    execution_id = execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING")
    assert execute(shard, "RG.GETRESULTSBLOCKING", execution_id)[0] == ["1"]
    for where in ((), ("SHARD",), ("CLUSTER",)):
        (entry,) = execute(shard, "RG.GETEXECUTION", execution_id, *where)
        plan = pairs(pairs(entry)["execution_plan"])
        assert (plan["status"], plan["results"], len(plan["errors"])) == ("done", 1, 1)
        assert 950 <= plan["total_duration"] < 900_000
        steps = [pairs(step) for step in plan["steps"]]
        assert [(step["type"], step["name"]) for step in steps] == [
            *(("map", "slow"), ("filter", "bool")),
            *(("map", "str"), ("collect", "")),
        ]
        assert 950 <= steps[0]["duration"] <= plan["total_duration"]
        # the read duration excludes the time after the last record
        assert plan["read_duration"] + 950 <= plan["total_duration"]
    with pytest.raises(redis.ResponseError, match="expected SHARD or CLUSTER"):
        execute(shard, "RG.GETEXECUTION", execution_id, "GALAXY")
    assert execute(shard, "RG.DROPEXECUTION", execution_id) == "OK"
    for command in ("RG.GETEXECUTION", "RG.GETRESULTS", "RG.GETRESULTSBLOCKING"):
        with pytest.raises(redis.ResponseError, match="execution plan does not exist"):
            execute(shard, command, execution_id)
    for command in ("RG.DROPEXECUTION", "RG.ABORTEXECUTION"):
        with pytest.raises(redis.ResponseError, match="execution does not exist"):
            execute(shard, command, execution_id)


def test_an_execution_that_runs_is_aborted(shard: Server) -> None:
    execution_id = execute(shard, "RG.PYEXECUTE", SLOW, "UNBLOCKING")
    eventually(lambda: "running" in str(execute(shard, "RG.GETEXECUTION", execution_id)))
    with pytest.raises(redis.ResponseError, match="execution is still running"):
        execute(shard, "RG.GETRESULTS", execution_id)
    with pytest.raises(redis.ResponseError, match="can not drop a not yet finished execution, abort it first"):
        execute(shard, "RG.DROPEXECUTION", execution_id)
    with Pending(shard, "RG.GETRESULTSBLOCKING", execution_id) as waiting:
        assert execute(shard, "RG.ABORTEXECUTION", execution_id) == "OK"
        assert b"execution was aborted" in waiting.reply()
    assert pairs(pairs(execute(shard, "RG.GETEXECUTION", execution_id)[0])["execution_plan"])["status"] == "aborted"


def test_a_client_that_waits_for_a_run_gets_the_error_of_an_abort(shard: Server) -> None:
    def running() -> list[str]:
        return [entry[1] for entry in execute(shard, "RG.DUMPEXECUTIONS") if entry[3] == "running"]

    with Pending(shard, "RG.PYEXECUTE", SLOW) as waiting:
        (execution_id,) = eventually(running)
        execute(shard, "RG.ABORTEXECUTION", execution_id)
        assert b"execution was aborted" in waiting.reply()
    script = SLOW.replace("ShardsIDReader", "CommandReader").replace("run()", "register(trigger='slow')")
    execute(shard, "RG.PYEXECUTE", script)
    with Pending(shard, "RG.TRIGGER", "slow") as waiting:
        (execution_id,) = eventually(running)
        execute(shard, "RG.ABORTEXECUTION", execution_id)
        assert b"-ERR execution was aborted" in waiting.reply()
    assert execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()") == [["1"], []]


def test_settings_for_the_history_and_for_tracebacks(shard: Server) -> None:
    execute(shard, "RG.CONFIGSET", "MaxExecutions", 3, "PythonAttemptTraceback", 0)
    try:
        for _ in range(6):
            _, errors = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: 1 // 0).run()")
            assert errors == ["Error type: <class 'ZeroDivisionError'>, Value: integer division or modulo by zero"]
        for _ in range(6):
            execution_id = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()", "UNBLOCKING")
            execute(shard, "RG.GETRESULTSBLOCKING", execution_id)
        of_scripts = [entry for entry in execute(shard, "RG.DUMPEXECUTIONS") if not entry[5]]
        assert len(of_scripts) == 3
    finally:
        execute(shard, "RG.CONFIGSET", "MaxExecutions", 1000, "PythonAttemptTraceback", 1)
    flat = "def f(r):\n    raise flat_error('told as it is')\nGB('ShardsIDReader').map(f).run()"
    assert execute(shard, "RG.PYEXECUTE", flat) == [[], ["told as it is"]]


def test_a_script_that_only_registers_runs_nothing(shard: Server) -> None:
    script = """
GB('CommandReader').register(trigger='registered_only')
GB('ShardsIDReader').foreach(lambda r: execute('SET', 'ran', '1')).run()
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "only", "NO_RUN", "UNBLOCKING") == "OK"
    execute(shard, "RG.TRIGGER", "registered_only")
    assert execute(shard, "GET", "ran") is None
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "only", "UPGRADE") == "OK"
    assert execute(shard, "GET", "ran") == "1"


def test_sessions_are_shown_as_dead_or_live(shard: Server) -> None:
    script = """
async def slow(r):
    await asyncio.sleep(30)
GB('CommandReader').map(slow).register(trigger='wait')
"""
    words = ("ID", "told", "DESCRIPTION", "a test", "UPGRADE", "REQUIREMENTS", "numpy")
    assert execute(shard, "RG.PYEXECUTE", script, *words) == "OK"
    (session,) = map(pairs, execute(shard, "RG.PYDUMPSESSIONS", "SESSIONS", "told"))
    assert list(session) == [
        *("ID", "sessionDescription", "refCount", "linked", "dead"),
        *("requirementInstallationNeeded", "requirements", "registrations"),
    ]
    assert (session["sessionDescription"], session["linked"], session["dead"]) == ("a test", "primary", 0)
    assert session["requirements"] == ["numpy"]
    (full,) = map(pairs, execute(shard, "RG.PYDUMPSESSIONS", "VERBOSE", "SESSIONS", "told"))
    assert pairs(full["registrations"][0])["id"] == session["registrations"][0]
    assert pairs(full["requirements"][0])["Name"] == "numpy"
    with Pending(shard, "RG.TRIGGER", "wait"):
        eventually(lambda: pairs(execute(shard, "RG.PYDUMPSESSIONS", "SESSIONS", "told")[0])["refCount"] == 2)
        assert execute(shard, "RG.PYDUMPSESSIONS", "DEAD") == []
        assert execute(shard, "RG.PYEXECUTE", script.replace("30", "31"), *words) == "OK"
        (dead,) = map(pairs, execute(shard, "RG.PYDUMPSESSIONS", "DEAD"))
        assert (dead["ID"], dead["linked"], dead["dead"]) == ("told", "None", 1)
    with pytest.raises(redis.ResponseError, match="session does not exists: nobody"):
        execute(shard, "RG.PYDUMPSESSIONS", "SESSIONS", "nobody")
    (sourced,) = map(pairs, execute(shard, "RG.PYDUMPSESSIONS", "SOURCES", "SESSIONS", "told"))
    assert sourced["source"] == script.replace("30", "31")
    with pytest.raises(redis.ResponseError, match="expected VERBOSE, DEAD, SOURCES or SESSIONS"):
        execute(shard, "RG.PYDUMPSESSIONS", "LOUD")


def test_several_registrations_of_functions_are_all_kept(shard: Server) -> None:
    script = """
def more(r):
    for name in ('one', 'two', 'three'):
        GB('CommandReader').map(lambda r: r[0]).register(trigger=name, mode='async_local')
GB('CommandReader').map(more).register(trigger='more')
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "growing") == "OK"
    execute(shard, "RG.TRIGGER", "more")
    for name in ("one", "two", "three"):
        eventually(lambda name=name: execute(shard, "RG.TRIGGER", name) == [name], ignore=redis.ResponseError)  # type: ignore[misc]


def test_a_replaced_script_cannot_register_functions(shard: Server) -> None:
    script = """
async def wait(r):
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.02)
    GB('CommandReader').register(trigger='too-late')
    await asyncio.sleep(0.05)
GB('CommandReader').foreach(wait).register(trigger='holding', mode='async_local')
"""
    assert execute(shard, "RG.PYEXECUTE", script, "ID", "old") == "OK"
    with Pending(shard, "RG.TRIGGER", "holding") as waiting:
        eventually(lambda: pairs(execute(shard, "RG.PYDUMPSESSIONS", "SESSIONS", "old")[0])["refCount"] == 2)
        newer = "GB('CommandReader').register(trigger='newer')"
        assert execute(shard, "RG.PYEXECUTE", newer, "ID", "new", "REPLACE_WITH", "old") == "OK"
        before = execute(shard, "RG.DUMPREGISTRATIONS")
        execute(shard, "SET", "go", 1)
        waiting.reply()
    assert execute(shard, "RG.DUMPREGISTRATIONS") == before
    eventually(lambda: "session old has been replaced or unregistered" in shard.log.read_text())
