"""Behaviour that functions of RedisGears rely on, on one shard: waiting steps, commands in functions, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute, pairs


def run(shard: Server, script: str, *options: str) -> Any:
    """The results of a script's run, which must have no errors."""
    results, errors = execute(shard, "RG.PYEXECUTE", script, *options)
    assert errors == []
    return results


def refusal(shard: Server, *command: str) -> str:
    with pytest.raises(redis.ResponseError) as told:
        execute(shard, *command)
    return str(told.value)


def test_futures_of_one_execution_are_continued_in_batches(shard: Server) -> None:
    script = """
batch = []
def gather(record):
    future = gearsFuture()
    batch.append((future, record))
    if len(batch) == 5:
        for waiting, value in batch:
            waiting.continueRun(value * 2)
        batch.clear()
    return future
GB('PythonReader').map(gather).run(lambda: iter(range(10)))
"""
    assert run(shard, script) == [str(2 * number) for number in range(10)]


INSIDE = """
def inside(record):
    return execute(*record[1:])
GB('CommandReader').map(inside).register(trigger='inside', mode='async_local', convertToStr=False)
GB('CommandReader').map(inside).register(trigger='owner', mode='async_local', convertToStr=False, rights='owner')
GB('CommandReader').map(lambda r: 'called ' + r[1]).register(trigger='called', mode='async_local')
async def late(record):
    await asyncio.sleep(0.01)
    return 'late'
GB('CommandReader').map(late).register(trigger='late', mode='async_local')
def in_thread(record):
    future = gearsFuture()
    def work():
        try:
            future.continueRun(execute(*record[1:]))
        except Exception as error:
            future.continueFailed(error)
    Thread(target=work).start()
    return future
GB('CommandReader').map(in_thread).register(trigger='in_thread', mode='async_local', convertToStr=False)
async def in_coroutine(record):
    return execute(*record[1:])
GB('CommandReader').map(in_coroutine).register(trigger='in_coroutine', mode='async_local', convertToStr=False)
async def beside(record):
    return await asyncio.to_thread(execute, *record[1:])
GB('CommandReader').map(beside).register(trigger='beside', mode='async_local', convertToStr=False)
GB('StreamReader').register(prefix='s', mode='async_local')
"""


def test_commands_about_executions_and_registrations_run_inside_functions(shard: Server) -> None:
    assert execute(shard, "RG.PYEXECUTE", INSIDE) == "OK"
    done = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').run()", "UNBLOCKING")
    eventually(lambda: execute(shard, "RG.GETRESULTS", done) == [["1"], []], ignore=redis.ResponseError)
    for way in ("inside", "in_thread", "owner", "in_coroutine", "beside"):
        (listed,) = execute(shard, "RG.TRIGGER", way, "RG.DUMPEXECUTIONS")
        assert done in [entry[1] for entry in listed]
        ((plan,),) = execute(shard, "RG.TRIGGER", way, "RG.GETEXECUTION", done)
        assert plan[3][:2] == ["status", "done"]
        assert execute(shard, "RG.TRIGGER", way, "RG.GETRESULTS", done) == [[["1"], []]]
        assert "subcommand not found" in refusal(shard, "RG.TRIGGER", way, "RG.TRIGGER", "none")
        if way != "in_coroutine":
            assert execute(shard, "RG.TRIGGER", way, "RG.TRIGGER", "called", "x") == [["called x"]]
            assert execute(shard, "RG.TRIGGER", way, "RG.TRIGGER", "late") == [["late"]]
    # the trigger's coroutine needs the loop that this command would block
    for trigger in ("called", "late"):
        assert "asyncio.to_thread" in refusal(shard, "RG.TRIGGER", "in_coroutine", "RG.TRIGGER", trigger)
    assert execute(shard, "RG.TRIGGER", "inside", "RG.DROPEXECUTION", done) == ["OK"]
    assert "execution does not exist" in refusal(shard, "RG.TRIGGER", "inside", "RG.DROPEXECUTION", done)
    stream = next(entry[1] for entry in execute(shard, "RG.DUMPREGISTRATIONS") if entry[3] == "StreamReader")
    for way in ("inside", "owner"):
        assert execute(shard, "RG.TRIGGER", way, "RG.PAUSEREGISTRATIONS", stream) == ["OK"]
        assert execute(shard, "RG.TRIGGER", way, "RG.UNPAUSEREGISTRATIONS", stream) == ["OK"]
    assert execute(shard, "RG.TRIGGER", "owner", "RG.UNREGISTER", stream) == ["OK"]
    assert "is not registered" in refusal(shard, "RG.TRIGGER", "inside", "RG.UNREGISTER", stream)


def test_commands_inside_functions_have_the_callers_rights(shard: Server) -> None:
    assert execute(shard, "RG.PYEXECUTE", INSIDE) == "OK"
    stream = next(entry[1] for entry in execute(shard, "RG.DUMPREGISTRATIONS") if entry[3] == "StreamReader")
    execute(shard, "ACL", "SETUSER", "tenant", "on", ">p", "~*", "+rg.trigger")
    with shard.client(username="tenant", password="p") as tenant:
        refused = (
            ("RG.DUMPEXECUTIONS",),
            ("RG.GETEXECUTION", "x"),
            ("RG.DROPEXECUTION", "x"),
            ("RG.UNREGISTER", stream),
            ("RG.PAUSEREGISTRATIONS", stream),
        )
        for command in refused:
            with pytest.raises(redis.ResponseError, match="may not run"):
                tenant.execute_command("RG.TRIGGER", "inside", *command)
        assert tenant.execute_command("RG.TRIGGER", "inside", "RG.TRIGGER", "called", "x") == [["called x"]]
        # the called trigger has the caller's rights
        with pytest.raises(redis.ResponseError, match="may not run"):
            tenant.execute_command("RG.TRIGGER", "inside", "RG.TRIGGER", "inside", "GET", "a")
    execute(shard, "ACL", "DELUSER", "tenant")


