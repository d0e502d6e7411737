"""The worst faults of RedisAI and RedisGears: crashes from bad models or scripts, and lost keymiss events."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis

from tests.conformance.deployment import Deployment
from tests.gears.onnx_file import add_model
from tests.harness.polling import eventually

covers = pytest.mark.covers
RECOVERY_SECONDS = 40.0
HOOK = """
async def answer(record):
    await asyncio.sleep(0)
    execute('SET', record['key'], 'stored')
    override_reply('computed')
GB('KeysReader').map(answer).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def ready(deployment: Deployment, shard: int = 0) -> bool:
    return bool(deployment.nodes[shard].info("everything")["qa_worker_state"] == "ready")


def works(deployment: Deployment) -> bool:
    """Whether functions and models run."""
    ai, key = deployment.ai(), deployment.key("sound")
    try:
        ai.tensorset(deployment.key("x"), np.array([1.0], dtype="float32"))
        ai.modelstore(key, "ONNX", "CPU", add_model())
        ai.modelexecute(key, [deployment.key("x")] * 2, [deployment.key("y")])
        deployment.raw("RG.PYEXECUTE", "GB('ShardsIDReader').run(mode='async_local')")
    except redis.ResponseError:
        return False
    return ai.tensorget(deployment.key("y")).tolist() == [2.0]


@pytest.fixture
def survives(deployment: Deployment) -> Iterator[None]:
    """Check that server and data survive the test, and that the worker works again."""
    node = deployment.nodes[0]
    before = node.info("server")["process_id"]
    node.set(deployment.key("precious"), "data")
    yield
    assert node.ping()
    assert node.info("server")["process_id"] == before
    assert node.get(deployment.key("precious")) == "data"
    eventually(lambda: ready(deployment), RECOVERY_SECONDS)
    eventually(lambda: works(deployment), RECOVERY_SECONDS)


