"""redisai: TorchScript scripts, entry points, the deprecated call, and Redis commands in scripts."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import redis

from tests.conformance.deployment import Deployment
from tests.gears.onnx_file import add_model

covers = pytest.mark.covers
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")]

SCRIPT = """
def bar(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + tensors[1]

def scaled(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] * float(args[0])

def pair(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0], tensors[0] + 1

def total(tensors: List[Tensor], keys: List[str], args: List[str]):
    result = torch.zeros_like(tensors[0])
    for tensor in tensors:
        result += tensor
    return result

def fails(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[7]

def no_tensor(tensors: List[Tensor], keys: List[str], args: List[str]):
    return 3
"""
POINTS = ["bar", "scaled", "pair", "total", "fails", "no_tensor"]
OLD = """
def bar(a, b):
    return a + b

def bar_variadic(a, args: List[Tensor]):
    return args[0] + args[1]
"""
COMMANDS = """
def counts(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], args[0])
    redis.execute("INCR", keys[0])
    return torch.tensor(int(str(redis.execute("GET", keys[0])))).reshape(1)

def listed(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("RPUSH", keys[0], args)
    values = redis.asList(redis.execute("LRANGE", keys[0], "0", "-1"))
    return torch.tensor(len(values)).reshape(1)

def broken(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("HGET", keys[0])
    return tensors[0]

def infer(tensors: List[Tensor], keys: List[str], args: List[str]):
    return redisAI.model_execute(keys[0], tensors, 1)[0]
"""


def set_inputs(deployment: Deployment) -> tuple[str, str, str]:
    """Set two tensors; return their keys and a third key."""
    ai = deployment.ai()
    a, b, out = (deployment.key(name) for name in ("a", "b", "out"))
    ai.tensorset(a, np.array([1, 2], dtype="float32"))
    ai.tensorset(b, np.array([3, 4], dtype="float32"))
    return a, b, out


@covers(
    "AI.SCRIPTSTORE",
    "",
    better="the worker compiles and runs it, so a script that fails or hangs does not affect the server",
)
@covers("AI.SCRIPTSTORE", "TAG", "ENTRY_POINTS")
@covers("AI.SCRIPTGET", "META", "META and SOURCE")
@covers("AI.SCRIPTDEL", "")
@covers("AI._SCRIPTSCAN", "")
def test_store_and_get(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    assert ai.scriptstore(key, "CPU", SCRIPT, POINTS, tag="v1") == "OK"
    got = ai.scriptget(key)
    assert (got["device"], got["tag"], got["source"]) == ("CPU", "v1", SCRIPT)
    assert [name.decode() for name in got["entry points"]] == POINTS
    assert "source" not in ai.scriptget(key, meta_only=True)
    assert deployment.raw("AI.SCRIPTGET", key, "SOURCE") == SCRIPT
    assert ai.scriptscan() == [[key, "v1"]]
    assert ai.scriptdel(key) == "OK"
    assert ai.scriptscan() == []
    with pytest.raises(redis.ResponseError, match="script key is empty"):
        ai.scriptget(key)
    with pytest.raises(redis.ResponseError, match="script key is empty"):
        ai.scriptdel(key)


@covers("AI.SCRIPTEXECUTE", "INPUTS, OUTPUTS", "ARGS", "TIMEOUT")
def test_execute(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    a, b, out = set_inputs(deployment)
    other = deployment.key("out2")
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    assert ai.scriptexecute(key, "bar", inputs=[a, b], outputs=[out]) == "OK"
    assert ai.tensorget(out).tolist() == [4.0, 6.0]
    assert ai.scriptexecute(key, "scaled", inputs=a, args=["2.5"], outputs=out) == "OK"
    assert ai.tensorget(out).tolist() == [2.5, 5.0]
    assert ai.scriptexecute(key, "pair", inputs=[a], outputs=[out, other], timeout=10_000) == "OK"
    assert ai.tensorget(other).tolist() == [2.0, 3.0]
    assert ai.scriptexecute(key, "total", keys=[key], inputs=[a, b, a], outputs=[out]) == "OK"
    assert ai.tensorget(out).tolist() == [5.0, 8.0]


@covers("AI.SCRIPTEXECUTE", "KEYS", "redis.execute, redis.asList")
def test_commands_inside(deployment: Deployment) -> None:
    ai, key, out = deployment.ai(), deployment.key("script"), deployment.key("out")
    a, _, _ = set_inputs(deployment)
    assert ai.scriptstore(key, "CPU", COMMANDS, ["counts", "listed", "broken", "infer"]) == "OK"
    counter, names = deployment.key("counter"), deployment.key("names")
    assert ai.scriptexecute(key, "counts", keys=[counter], args=["41"], outputs=[out]) == "OK"
    assert ai.tensorget(out).tolist() == [42]
    assert ai.get(counter) == b"42"
    assert ai.scriptexecute(key, "listed", keys=names, args=["x", "y", "z"], outputs=out) == "OK"
    assert ai.tensorget(out).tolist() == [3]
    with pytest.raises(redis.ResponseError, match="Redis command returned an error"):
        ai.scriptexecute(key, "broken", keys=[names], inputs=[a], outputs=[out])


@covers("AI.SCRIPTEXECUTE", "redis.execute: rights", better="commands run with the rights of the script's caller")
def test_rights_inside(deployment: Deployment) -> None:
    ai, key, counter, out = deployment.ai(), deployment.key("script"), deployment.key("counter"), deployment.key("out")
    ai.scriptstore(key, "CPU", COMMANDS, ["counts"])
    deployment.raw("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-set")
    try:
        limited = deployment.ai(username="limited", password="secret")
        with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|noperm"):
            limited.scriptexecute(key, "counts", keys=[counter], args=["41"], outputs=[out])
    finally:
        deployment.raw("ACL", "DELUSER", "limited")
    assert not ai.exists(counter)


@covers("AI.SCRIPTEXECUTE", "redisAI.model_execute")
def test_models_inside(deployment: Deployment) -> None:
    ai, key, model = deployment.ai(), deployment.key("script"), deployment.key("model")
    a, b, out = set_inputs(deployment)
    ai.modelstore(model, "ONNX", "CPU", add_model())
    ai.scriptstore(key, "CPU", COMMANDS, "infer")
    assert ai.scriptexecute(key, "infer", keys=[model], inputs=[a, b], outputs=[out]) == "OK"
    assert ai.tensorget(out).tolist() == [4.0, 6.0]


@covers("AI.SCRIPTSET", "")
@covers("AI.SCRIPTRUN", "", "$ variadic")
def test_deprecated_commands(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("old")
    a, b, out = set_inputs(deployment)
    assert ai.scriptset(key, "CPU", OLD, tag="old") == "OK"
    assert ai.scriptget(key)["tag"] == "old"
    assert ai.scriptrun(key, "bar", [a, b], [out]) == "OK"
    assert ai.tensorget(out).tolist() == [4.0, 6.0]
    assert ai.scriptrun(key, "bar_variadic", [a, "$", a, b], [out]) == "OK"
    assert ai.tensorget(out).tolist() == [4.0, 6.0]
    assert ai.scriptexecute(key, "bar", inputs=[a, b], outputs=[out]) == "OK"


@covers("AI.SCRIPTSTORE", "errors")
def test_refused_scripts(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    for source, point, text in (
        (SCRIPT, "missing", "Function missing does not exist in the given script."),
        ("def f(a):\n    return a\n", "f", "Wrong number of inputs in function f. Expected 3 but was 1"),
        (
            "def f(tensors: List[Tensor], keys: List[str], args: List[Tensor]):\n    return tensors[0]\n",
            "f",
            "Wrong inputs type in function f. Expected signature similar to: "
            "def f(tensors: List[Tensor], keys: List[str], args: List[str])",
        ),
    ):
        with pytest.raises(redis.ResponseError) as caught:
            ai.scriptstore(key, "CPU", source, point)
        assert text in str(caught.value)
    with pytest.raises(redis.ResponseError):
        ai.scriptstore(key, "CPU", "def f(:\n", "f")
    # tests/module/test_script.py has the argument errors
    assert ai.scriptget(key)["source"] == SCRIPT


@covers("AI.SCRIPTEXECUTE", "errors")
def test_refused_calls(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    a, b, out = set_inputs(deployment)
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    none = deployment.key("none")
    for call, text in (
        (lambda: ai.scriptexecute(none, "bar", inputs=[a, b], outputs=[out]), "script key is empty"),
        (
            lambda: ai.scriptexecute(key, "bar", inputs=[none, b], outputs=[out]),
            "tensor key is empty or in a different shard",
        ),
        (lambda: ai.scriptexecute(key, "missing", inputs=[a, b], outputs=[out]), "Function does not exist: missing"),
        (
            lambda: ai.scriptexecute(key, "pair", inputs=[a], outputs=[out]),
            "Function returned unexpected number of outputs - pair",
        ),
        (lambda: ai.scriptexecute(key, "no_tensor", inputs=[a], outputs=[out]), "Function returned non-tensor values"),
    ):
        with pytest.raises(redis.ResponseError) as caught:
            call()
        assert text in str(caught.value)
    with pytest.raises(redis.ResponseError):
        ai.scriptexecute(key, "fails", inputs=[a], outputs=[out])
    assert not ai.exists(out)


@covers("AI.INFO", "of a script")
def test_info(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    a, b, out = set_inputs(deployment)
    ai.scriptstore(key, "CPU", SCRIPT, POINTS, tag="t")
    ai.scriptexecute(key, "bar", inputs=[a, b], outputs=[out])
    with pytest.raises(redis.ResponseError):
        ai.scriptexecute(key, "fails", inputs=[a], outputs=[out])
    info = ai.infoget(key)
    assert (info["type"], info["backend"], info["tag"]) == ("SCRIPT", "TORCH", "t")
    assert (info["calls"], info["errors"], info["samples"]) == (2, 1, -1)
    assert ai.inforeset(key) == "OK"
    assert ai.infoget(key)["calls"] == 0


@covers(
    "AI.SCRIPTSTORE",
    "keys: COPY, DUMP, MEMORY USAGE",
    better="COPY and MEMORY USAGE work",
)
def test_scripts_are_keys(deployment: Deployment) -> None:
    ai, key, other = deployment.ai(), deployment.key("script"), deployment.key("copy")
    a, b, out = set_inputs(deployment)
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    assert ai.type(key) == b"AI_SCRIPT"
    assert ai.memory_usage(key) >= len(SCRIPT)
    assert ai.copy(key, other)
    payload = ai.dump(key)
    ai.delete(key)
    assert ai.scriptexecute(other, "bar", inputs=[a, b], outputs=[out]) == "OK"
    ai.restore(key, 0, payload)
    assert ai.scriptexecute(key, "bar", inputs=[a, b], outputs=[out]) == "OK"


@covers("AI.SCRIPTEXECUTE", "several at once")
def test_many_callers(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    a, b, _ = set_inputs(deployment)
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    outputs = [deployment.key(f"out:{number}") for number in range(8)]

    def call(out: str) -> None:
        deployment.ai().scriptexecute(key, "bar", inputs=[a, b], outputs=[out])

    threads = [threading.Thread(target=call, args=(out,)) for out in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ai.tensorget(out).tolist() == [4.0, 6.0] for out in outputs)


@pytest.mark.shards(3)
@covers("AI.SCRIPTEXECUTE", "MOVED, CROSSSLOT")
def test_wrong_shard(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    a, b, out = set_inputs(deployment)
    ai.scriptstore(key, "CPU", SCRIPT, POINTS)
    with pytest.raises(redis.ResponseError, match="MOVED"):
        deployment.ai(1).scriptexecute(key, "bar", inputs=[a, b], outputs=[out])
    with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
        ai.scriptexecute(key, "bar", keys=[deployment.key("k", 1)], inputs=[a, b], outputs=[out])
