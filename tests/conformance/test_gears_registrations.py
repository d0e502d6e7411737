"""redgrease: triggers, key and stream registrations, the hooked read, and what lists, pauses and removes them."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import cloudpickle
import pytest
import redgrease
import redgrease.exceptions
import redis
from redgrease.reader import CommandReader, KeysReader, StreamReader

from tests.conformance.deployment import Deployment, eventually

covers = pytest.mark.covers
cloudpickle.register_pickle_by_value(sys.modules[__name__])
MISS = """
async def answer(record):
    await asyncio.sleep(0)
    execute('SET', record['key'], 'stored')
    override_reply('computed')
GB('KeysReader').map(answer).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def everywhere(deployment: Deployment, count: int = 1) -> None:
    """Waits until every shard has that many registrations."""
    for shard in range(deployment.shards):
        eventually(lambda shard=shard: len(deployment.registrations(shard)) == count)  # type: ignore[misc]


@covers("RG.TRIGGER", "")
@covers("GearsBuilder", "CommandReader: register(trigger=)")
@covers("redgrease", "@command, functions that answer with Python objects", "replace=")
def test_command(deployment: Deployment) -> None:
    @redgrease.command()
    def multiply(first: str, second: str) -> dict[str, int]:
        return {"product": int(first) * int(second)}

    gears = deployment.gears()
    proxy = multiply.on(gears)
    assert proxy(6, 7).value == {"product": 42}
    assert gears.trigger("multiply", 2, "3").value == {"product": 6}
    everywhere(deployment)
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
    CommandReader().args(1).register(trigger="first", on=gears)
    assert gears.trigger("first", "a", "b").value == ["a"]
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').map(lambda r: r[1]).register(trigger='echo')")
    assert deployment.raw("RG.TRIGGER", "echo", "text") == ["text"]
    script = "def f(r):\n    raise Exception('no luck')\nGB('CommandReader').map(f).register(trigger='fails')"
    deployment.raw("RG.PYEXECUTE", script)
    with pytest.raises(redis.ResponseError, match="no luck"):
        deployment.raw("RG.TRIGGER", "fails")
    (entry,) = [e for e in deployment.registrations() if dict_of(e["RegistrationData"]["args"])["trigger"] == "fails"]
    assert entry["RegistrationData"]["numFailures"] == 1
    assert "no luck" in entry["RegistrationData"]["lastError"]
    descriptions = [entry["desc"] for entry in deployment.registrations()]
    assert "shouts" in descriptions


def dict_of(flat: list[Any]) -> dict[str, Any]:
    """A flat array of pairs as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


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
    script = f"GB('CommandReader').map(lambda r: {expression}).register(trigger='t', convertToStr=False)"
    deployment.raw("RG.PYEXECUTE", script)
    (got,) = deployment.raw("RG.TRIGGER", "t")
    assert got == reply


@covers("RG.TRIGGERONKEY", "", better="the server itself answers MOVED")
def test_trigger_on_key(deployment: Deployment) -> None:
    script = (
        "GB('CommandReader').map(lambda r: execute('INCRBY', r[1], r[2])).register(trigger='add', mode='async_local')"
    )
    deployment.raw("RG.PYEXECUTE", script)
    everywhere(deployment)
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


@covers("RG.UNREGISTER", "", "ABORTPENDING", "errors")
@covers("RG.DUMPREGISTRATIONS", "", better="")
def test_unregister(deployment: Deployment) -> None:
    gears = deployment.gears()
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader', desc='d').register(trigger='t')")
    everywhere(deployment)
    (entry,) = deployment.registrations()
    assert (entry["reader"], entry["desc"]) == ("CommandReader", "d")
    assert entry["ExecutionThreadPool"] == "DefaultPool"
    data = entry["RegistrationData"]
    for name in ("numTriggered", "numSuccess", "numFailures", "numAborted"):
        assert data[name] == 0, name
    for name in ("lastRunDurationMS", "totalRunDurationMS", "avgRunDurationMS", "lastError", "mode"):
        assert name in data, name
    assert dict_of(data["args"])["trigger"] == "t"
    assert gears.unregister(entry["id"])
    everywhere(deployment, 0)
    with pytest.raises(redis.ResponseError, match="execution is not registered"):
        gears.unregister(entry["id"])
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t')")
    (entry,) = deployment.registrations()
    assert deployment.raw("RG.UNREGISTER", entry["id"], "ABORTPENDING") == "OK"


@covers("redgrease", "Gears.dumpregistrations fails on the fields that RedisGears 1.2 added, here as there")
def test_dumpregistrations_of_the_client(deployment: Deployment) -> None:
    gears = deployment.gears()
    assert gears.dumpregistrations() == []
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t')")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        gears.dumpregistrations()


@covers("GearsBuilder", "KeysReader: register prefix, eventTypes, keyTypes, readValue")
def test_keys_registration(deployment: Deployment) -> None:
    def note(record: dict[str, Any]) -> None:
        redgrease.execute("RPUSH", "seen" + record["key"][1:], record["event"], record["type"])

    function = (
        KeysReader()
        .foreach(note)
        .register(prefix="k*", eventTypes=["set", "HSET"], keyTypes=["string"], mode="async_local")
    )
    assert function.on(deployment.gears()).value is True
    everywhere(deployment)
    for shard in range(deployment.shards):
        key, seen = deployment.key("k", shard), deployment.key("seen", shard)
        deployment.raw("SET", key, "v", shard=shard)
        deployment.raw("HSET", deployment.key("khash", shard), "f", "v", shard=shard)
        deployment.raw("SET", deployment.key("other", shard), "v", shard=shard)
        deployment.raw("APPEND", key, "v", shard=shard)
        found = eventually(lambda shard=shard, seen=seen: deployment.raw("LRANGE", seen, 0, -1, shard=shard))
        assert found == ["set", "string"]
        assert not deployment.raw("EXISTS", deployment.key("seenhash", shard), shard=shard)


@covers("GearsBuilder", "KeysReader: register readValue=False, exact names, onRegistered")
def test_keys_registration_without_values(deployment: Deployment) -> None:
    key, seen = deployment.key("one"), deployment.key("fields")
    script = f"""
