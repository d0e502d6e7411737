"""redgrease: triggers and their replies, on any shard."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import redgrease
import redgrease.exceptions
import redis
from redgrease.reader import CommandReader

from tests.conformance.deployment import Deployment, pairs

covers = pytest.mark.covers
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@covers("RG.TRIGGER", "")
@covers("GearsBuilder", "CommandReader: register(trigger=)")
@covers("redgrease", "@command, functions that answer with Python objects", "replace=")
def test_command(deployment: Deployment) -> None:
    @redgrease.command(mode="async_local")
    def multiply(first: str, second: str) -> dict[str, int]:
        return {"product": int(first) * int(second)}

    gears = deployment.gears()
    proxy = multiply.on(gears)
    assert proxy(6, 7).value == {"product": 42}
    assert gears.trigger("multiply", 2, "3").value == {"product": 6}
    deployment.wait_registered()
    for shard in range(deployment.shards):
        assert deployment.gears(shard).trigger("multiply", 1, 1).value == {"product": 1}
    with pytest.raises(redgrease.exceptions.DuplicateTriggerError):
        multiply.on(gears)
    assert multiply.on(gears, replace=False)(1, 2).value == {"product": 2}
    with pytest.raises(redis.ResponseError, match="subcommand not found"):
        deployment.raw("RG.TRIGGER", "no-such-trigger")


@covers("GearsBuilder", "register: convertToStr, collect, mode async and async_local, description")
@covers("RG.TRIGGER", "errors of the function", "several results")
def test_triggers(deployment: Deployment) -> None:
    gears = deployment.gears()
    CommandReader(desc="shouts").args().flatmap(lambda args: [arg.upper() for arg in args]).register(
        trigger="shout", mode="async_local", on=gears
    )
    assert gears.trigger("shout", "a", "b").value == ["A", "B"]
    CommandReader().args(1).register(trigger="first", mode="async_local", on=gears)
    assert gears.trigger("first", "a", "b").value == ["a"]
    deployment.raw(
        "RG.PYEXECUTE", "GB('CommandReader').map(lambda r: r[1]).register(trigger='echo', mode='async_local')"
    )
    assert deployment.raw("RG.TRIGGER", "echo", "text") == ["text"]
    script = "def f(r):\n    raise Exception('no luck')\nGB('CommandReader').map(f).register(trigger='fails')"
    deployment.raw("RG.PYEXECUTE", script)
    with pytest.raises(redis.ResponseError, match="no luck"):
        deployment.raw("RG.TRIGGER", "fails")
    (entry,) = [e for e in deployment.registrations() if pairs(e["RegistrationData"]["args"])["trigger"] == "fails"]
    assert entry["RegistrationData"]["numFailures"] == 1
    assert "no luck" in entry["RegistrationData"]["lastError"]
    descriptions = [entry["desc"] for entry in deployment.registrations()]
    assert "shouts" in descriptions


@covers("GearsBuilder", "CommandReader: a trigger runs on all shards, with mode='async_local' on one")
def test_a_trigger_runs_on_all_shards(deployment: Deployment) -> None:
    for name, options in (("everywhere", ""), ("here", ", mode='async_local'")):
        deployment.raw("RG.PYEXECUTE", f"GB('CommandReader').count().register(trigger='{name}'{options})")
    assert deployment.raw("RG.TRIGGER", "everywhere") == [str(deployment.shards)]
    assert deployment.raw("RG.TRIGGER", "here") == ["1"]


@pytest.mark.left_out(
    "GearsBuilder",
    "KeysReader: commands= with other events than keymiss",
    why="only a read of a missing key can wait for a function before its reply",
    instead="eventTypes= without commands=, which runs the function after the command",
)
def test_commands_with_another_event(deployment: Deployment) -> None:
    script = "GB().map(str).register(prefix='*', commands=['get'], eventTypes=['set'], mode='async_local')"
    with pytest.raises(redis.ResponseError, match="Can not hook a command without the keymiss event"):
        deployment.raw("RG.PYEXECUTE", script)


@covers("GearsBuilder", "results: str with + and -, int, float, list, bytes")
@pytest.mark.parametrize(
    ("expression", "reply"),
    [
        ("[1, 'two', [3]]", [1, "two", [3]]),
        ("True", 1),
        ("1.5", "1.500000"),
        ("b'raw'", "raw"),
        ("'+FINE'", "FINE"),
        ("'-'", "-"),
        ("None", "PY RECORD"),
        ("{'a': 1}", "PY RECORD"),
    ],
)
def test_results_as_resp(deployment: Deployment, expression: str, reply: Any) -> None:
    script = (
        f"GB('CommandReader').map(lambda r: {expression}).register(trigger='t', convertToStr=False, mode='async_local')"
    )
    deployment.raw("RG.PYEXECUTE", script)
    (got,) = deployment.raw("RG.TRIGGER", "t")
    assert got == reply


@covers("RG.TRIGGERONKEY", "", better="the server itself answers MOVED")
def test_trigger_on_key(deployment: Deployment) -> None:
    script = (
        "GB('CommandReader').map(lambda r: execute('INCRBY', r[1], r[2])).register(trigger='add', mode='async_local')"
    )
    deployment.raw("RG.PYEXECUTE", script)
    deployment.wait_registered()
    for shard in range(deployment.shards):
        assert deployment.raw("RG.TRIGGERONKEY", "add", deployment.key("n", shard), 5, shard=shard) == ["5"]
    if deployment.shards > 1:
        with pytest.raises(redis.ResponseError, match="MOVED"):
            deployment.raw("RG.TRIGGERONKEY", "add", deployment.key("n", 1), 5, shard=0)
    with pytest.raises(redis.ResponseError, match="subcommand not found"):
        deployment.raw("RG.TRIGGERONKEY", "none", deployment.key("n"))


@covers("RG.TRIGGER", "in MULTI: refused")
def test_trigger_in_multi(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t')")
    pipeline = deployment.nodes[0].pipeline(transaction=True)
    pipeline.execute_command("RG.TRIGGER", "t")
    with pytest.raises(redis.ResponseError, match="can not run a non-sync execution inside a MULTI/LUA"):
        pipeline.execute()


@covers("GearsBuilder", "CommandReader: register(inorder=True)")
def test_triggers_in_order(deployment: Deployment) -> None:
    seen = deployment.key("seen")
    script = """
async def f(record):
    await asyncio.sleep(0.02 if record[1] == '0' else 0)
    execute('RPUSH', '@seen', record[1])
GB('CommandReader').map(f).register(trigger='t', mode='async_local', inorder=True)
"""
    deployment.raw("RG.PYEXECUTE", script.replace("@seen", seen))
    with deployment.nodes[0].pipeline(transaction=False) as pipeline:
        for number in range(4):
            pipeline.execute_command("RG.TRIGGER", "t", number)
        pipeline.execute()
    assert deployment.raw("LRANGE", seen, 0, -1) == [*"0123"]