def test_execution_ids_grow_by_one(shard: Server) -> None:
    script = "GB('ShardsIDReader').run()"
    ids = [execute(shard, "RG.PYEXECUTE", script, "UNBLOCKING") for _ in range(5)]
    first = int(ids[0].rpartition("-")[2])
    assert ids == [f"{'0' * 40}-{first + place}" for place in range(5)]


def test_errors_of_runs_show_no_line_of_the_runtime(shard: Server) -> None:
    _, errors = execute(shard, "RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: 1 // 0).run()")
    assert "<script" in errors[0]
    for script in ("GB('PythonReader').map(int).run(lambda: iter('x'))", "GB('PythonReader').run(lambda: 7)"):
        _, more = execute(shard, "RG.PYEXECUTE", script)
        errors += more
    assert len(errors) == 3
    assert [error for error in errors if "gears/" in error] == []


def test_requirements_of_sessions_are_listed(shard: Server) -> None:
    script = "GB('CommandReader').map(lambda r: 1).register(trigger='{}', mode='async_local')"
    for name, requirements in (("a", ["numpy"]), ("b", ["numpy", "hiredis"])):
        execute(shard, "RG.PYEXECUTE", script.format(name), "ID", name, "REQUIREMENTS", *requirements)
    listed = [pairs(entry) for entry in execute(shard, "RG.PYDUMPREQS")]
    assert [(entry["Name"], entry["RefCount"], entry["IsInstalled"]) for entry in listed] == [
        ("hiredis", 1, "yes"),
        ("numpy", 2, "yes"),
    ]
    assert len(listed[0]) == 9


def test_slow_functions_are_in_the_slow_log_with_their_time(shard: Server) -> None:
    sleep = "import time\ntime.sleep(0.05)\n"
    with shard.client() as client:
        client.config_set("slowlog-log-slower-than", 40_000)
        client.slowlog_reset()
        client.execute_command(
            "RG.PYEXECUTE",
            sleep
            + "GB('CommandReader').foreach(lambda r: time.sleep(0.05)).register(trigger='slow', mode='async_local')",
        )
        client.execute_command("RG.TRIGGER", "slow")
        entries = {bytes(entry["command"]).split()[0]: entry["duration"] for entry in client.slowlog_get()}
        assert entries[b"RG.PYEXECUTE"] >= 50_000
        assert entries[b"RG.TRIGGER"] >= 50_000


def test_info_has_the_versions_of_the_backends(shard: Server) -> None:
    import importlib.metadata

    info = shard.info()
    for name in ("onnxruntime", "openvino"):
        assert str(info[f"qa_ai_{name}_version"]) == importlib.metadata.version(name)


def test_an_unawaited_failure_is_one_line_in_the_log(shard: Server) -> None:
    script = """
async def fails():
    raise ValueError('forgotten')
def start(record):
    runCoroutine(fails())
    asyncio.ensure_future(fails())
    setFutureException(createFuture(), 'lost')
    own = Thread(target=lambda: asyncio.run(forgets()))
    own.start()
    own.join()
    return gearsFuture()
async def forgets():
    Future().set_exception(ValueError('in a loop of its own'))
GB('ShardsIDReader').map(start).run()
"""
    execute(shard, "RG.PYEXECUTE", script)

    def told() -> bool:
        execute(shard, "RG.PYEXECUTE", "import gc\ngc.collect()")
        log = shard.log.read_text()
        others = all(f"and the work failed: ERR {text}" in log for text in ("lost", "ValueError: in a loop of its own"))
        return log.count("and the work failed: ERR ValueError: forgotten") >= 2 and others

    eventually(told)
    assert "was never retrieved" not in shard.log.read_text()


def test_a_function_that_waits_for_a_trigger_can_be_aborted(shard: Server) -> None:
    script = """
GB('CommandReader').map(lambda r: execute('RG.TRIGGER', 'waits')).register(trigger='outer', mode='async_local')
async def waits(record):
    await createFuture()
GB('CommandReader').map(waits).register(trigger='waits', mode='async_local', timeout=0)
GB('CommandReader').map(lambda r: execute('RG.TRIGGER', 'short')).register(trigger='late', mode='async_local')
GB('CommandReader').map(waits).register(trigger='short', mode='async_local', timeout=100)
"""
    execute(shard, "RG.PYEXECUTE", script)
    assert "DEADLINE RG.TRIGGER took longer than 0.1 s" in refusal(shard, "RG.TRIGGER", "late")
    # the trigger ends a little later
    eventually(lambda: running(shard) == [])
    with ThreadPoolExecutor(1) as pool:
        outer = pool.submit(refusal, shard, "RG.TRIGGER", "outer")
        eventually(lambda: len(running(shard)) == 2)
        execute(shard, "RG.ABORTEXECUTION", min(running(shard), key=lambda name: int(name.rpartition("-")[2])))
        assert "aborted" in outer.result()
    eventually(lambda: running(shard) == [])
    eventually(lambda: shard.field("worker_functions_running") == 0)


def running(shard: Server) -> list[str]:
    return [entry[1] for entry in execute(shard, "RG.DUMPEXECUTIONS") if entry[3] == "running"]