def ready():
    execute('SET', 'ready{{%s}}' % hashtag(), 1)
def note(record):
    execute('SET', '{seen}', ','.join(sorted(record)))
GB().foreach(note).register('{key}', eventTypes=['set'], readValue=False, onRegistered=ready, mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", script)
    everywhere(deployment)
    for node in deployment.nodes:
        eventually(lambda node=node: node.keys("ready*"))  # type: ignore[misc]
    deployment.raw("SET", key, 1)
    assert eventually(lambda: deployment.raw("GET", seen)) == "event,key"


@covers("GearsBuilder", "KeysReader: register commands= with keymiss")
@covers("redisgears", "override_reply")
def test_hooked_read(deployment: Deployment) -> None:
    assert deployment.gears().pyexecute(MISS).value is True
    everywhere(deployment)
    client: Any = deployment.cluster() if deployment.shards > 1 else deployment.nodes[0]
    for shard in range(deployment.shards):
        key = deployment.key("ask", shard)
        assert client.get(key) == "computed"
        assert client.get(key) == "stored"
        assert client.get(deployment.key("else", shard)) is None
    if deployment.shards > 1:
        client.close()


@covers("GearsBuilder", "StreamReader: register batch, trimStream, statistics")
def test_stream_registration(deployment: Deployment) -> None:
    def note(record: dict[str, Any]) -> None:
        redgrease.execute("RPUSH", "seen" + record["key"][1:], record["value"]["n"])

    assert StreamReader().foreach(note).register("s*", batch=3, on=deployment.gears(), mode="async_local").value is True
    everywhere(deployment)
    for shard in range(deployment.shards):
        stream, seen = deployment.key("s", shard), deployment.key("seen", shard)
        for number in range(6):
            deployment.raw("XADD", stream, "*", "n", number, shard=shard)
        eventually(lambda shard=shard, seen=seen: deployment.raw("LRANGE", seen, 0, -1, shard=shard) == [*"012345"])
        eventually(lambda shard=shard, stream=stream: deployment.raw("XLEN", stream, shard=shard) == 0)
        (entry,) = deployment.registrations(shard)
        data = entry["RegistrationData"]
        assert entry["reader"] == "StreamReader"
        assert data["status"] == "OK"
        eventually(lambda shard=shard: deployment.registrations(shard)[0]["RegistrationData"]["numSuccess"] == 2)
        assert "lastEstimatedLagMS" in data and "avgEstimatedLagMS" in data
        args = dict_of(data["args"])
        assert (args["batchSize"], args["trimStream"], args["onFailedPolicy"]) == (3, 1, "continue")


@covers("GearsBuilder", "StreamReader: register duration, onFailedPolicy, onFailedRetryInterval")
def test_stream_policies(deployment: Deployment) -> None:
    seen, stream = deployment.key("seen"), deployment.key("s")
    script = """
def note(record):
    if execute('INCR', '{tries}') < 3:
        raise Exception('not yet')
    execute('RPUSH', '{seen}', record['value']['n'])
GB('StreamReader').foreach(note).register(
    '{stream}', mode='async_local', duration=50, batch=100, onFailedPolicy='{policy}', onFailedRetryInterval=1
)
"""
    names = {"seen": seen, "stream": stream, "tries": deployment.key("tries")}
    deployment.raw("RG.PYEXECUTE", script.format(policy="retry", **names))
    deployment.raw("XADD", stream, "*", "n", "1")
    assert eventually(lambda: deployment.raw("LRANGE", seen, 0, -1)) == ["1"]
    assert deployment.raw("GET", names["tries"]) == "3"
    deployment.clean()
    deployment.raw("RG.PYEXECUTE", script.format(policy="continue", **names))
    deployment.raw("XADD", stream, "*", "n", "1")
    eventually(lambda: deployment.registrations()[0]["RegistrationData"]["numFailures"] == 1)
    eventually(lambda: deployment.raw("XLEN", stream) == 0)
    deployment.clean()
    deployment.raw("RG.PYEXECUTE", script.format(policy="abort", **names))
    deployment.raw("XADD", stream, "*", "n", "1")
    assert eventually(lambda: deployment.registrations()[0]["RegistrationData"]["status"] == "ABORTED")
    assert deployment.raw("XLEN", stream) == 1


@covers("GearsBuilder", "StreamReader: an error that starts with PAUSE")
def test_stream_pauses_itself(deployment: Deployment) -> None:
    stream = deployment.key("s")
    function = "def f(r):\n    raise flat_error('PAUSE for now')\n"
    script = function + "GB('StreamReader').foreach(f).register('%s', mode='async_local')"
    deployment.raw("RG.PYEXECUTE", script.replace("%s", stream))
    deployment.raw("XADD", stream, "*", "n", 1)
    eventually(lambda: deployment.registrations()[0]["RegistrationData"]["status"] == "PAUSED")
    assert deployment.raw("XLEN", stream) == 1


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


@covers("RG.PAUSEREGISTRATIONS", "")
@covers("RG.UNPAUSEREGISTRATIONS", "")
@covers("RG.CLEARREGISTRATIONSSTATS", "")
def test_pause_and_statistics(deployment: Deployment) -> None:
    seen, stream = deployment.key("seen"), deployment.key("s")
    script = f"GB('StreamReader').foreach(lambda r: execute('INCR', '{seen}')).register('{stream}', mode='async_local')"
    deployment.raw("RG.PYEXECUTE", script)
    everywhere(deployment)
    deployment.raw("XADD", stream, "*", "n", 1)
    assert eventually(lambda: deployment.raw("GET", seen)) == "1"
    eventually(lambda: deployment.registrations()[0]["RegistrationData"]["numSuccess"] == 1)
    (entry,) = deployment.registrations()
    deployment.raw("RG.PAUSEREGISTRATIONS", entry["id"])
    eventually(lambda: deployment.registrations()[0]["RegistrationData"]["status"] == "PAUSED")
    deployment.raw("XADD", stream, "*", "n", 2)
    time.sleep(0.2)
    assert deployment.raw("GET", seen) == "1"
    deployment.raw("RG.UNPAUSEREGISTRATIONS", entry["id"])
    eventually(lambda: deployment.raw("GET", seen) == "2")
    # the function has written before its end is counted
    eventually(lambda: deployment.registrations()[0]["RegistrationData"]["numSuccess"] == 2)
    deployment.raw("RG.CLEARREGISTRATIONSSTATS")
    assert deployment.registrations()[0]["RegistrationData"]["numTriggered"] == 0
    deployment.clean()
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t')")
    (entry,) = deployment.registrations()
    with pytest.raises(redis.ResponseError, match="does not support pause"):
        deployment.raw("RG.PAUSEREGISTRATIONS", entry["id"])


@covers("GearsBuilder", "register: errors")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("GB().register('k*', eventTypes=['keymiss'], commands=['no-such-command'])", "Can not hook a command"),
        ("GB().register('k*', eventTypes=['keymiss'], commands=['eval'])", "Can not hook a command"),
        ("GB('ShardsIDReader').register()", "do not support register|does not support register"),
        ("GB('PythonReader').register()", "do not support register|does not support register"),
        ("GB().register('k*', mode='whenever')", "mode"),
        ("GB('StreamReader').register('s*', onFailedPolicy='whatever')", "olicy"),
    ],
)
def test_refused_registrations(deployment: Deployment, script: str, text: str) -> None:
    try:
        reply = deployment.raw("RG.PYEXECUTE", script)
    except redis.ResponseError as error:
        reply = str(error)
    assert re.search(text, str(reply)), reply
    assert deployment.registrations() == []


@pytest.mark.left_out(
    "GearsBuilder",
    "register: mode='sync'",
    why="it ran Python on the server's only thread",
    instead="mode='async_local'; for a reply, commands= and override_reply",
)
def test_sync_mode(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match="async_local"):
        deployment.raw("RG.PYEXECUTE", "GB().register('k*', mode='sync')")


@pytest.mark.left_out(
    *("GearsBuilder", "CommandReader: register(hook=) and call_next"),
    why="it ran Python on the server's only thread, inside any command",
    instead="a trigger (trigger=), or commands= with keymiss for reads",
)
def test_hooks(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match="trigger"):
        deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(hook='hset')")
    with pytest.raises(redis.ResponseError, match="call_next"):
        deployment.raw("RG.PYEXECUTE", "call_next('get', 'k')")
