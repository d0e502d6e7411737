"""The functions that scripts can call: redgrease's wrappers, and the names in the scripts' globals and modules."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import redgrease
import redis
from redgrease.reader import CommandReader, ShardsIDReader
from redgrease.runtime import hashtag3
from redis.crc import key_slot

from tests.conformance.deployment import Deployment
from tests.harness.polling import eventually

covers = pytest.mark.covers
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def call(deployment: Deployment) -> Callable[..., Any]:
    """A function that runs a redgrease function without arguments on the first shard."""
    if not deployment.same_python:
        pytest.skip("redgrease sends code objects, so it needs the Python version of the worker")

    def execute(function: Callable[[], Any]) -> Any:
        result = ShardsIDReader().map(lambda _shard: function()).run(mode="async_local").on(deployment.gears())
        assert not result.errors, result.errors
        return result.value

    return execute


def script(deployment: Deployment, body: str, **names: str) -> Any:
    """Run `body`, the lines of a function, on the first shard and return its result."""
    lines = "\n".join(f"    {line}" for line in body.format(**names).strip().splitlines())
    results, errors = deployment.raw(
        "RG.PYEXECUTE", f"def f(_record):\n{lines}\nGB('ShardsIDReader').map(f).run(mode='async_local')"
    )
    assert not errors, errors
    return results[0]


@covers("redgrease", "redgrease.execute, redgrease.cmd (the client inside functions)")
@covers("redisgears", "execute, executeCommand")
def test_execute(deployment: Deployment, call: Callable[..., Any]) -> None:
    key = deployment.key("k")

    def through_execute() -> Any:
        redgrease.execute("SET", key, 5)
        redgrease.execute("INCR", key)
        return [redgrease.execute("GET", key), redgrease.execute("EXISTS", key), redgrease.execute("GET", "no" + key)]

    assert call(through_execute) == ["6", 1, None]

    def through_client() -> Any:
        redgrease.cmd.set(key, "from the client")
        return redgrease.cmd.get(key)

    assert call(through_client) == "from the client"
    failed = ShardsIDReader().map(lambda _: redgrease.execute("GET")).run(mode="async_local").on(deployment.gears())
    assert b"wrong number of arguments" in failed.errors[0]
    deployment.raw("SET", key, b"\xff\x00")
    assert script(deployment, "return type(execute('GET', '{key}')).__name__", key=key) == "bytearray"
    assert script(deployment, "import redisgears\nreturn redisgears.executeCommand('PING')") == "PONG"


@pytest.mark.shards(3)
@covers("redisgears", "execute of another shard's key: refused")
def test_execute_elsewhere(deployment: Deployment) -> None:
    results, errors = deployment.raw(
        "RG.PYEXECUTE",
        f"GB('ShardsIDReader').map(lambda r: execute('GET', '{deployment.key('k', 1)}')).run(mode='async_local')",
    )
    assert not results
    assert len(errors) == 1


@covers("redgrease", "redgrease.hashtag, hashtag3, log, configGet, gearsConfigGet")
@covers("redisgears", "hashtag, log, configGet, gearsConfigGet")
def test_small_functions(deployment: Deployment, call: Callable[..., Any]) -> None:
    tag = call(redgrease.hashtag)
    assert call(hashtag3) == f"{{{tag}}}"
    if deployment.shards == 1:
        assert key_slot(tag.encode()) == 0
    else:
        deployment.raw("SET", f"{{{tag}}}", 1)

    def logged() -> bool:
        for level in ("debug", "verbose", "notice", "warning"):
            redgrease.log(f"conformance {level}", level=level)
        return True

    assert call(logged)
    deployment.raw("RG.CONFIGSET", "OwnSetting", "own")

    def settings() -> Any:
        return [redgrease.configGet("OwnSetting"), int(redgrease.gearsConfigGet("ExecutionMaxIdleTime"))]

    assert call(settings) == ["own", 5000]
    assert script(deployment, "return gearsConfigGet('NoSuchSetting', 'default')") == "default"


@covers("redgrease", "redgrease.atomic")
@covers(
    "redisgears", "atomic, isInAtomicBlock", better="a block has a lease, so no function blocks the server for longer"
)
def test_atomic(deployment: Deployment, call: Callable[..., Any]) -> None:
    key = deployment.key("n")

    def increment(_argument: str) -> Any:
        with redgrease.atomic():
            value = int(redgrease.execute("GET", key) or 0) + 1
            redgrease.execute("SET", key, value)
        return value

    assert call(lambda: increment("")) == 1
    CommandReader().apply(increment).register(trigger="increment", mode="async_local", on=deployment.gears())
    threads = [threading.Thread(target=lambda: deployment.gears().trigger("increment", 1)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert deployment.raw("GET", key) == "11"
    assert script(deployment, "with atomic():\n    return [isInAtomicBlock()]\n") == "[True]"
    nested = "with atomic():\n    with atomic():\n        pass"
    with pytest.raises(AssertionError, match="Already inside an atomic block"):
        script(deployment, nested)
    lease = deployment.raw("CONFIG", "GET", "qa.atomic-lease-ms")[1]
    deployment.raw("CONFIG", "SET", "qa.atomic-lease-ms", 100)
    try:
        with pytest.raises(AssertionError, match="exceeded its lease"):
            script(deployment, "import time\nwith atomic():\n    time.sleep(0.5)")
    finally:
        deployment.raw("CONFIG", "SET", "qa.atomic-lease-ms", lease)


@covers("redgrease", "redgrease.gearsFuture")
@covers("redisgears", "gearsFuture: continueRun, continueFailed")
def test_futures(deployment: Deployment, call: Callable[..., Any]) -> None:
    def later() -> Any:
        import threading

        future = redgrease.gearsFuture()
        threading.Timer(0.01, future.continueRun, ["continued"]).start()
        return future

    assert call(later) == "continued"
    with pytest.raises(AssertionError, match="no luck"):
        script(
            deployment,
            "import threading as t\nf = gearsFuture()\nt.Timer(0.01, f.continueFailed, ['no luck']).start()\nreturn f",
        )


@covers("redisgears", "createFuture, setFutureResults, setFutureException, runCoroutine")
def test_coroutine_tools(deployment: Deployment) -> None:
    source = """
