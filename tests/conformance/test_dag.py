"""redisai: graphs of steps (DAG), the keys that they persist, and refused graphs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import redis

from tests.conformance.deployment import Deployment
from tests.gears.onnx_file import add_model

covers = pytest.mark.covers
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
SLOW = """
def slow(tensors: List[Tensor], keys: List[str], args: List[str]):
    result = tensors[0]
    for i in range(int(args[0])):
        result = result + 1
    return result
"""


@pytest.fixture
def model(deployment: Deployment) -> str:
    """The key of a model that adds two tensors; the keys `a` and `b` in the same slot are tensors."""
    ai, key = deployment.ai(), deployment.key("model")
    ai.modelstore(key, "ONNX", "CPU", add_model())
    ai.tensorset(deployment.key("a"), np.array([1, 2], dtype="float32"))
    ai.tensorset(deployment.key("b"), np.array([3, 4], dtype="float32"))
    return key


@covers("AI.DAGEXECUTE", "", "LOAD", "PERSIST", "steps AI.TENSORSET, AI.TENSORGET, AI.MODELEXECUTE")
def test_load_run_persist(deployment: Deployment, model: str) -> None:
    ai, out = deployment.ai(), deployment.key("out")
    dag = ai.dag(load=[deployment.key("a")], persist=[out])
    dag.tensorset("local", np.array([10, 20], dtype="float32"))
    dag.modelexecute(model, [deployment.key("a"), "local"], ["sum"])
    dag.modelexecute(model, ["sum", "local"], [out])
    dag.tensorget("sum")
    dag.tensorget(out, as_numpy=False)
    first, second, third, total, again = dag.execute()
    assert (first, second, third) == ("OK", "OK", "OK")
    assert total.tolist() == [11.0, 22.0]
    assert again["values"] == [21.0, 42.0]
    assert ai.tensorget(out).tolist() == [21.0, 42.0]
    assert ai.modelexecute(model, [out, deployment.key("b")], [out]) == "OK"


@covers("AI.DAGEXECUTE", "ROUTING", "TIMEOUT")
def test_routing_and_timeout(deployment: Deployment, model: str) -> None:
    for options in (
        {"routing": model},
        {"load": deployment.key("a"), "timeout": 10_000},
        {"persist": "p" + deployment.key("")},
    ):
        dag = deployment.ai().dag(**options)
        name = options.get("persist", "x")
        got = dag.tensorset(name, [1.0, 2.0], dtype="float").tensorget(name).execute()
        assert got[0] == "OK"
        assert got[1].tolist() == [1.0, 2.0]


@covers("AI.DAGEXECUTE", "a name written twice")
def test_names_are_assigned_again(deployment: Deployment, model: str) -> None:
    dag = deployment.ai().dag(load=[deployment.key("a"), deployment.key("b")])
    a, b = deployment.key("a"), deployment.key("b")
    dag.modelexecute(model, [a, b], ["x"]).modelexecute(model, ["x", "x"], ["x"]).tensorget("x")
    assert dag.execute()[2].tolist() == [8.0, 12.0]


@covers("AI.DAGEXECUTE_RO", "", "LOAD")
def test_read_only(deployment: Deployment, model: str) -> None:
    ai, a = deployment.ai(), deployment.key("a")
    dag = ai.dag(load=[a], readonly=True)
    got = dag.modelexecute(model, [a, a], ["twice"]).tensorget("twice").execute()
    assert got[1].tolist() == [2.0, 4.0]
    with pytest.raises(redis.ResponseError, match="PERSIST cannot be specified in a read-only DAG"):
        deployment.raw("AI.DAGEXECUTE_RO", "LOAD", 1, a, "PERSIST", 1, a, "|>", "AI.TENSORGET", a)
    with pytest.raises(redis.ResponseError, match=r"AI.SCRIPTEXECUTE command cannot be specified in a read-only DAG"):
        deployment.raw(
            "AI.DAGEXECUTE_RO", "LOAD", 1, a, "|>", "AI.SCRIPTEXECUTE", a, "f", "INPUTS", 1, a, "OUTPUTS", 1, "x"
        )


@pytest.mark.torch
@covers("AI.DAGEXECUTE", "step AI.SCRIPTEXECUTE")
def test_script_step(deployment: Deployment, model: str) -> None:
    ai, script, a, out = deployment.ai(), deployment.key("script"), deployment.key("a"), deployment.key("out")
    ai.scriptstore(script, "CPU", SLOW, "slow")
    dag = ai.dag(load=a, persist=out)
    dag.scriptexecute(script, "slow", inputs=[a], args=["5"], outputs=["plus"])
    dag.modelexecute(model, ["plus", a], [out])
    assert dag.execute() == ["OK", "OK"]
    assert ai.tensorget(out).tolist() == [7.0, 9.0]


@pytest.mark.torch
@covers("AI.DAGEXECUTE", "steps whose inputs are ready run in parallel on their devices")
def test_parallel_devices(deployment: Deployment, model: str) -> None:
    ai, a = deployment.ai(), deployment.key("a")
    for device in ("CPU", "CPU:1"):
        deployment.raw("AI.SCRIPTSTORE", deployment.key(device), device, "ENTRY_POINTS", 1, "slow", "SOURCE", SLOW)
    dag = ai.dag(load=[a])
    for device in ("CPU", "CPU:1"):
        dag.scriptexecute(deployment.key(device), "slow", inputs=[a], args=["1000"], outputs=[device])
    dag.modelexecute(model, ["CPU", "CPU:1"], ["total"]).tensorget("total")
    assert dag.execute()[3].tolist() == [2002.0, 2004.0]


@covers("AI.DAGEXECUTE", "an error: nothing is persisted, later steps return NA")
def test_error_persists_nothing(deployment: Deployment, model: str) -> None:
    ai, a, out = deployment.ai(), deployment.key("a"), deployment.key("out")
    ai.tensorset(deployment.key("ints"), [1, 2, 3], dtype="int64")
    reply = deployment.raw(
        *("AI.DAGEXECUTE", "LOAD", 2, a, deployment.key("ints"), "PERSIST", 1, out, "|>"),
        *("AI.MODELEXECUTE", model, "INPUTS", 2, a, a, "OUTPUTS", 1, out, "|>"),
        *("AI.MODELEXECUTE", model, "INPUTS", 2, out, deployment.key("ints"), "OUTPUTS", 1, "bad", "|>"),
        *("AI.TENSORGET", "bad", "VALUES"),
    )
    assert reply[0] == "OK"
    assert isinstance(reply[1], redis.ResponseError)
    assert reply[2] == "NA"
    assert not ai.exists(out)


@covers("AI.DAGEXECUTE", "errors")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        # tests/module/test_dag_errors.py has the other errors
        ("PERSIST 1 {c} |> AI.TENSORSET x FLOAT 1", "PERSIST key cannot be found in DAG"),
        ("LOAD 1 {c} |> AI.TENSORGET {c}", "tensor key is empty or in a different shard"),
        # this graph crashed RedisAI
        ("LOAD 1 {a} |> AI.MODELEXECUTE {m}", "wrong number of arguments for 'AI.MODELEXECUTE' command"),
    ],
)
def test_refused(deployment: Deployment, model: str, words: str, text: str) -> None:
    names = {"a": deployment.key("a"), "c": deployment.key("c"), "m": model}
    with pytest.raises(redis.ResponseError, match=text):
        deployment.raw("AI.DAGEXECUTE", *(word.format(**names) for word in words.split()))


@pytest.mark.left_out(
    "AI.DAGRUN", why="deprecated by RedisAI itself", instead="AI.DAGEXECUTE with LOAD, PERSIST or ROUTING"
)
@pytest.mark.left_out(
    "AI.DAGRUN_RO", why="deprecated by RedisAI itself", instead="AI.DAGEXECUTE_RO with LOAD or ROUTING"
)
def test_deprecated_form(deployment: Deployment) -> None:
    for readonly in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dag = deployment.ai().dag(readonly=readonly)
        with pytest.raises(redis.ResponseError, match=r"AI\.DAGEXECUTE"):
            dag.tensorset("x", [1.0], dtype="float").execute()


@covers("AI.DAGEXECUTE", "the client's deprecated run and modelrun")
def test_old_names_of_the_builder(deployment: Deployment, model: str) -> None:
    a = deployment.key("a")
    got = deployment.ai().dag(load=a).modelrun(model, [a, a], ["twice"]).tensorget("twice").run()
    assert got[1].tolist() == [2.0, 4.0]


@pytest.mark.torch
@covers("AI.DAGEXECUTE", "TIMEOUT counts waiting only")
def test_timeout(deployment: Deployment, model: str) -> None:
    ai, a = deployment.ai(), deployment.key("a")
    waiting = deployment.key("waiting")
    ai.modelstore(waiting, "ONNX", "CPU", add_model(), batch=8, minbatch=8, minbatchtimeout=3000)
    reply = deployment.raw(
        *("AI.DAGEXECUTE", "LOAD", 1, a, "TIMEOUT", 100, "|>"),
        *("AI.MODELEXECUTE", waiting, "INPUTS", 2, a, a, "OUTPUTS", 1, "x", "|>", "AI.TENSORGET", "x", "VALUES"),
    )
    assert reply == "TIMEDOUT"  # a batch that ran after 3 s would return values


@pytest.mark.shards(3)
@covers("AI.DAGEXECUTE", "MOVED, CROSSSLOT")
def test_wrong_shard(deployment: Deployment, model: str) -> None:
    a = deployment.key("a")
    dag = deployment.ai(1).dag(load=a).tensorget(a)
    with pytest.raises(redis.ResponseError, match="MOVED"):
        dag.execute()
    dag = deployment.ai(0).dag(load=a, persist=deployment.key("p", 1)).tensorget(a)
    with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
        dag.execute()
