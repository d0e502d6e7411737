"""redgrease: listing, pausing, removing and refusing registrations."""

from __future__ import annotations

import re
import time

import pytest
import redis

from tests.conformance.deployment import Deployment, pairs
from tests.harness.polling import eventually

covers = pytest.mark.covers


@covers("RG.UNREGISTER", "", "ABORTPENDING", "errors")
@covers("RG.DUMPREGISTRATIONS", "", better="")
def test_unregister(deployment: Deployment) -> None:
    gears = deployment.gears()
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader', desc='d').register(trigger='t', mode='async_local')")
    deployment.wait_registered()
    (entry,) = deployment.registrations()
    assert (entry["reader"], entry["desc"]) == ("CommandReader", "d")
    assert entry["ExecutionThreadPool"] == "DefaultPool"
    data = entry["RegistrationData"]
    for name in ("numTriggered", "numSuccess", "numFailures", "numAborted"):
        assert data[name] == 0, name
    for name in ("lastRunDurationMS", "totalRunDurationMS", "avgRunDurationMS", "lastError", "mode"):
        assert name in data, name
    assert pairs(data["args"])["trigger"] == "t"
    assert gears.unregister(entry["id"])
    deployment.wait_registered(0)
    with pytest.raises(redis.ResponseError, match="execution is not registered"):
        gears.unregister(entry["id"])
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t', mode='async_local')")
    (entry,) = deployment.registrations()
    assert deployment.raw("RG.UNREGISTER", entry["id"], "ABORTPENDING") == "OK"


@covers("redgrease", "Gears.dumpregistrations fails on the fields that RedisGears 1.2 added, as with RedisGears")
def test_dumpregistrations_of_the_client(deployment: Deployment) -> None:
    gears = deployment.gears()
    assert gears.dumpregistrations() == []
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t', mode='async_local')")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        gears.dumpregistrations()


@covers("RG.PAUSEREGISTRATIONS", "")
@covers("RG.UNPAUSEREGISTRATIONS", "")
@covers("RG.CLEARREGISTRATIONSSTATS", "")
def test_pause_and_statistics(deployment: Deployment) -> None:
    seen, stream = deployment.key("seen"), deployment.key("s")
    script = f"GB('StreamReader').foreach(lambda r: execute('INCR', '{seen}')).register('{stream}', mode='async_local')"
    deployment.raw("RG.PYEXECUTE", script)
    deployment.wait_registered()
    deployment.raw("XADD", stream, "*", "n", 1)
    assert eventually(lambda: deployment.raw("GET", seen)) == "1"
    eventually(lambda: deployment.statistics()["numSuccess"] == 1)
    (entry,) = deployment.registrations()
    deployment.raw("RG.PAUSEREGISTRATIONS", entry["id"])
    eventually(lambda: deployment.statistics()["status"] == "PAUSED")
    deployment.raw("XADD", stream, "*", "n", 2)
    time.sleep(0.2)
    assert deployment.raw("GET", seen) == "1"
    deployment.raw("RG.UNPAUSEREGISTRATIONS", entry["id"])
    eventually(lambda: deployment.raw("GET", seen) == "2")
    # wait, because the module counts an execution some time after its write
    eventually(lambda: deployment.statistics()["numSuccess"] == 2)
    deployment.raw("RG.CLEARREGISTRATIONSSTATS")
    assert deployment.statistics()["numTriggered"] == 0
    deployment.clean()
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t', mode='async_local')")
    (entry,) = deployment.registrations()
    with pytest.raises(redis.ResponseError, match="does not support pause"):
        deployment.raw("RG.PAUSEREGISTRATIONS", entry["id"])


@covers("GearsBuilder", "register: errors")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("GB().register('k*', eventTypes=['keymiss'], commands=['no-such-command'])", "Can not hook a command"),
        # tests/gears/test_builder.py has the other argument errors
        ("GB('ShardsIDReader').register()", "do not support register|does not support register"),
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
    why="RedisGears ran Python on the server's only thread",
    instead="mode='async_local'; for a reply, commands= and override_reply",
)
def test_sync_mode(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match="async_local"):
        deployment.raw("RG.PYEXECUTE", "GB().register('k*', mode='sync')")


@pytest.mark.left_out(
    *("GearsBuilder", "CommandReader: register(hook=) and call_next"),
    why="RedisGears ran Python on the server's only thread, inside any command",
    instead="a trigger (trigger=), or commands= with keymiss for reads",
)
def test_hooks(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match="trigger"):
        deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(hook='hset')")
    with pytest.raises(redis.ResponseError, match="call_next"):
        deployment.raw("RG.PYEXECUTE", "call_next('get', 'k')")