import threading
async def wait(_record):
    future = createFuture()
    threading.Timer(0.01, setFutureResults, [future, 'done']).start()
    return await future
GB('ShardsIDReader').map(wait).run(mode='async_local')
"""
    assert deployment.raw("RG.PYEXECUTE", source)[0] == ["done"]
    key = deployment.key("ran")
    body = "async def note():\n    execute('SET', '{key}', 1)\nrunCoroutine(note())\nreturn 1"
    assert script(deployment, body, key=key) == "1"
    eventually(lambda: deployment.raw("GET", key) == "1")


@covers("redisgears", "run() inside functions: awaitable")
def test_nested_runs(deployment: Deployment) -> None:
    source = """
async def outer(_record):
    results, errors = await GB('ShardsIDReader').count().run()
    return results
GB('CommandReader').map(outer).register(trigger='outer', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", source)
    assert deployment.raw("RG.TRIGGER", "outer") == [f"['{deployment.shards}']"]


@covers("redisgears", "register() inside functions")
def test_register_later(deployment: Deployment) -> None:
    source = """
def add(_record):
    return GB('CommandReader').map(lambda r: 'second').register(trigger='second', mode='async_local')
GB('CommandReader').map(add).register(trigger='first', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", source)
    (identifier,) = deployment.raw("RG.TRIGGER", "first")
    eventually(lambda: identifier in [entry["id"] for entry in deployment.registrations()])
    assert deployment.raw("RG.TRIGGER", "second") == ["second"]


@covers("redisgears", "flat_error, isAsyncAllow, GearsSession, getGearsSession, setGearsSession")
def test_sessions_and_errors(deployment: Deployment) -> None:
    assert script(deployment, "return [isAsyncAllow(), getGearsSession() is not None]") == "[True, True]"
    source = """
def f(record):
    raise flat_error('only this')
GB('CommandReader').map(f).register(trigger='flat', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", source)
    with pytest.raises(redis.ResponseError) as caught:
        deployment.raw("RG.TRIGGER", "flat")
    assert str(caught.value) == "only this"


@covers("redisgears", "registerTE: a timer")
def test_timers(deployment: Deployment) -> None:
    source = """
def tick():
    execute('INCR', '@key')
def ready():
    registerTE(0.05, tick)
GB('CommandReader').register(trigger='t', mode='async_local', onRegistered=ready)
"""
    key = deployment.key("ticks")
    deployment.raw("RG.PYEXECUTE", source.replace("@key", key))
    eventually(lambda: int(deployment.raw("GET", key) or 0) >= 3)
    (entry,) = deployment.registrations()
    deployment.raw("RG.UNREGISTER", entry["id"])

    def stands_still() -> bool:
        deployment.raw("DEL", key)  # the timer may run once more before the worker learns of its end
        time.sleep(0.2)
        return deployment.raw("GET", key) is None

    assert eventually(stands_still)


@pytest.mark.left_out(
    *("redisgears", "registerTE with a key"),
    why="a timer cannot be saved with its Python code",
    instead="start the timer in onRegistered, keep its state in a key",
)
@pytest.mark.left_out("redisgears", "gearsCtx", why="internal to RedisGears", instead="GearsBuilder")
def test_left_out(deployment: Deployment) -> None:
    with pytest.raises(AssertionError, match="with a key is left out"):
        script(deployment, "return registerTE(1, print, 'k')")
    with pytest.raises(AssertionError, match="gearsCtx is left out"):
        script(deployment, "return gearsCtx('KeysReader')")


@covers("redisgears", "functions of a session share their globals")
def test_shared_globals(deployment: Deployment) -> None:
    source = """
calls = [0]
def first(r):
    calls[0] += 1
    return calls[0]
def second(r):
    calls[0] += 10
    return calls[0]
GB('CommandReader').map(first).register(trigger='first', mode='async_local')
GB('CommandReader').map(second).register(trigger='second', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", source)
    assert deployment.raw("RG.TRIGGER", "first") == ["1"]
    assert deployment.raw("RG.TRIGGER", "second") == ["11"]


@pytest.mark.parametrize(
    "name",
    [
        *("GB", "GearsBuilder", "execute", "override_reply", "atomic", "hashtag", "log", "gearsFuture", "GearsFuture"),
        *("GearsSession", "getGearsSession", "setGearsSession", "isInAtomicBlock", "isAsyncAllow", "configGet"),
        *("gearsConfigGet", "flat_error", "registerTE", "createFuture", "setFutureResults", "setFutureException"),
        *("runCoroutine", "asyncio", "Log", "ConfigGet", "GearsConfigGet"),
    ],
)
@covers("redisgears", "the globals of RedisGears 1.2, except hooks and internals")
def test_globals(deployment: Deployment, name: str) -> None:
    assert script(deployment, f"return '{name}' in globals()") == "True"