@covers("AI.MODELSTORE", "broken models", better="an error for the client; RedisAI's server crashed")
@pytest.mark.usefixtures("survives")
def test_garbage_models(deployment: Deployment) -> None:
    ai, key, sound = deployment.ai(), deployment.key("bad"), add_model()
    generator = np.random.default_rng(5)
    blobs = [b"\0", b"x" * 1000, generator.bytes(5000), sound[: len(sound) // 2], sound[:-1], sound * 2, sound[::-1]]
    for position in range(0, len(sound), 16):
        damaged = bytearray(sound)
        damaged[position] ^= 0xFF
        blobs.append(bytes(damaged))
    refused = 0
    for blob in blobs:
        try:
            ai.modelstore(key, "ONNX", "CPU", blob)
        except redis.ResponseError:
            refused += 1
    assert refused >= 6


@pytest.mark.torch
@covers("AI.MODELSTORE", "broken models")
@pytest.mark.usefixtures("survives")
def test_garbage_torch_models(deployment: Deployment, torch_models: dict[str, bytes]) -> None:
    ai, key, sound = deployment.ai(), deployment.key("bad"), torch_models["add"]
    blobs = [b"\0", b"x" * 1000, sound[: len(sound) // 2], sound[:-1], add_model(), b"PK\x03\x04" + b"\0" * 500]
    for blob in blobs:
        with pytest.raises(redis.ResponseError):
            ai.modelstore(key, "TORCH", "CPU", blob)
    with pytest.raises(redis.ResponseError):
        ai.modelstore(key, "ONNX", "CPU", sound)
    assert not ai.exists(key)


@pytest.mark.torch
@covers("AI.MODELEXECUTE", "a model that fails when it runs")
@pytest.mark.usefixtures("survives")
def test_model_that_fails(deployment: Deployment, torch_models: dict[str, bytes]) -> None:
    ai, key, out = deployment.ai(), deployment.key("crash"), deployment.key("out")
    ai.modelstore(key, "TORCH", "CPU", torch_models["crash"])
    ai.tensorset(deployment.key("a"), np.array([1.0], dtype="float32"))
    with pytest.raises(redis.ResponseError):
        ai.modelexecute(key, [deployment.key("a")], [out])
    assert ai.infoget(key)["errors"] == 1
    ai.modelstore(key, "TORCH", "CPU", torch_models["hungry"])
    ai.tensorset(deployment.key("a"), np.array([1 << 40], dtype="int64"))
    with pytest.raises(redis.ResponseError):
        ai.modelexecute(key, [deployment.key("a")], [out])
    assert not ai.exists(out)


@covers("AI.INFO", "", better="the server counts, so a worker that ends loses no counts")
@pytest.mark.usefixtures("survives")
def test_statistics_outlive_the_worker(deployment: Deployment) -> None:
    ai, key, a = deployment.ai(), deployment.key("counted"), deployment.key("a")
    ai.modelstore(key, "ONNX", "CPU", add_model())
    ai.tensorset(a, np.array([1.0], dtype="float32"))
    ai.modelexecute(key, [a, a], [deployment.key("out")])
    counted = ai.infoget(key)
    worker = deployment.nodes[0].info("everything")["qa_worker_pid"]
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: deployment.nodes[0].info("everything")["qa_worker_pid"] not in (0, worker), RECOVERY_SECONDS)
    assert ai.infoget(key) == counted
    assert counted["calls"] == 1


@covers(
    "RG.PYEXECUTE",
    "scripts that crash",
    better="the client gets an error, a new worker starts; RedisGears' server crashed",
)
@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize(
    "body",
    [
        "import os; os._exit(3)",
        "import ctypes; ctypes.string_at(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["exit", "segfault", "kill"],
)
def test_crashing_functions(deployment: Deployment, body: str) -> None:
    with pytest.raises(redis.ResponseError, match="WORKERLOST"):
        deployment.raw("RG.PYEXECUTE", f"def f(r):\n    {body}\nGB('ShardsIDReader').map(f).run(mode='async_local')")


@covers("RG.PYEXECUTE", "scripts that crash")
@pytest.mark.usefixtures("survives")
def test_dependency_that_crashes(deployment: Deployment) -> None:
    with pytest.raises(redis.ResponseError, match="WORKERLOST"):
        deployment.raw("RG.PYEXECUTE", "import ctypes\nctypes.string_at(0)\nGB('ShardsIDReader').run()")


@covers("RG.PYEXECUTE", "scripts that crash")
@pytest.mark.usefixtures("survives")
def test_scripts_that_end_themselves(deployment: Deployment) -> None:
    for body in (
        "raise SystemExit(1)",
        "import sys; sys.exit()",
        "raise KeyboardInterrupt",
        "def f(): f()\nf()",
        "import no_such_module",
    ):
        with pytest.raises(redis.ResponseError):
            deployment.raw("RG.PYEXECUTE", body)
        function = f"def g(r):\n    exec({body!r}, {{}})\nGB('ShardsIDReader').map(g).run(mode='async_local')"
        _, errors = deployment.raw("RG.PYEXECUTE", function)
        assert len(errors) == 1


@pytest.mark.torch
@covers("AI.SCRIPTEXECUTE", "a script that never ends", better="a time limit ends it; RedisAI's server hung")
@pytest.mark.usefixtures("survives")
def test_endless_script(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("endless")
    source = """
def forever(tensors: List[Tensor], keys: List[str], args: List[str]):
    result = tensors[0]
    while bool((result < 1e9).all()):
        result = result * 1.0
    return result
"""
    ai.scriptstore(key, "CPU", source, "forever")
    ai.tensorset(deployment.key("a"), np.array([1.0], dtype="float32"))
    node = deployment.nodes[0]
    limit = node.config_get("qa.job-timeout-ms")["qa.job-timeout-ms"]
    node.config_set("qa.job-timeout-ms", 1000)
    try:
        with pytest.raises(redis.ResponseError):
            ai.scriptexecute(key, "forever", inputs=[deployment.key("a")], outputs=[deployment.key("out")])
        assert node.ping()
    finally:
        node.config_set("qa.job-timeout-ms", limit)


@covers(
    "GearsBuilder",
    "KeysReader: commands= with keymiss",
    better="the first read always gets its answer; MOVED and CROSSSLOT reach the client; no crash",
)
def test_the_first_read_returns_the_computed_answer(deployment: Deployment) -> None:
    # keyspace notifications are off, which disabled the event in some images of RedisGears
    assert deployment.nodes[0].config_get("notify-keyspace-events")["notify-keyspace-events"] == ""
    assert deployment.raw("RG.PYEXECUTE", HOOK) == "OK"
    answers: list[Any] = []

    def ask(number: int) -> None:
        with redis.Redis(port=deployment.ports[0], decode_responses=True) as client:
            answers.extend(client.get(deployment.key(f"ask:{number}:{turn}")) for turn in range(25))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["computed"] * 200


@covers("GearsBuilder", "KeysReader: eventTypes=['keymiss'] without commands=")
def test_plain_keymiss(deployment: Deployment) -> None:
    script = HOOK.replace("commands=['get'], ", "").replace("    override_reply('computed')\n", "")
    assert deployment.raw("RG.PYEXECUTE", script) == "OK"
    key = deployment.key("ask")
    assert deployment.raw("GET", key) is None
    assert eventually(lambda: deployment.raw("GET", key)) == "stored"


@covers("GearsBuilder", "KeysReader: commands= with keymiss")
def test_from_trigger_to_keymiss_with_a_model(deployment: Deployment) -> None:
    ai, model = deployment.ai(), deployment.key("model")
    ai.modelstore(model, "ONNX", "CPU", add_model())
    source = """
import redisAI
async def infer(value):
    t = redisAI.createTensorFromValues('FLOAT', [1], [value])
    runner = redisAI.createModelRunner('@model')
    redisAI.modelRunnerAddInput(runner, 'a', t)
    redisAI.modelRunnerAddInput(runner, 'b', t)
    redisAI.modelRunnerAddOutput(runner, 'sum')
    return redisAI.tensorToFlatList((await redisAI.modelRunnerRunAsync(runner))[0])[0]
async def by_trigger(record):
    return await infer(float(record[1]))
async def by_miss(record):
    override_reply(str(await infer(float(record['key'].split('_')[1]))))
GB('CommandReader').map(by_trigger).register(trigger='double', mode='async_local')
GB('KeysReader').map(by_miss).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", source.replace("@model", model))
    for number in range(10):
        assert deployment.raw("RG.TRIGGER", "double", number) == [str(2.0 * number)]
        assert deployment.raw("GET", f"{deployment.key('ask')}_{number}") == str(2.0 * number)


@covers("RG.UNREGISTER", "repeated")
def test_registering_many_times(deployment: Deployment) -> None:
    for turn in range(15):
        assert deployment.raw("RG.PYEXECUTE", HOOK) == "OK"
        assert deployment.raw("GET", deployment.key(f"ask:{turn}")) == "computed"
        (entry,) = deployment.registrations()
        assert deployment.raw("RG.UNREGISTER", entry["id"]) == "OK"
        assert deployment.raw("GET", deployment.key(f"ask:again:{turn}")) is None


@pytest.mark.shards(3)
@covers("GearsBuilder", "KeysReader: commands= with keymiss")
def test_redirects_of_hooked_commands(deployment: Deployment) -> None:
    script = HOOK.replace("commands=['get']", "commands=['get', 'mget', 'hget']")
    assert deployment.raw("RG.PYEXECUTE", script) == "OK"
    for shard in range(3):
        eventually(lambda shard=shard: deployment.registrations(shard))  # type: ignore[misc]
    for command in (("GET",), ("HGET", "f")):
        with pytest.raises(redis.ResponseError, match=f"MOVED .*:{deployment.ports[1]}$"):
            deployment.raw(command[0], deployment.key("ask", 1), *command[1:], shard=0)
    with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
        deployment.raw("MGET", deployment.key("ask", 0), deployment.key("ask", 1), shard=0)
    with deployment.cluster() as cluster:
        assert [cluster.get(deployment.key("ask", shard)) for shard in range(3)] == ["computed"] * 3


@covers("GearsBuilder", "KeysReader: commands= in MULTI and Lua: the command's own reply")
def test_where_blocking_is_not_allowed(deployment: Deployment) -> None:
    assert deployment.raw("RG.PYEXECUTE", HOOK) == "OK"
    key = deployment.key("ask")
    with deployment.nodes[0].pipeline(transaction=True) as pipeline:
        pipeline.get(key)
        assert pipeline.execute() == [None]
    assert deployment.nodes[0].eval("return redis.call('get', KEYS[1])", 1, deployment.key("ask2")) is None


@covers("GearsBuilder", "KeysReader: commands=, the function fails: the command's own reply")
def test_failing_handler(deployment: Deployment) -> None:
    assert (
        deployment.raw("RG.PYEXECUTE", HOOK.replace("override_reply('computed')", "raise Exception('no luck')")) == "OK"
    )
    assert deployment.raw("GET", deployment.key("ask")) is None
    (entry,) = deployment.registrations()
    assert entry["RegistrationData"]["numFailures"] == 1
    assert "no luck" in entry["RegistrationData"]["lastError"]
