"""redgrease: registrations on keys and streams, and the hooked read."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
import redgrease
import redgrease.exceptions
from redgrease.reader import KeysReader, StreamReader

from tests.conformance.deployment import Deployment, pairs
from tests.harness.polling import eventually

covers = pytest.mark.covers
cloudpickle.register_pickle_by_value(sys.modules[__name__])
MISS = """
async def answer(record):
    await asyncio.sleep(0)
    execute('SET', record['key'], 'stored')
    override_reply('computed')
GB('KeysReader').map(answer).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


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
    deployment.wait_registered()
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
    deployment.wait_registered()
    for node in deployment.nodes:
        eventually(lambda node=node: node.keys("ready*"))  # type: ignore[misc]
    deployment.raw("SET", key, 1)
    assert eventually(lambda: deployment.raw("GET", seen)) == "event,key"


@covers("GearsBuilder", "KeysReader: register commands= with keymiss")
@covers("redisgears", "override_reply")
def test_hooked_read(deployment: Deployment) -> None:
    assert deployment.gears().pyexecute(MISS).value is True
    deployment.wait_registered()
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
    deployment.wait_registered()
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
        eventually(lambda shard=shard: deployment.statistics(shard)["numSuccess"] == 2)
        assert "lastEstimatedLagMS" in data and "avgEstimatedLagMS" in data
        args = pairs(data["args"])
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
    eventually(lambda: deployment.statistics()["numFailures"] == 1)
    eventually(lambda: deployment.raw("XLEN", stream) == 0)
    deployment.clean()
    deployment.raw("RG.PYEXECUTE", script.format(policy="abort", **names))
    deployment.raw("XADD", stream, "*", "n", "1")
    assert eventually(lambda: deployment.statistics()["status"] == "ABORTED")
    assert deployment.raw("XLEN", stream) == 1


@covers("GearsBuilder", "StreamReader: an error that starts with PAUSE")
def test_stream_pauses_itself(deployment: Deployment) -> None:
    stream = deployment.key("s")
    function = "def f(r):\n    raise flat_error('PAUSE for now')\n"
    script = function + "GB('StreamReader').foreach(f).register('%s', mode='async_local')"
    deployment.raw("RG.PYEXECUTE", script.replace("%s", stream))
    deployment.raw("XADD", stream, "*", "n", 1)
    eventually(lambda: deployment.statistics()["status"] == "PAUSED")
    assert deployment.raw("XLEN", stream) == 1
