"""The module `redisAI` inside functions: tensors, models, scripts and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.deployment import Deployment
from tests.gears.onnx_file import add_model
from tests.harness.polling import eventually

covers = pytest.mark.covers


def run(deployment: Deployment, source: str, **names: str) -> Any:
    """Run the coroutine `f` of a script on the first shard and return its result."""
    text = source
    for name, key in names.items():
        text = text.replace(f"@{name}", key)
    results, errors = deployment.raw(
        "RG.PYEXECUTE", f"import redisAI\n{text}\nGB('ShardsIDReader').map(f).run(mode='async_local')"
    )
    assert not errors, errors
    return results[0]


@covers("redisAI", "createTensorFromValues, createTensorFromBlob, tensorToFlatList, tensorGetDataAsBlob, tensorGetDims")
@covers("redisAI", "setTensorInKey, getTensorFromKey", better="its writes are replicated and cause events")
@covers("redisAI", "msetTensorsInKeyspace, mgetTensorsFromKeyspace")
def test_tensors(deployment: Deployment) -> None:
    source = """
def f(_record):
    t = redisAI.createTensorFromValues('FLOAT', [2, 2], iter([1.0, 2.0, 3.0, 4.0]))
    u = redisAI.createTensorFromBlob('INT64', [3], (1).to_bytes(8, 'little') * 3)
    redisAI.setTensorInKey('@a', t)
    redisAI.msetTensorsInKeyspace({'@b': u, '@c': t})
    a = redisAI.getTensorFromKey('@a')
    b, c = redisAI.mgetTensorsFromKeyspace(['@b', '@c'])
    size = len(redisAI.tensorGetDataAsBlob(b))
    return [redisAI.tensorToFlatList(a), redisAI.tensorGetDims(a), redisAI.tensorGetDims(b), size]
"""
    names = {name: deployment.key(name) for name in "abc"}
    assert run(deployment, source, **names) == "[[1.0, 2.0, 3.0, 4.0], (2, 2), (3,), 24]"
    assert deployment.ai().tensorget(names["a"]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert deployment.ai().tensorget(names["b"]).tolist() == [1, 1, 1]


@covers("redisAI", "errors of tensors")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("redisAI.getTensorFromKey('@none')", "tensor key is empty"),
        ("redisAI.getTensorFromKey('@text')", "key is not a tensor"),
        (
            "redisAI.setTensorInKey('@text', redisAI.createTensorFromValues('FLOAT', [1], [1.0]))",
            "Key is already set with non tensor values",
        ),
        ("redisAI.createTensorFromBlob('FLOAT', [2], b'abc')", "data length does not match tensor shape and type"),
        ("redisAI.createTensorFromValues('FLOAT', [1], ['x'])", "values arguments must be double"),
        ("redisAI.createModelRunner('@none')", "given key do not contain RedisAI model|model key is empty"),
    ],
)
def test_tensor_errors(deployment: Deployment, call: str, text: str) -> None:
    deployment.raw("SET", deployment.key("text"), "x")
    source = f"def f(_record):\n    return {call}\n"
    with pytest.raises(AssertionError, match=text):
        run(deployment, source, none=deployment.key("none"), text=deployment.key("text"))


@covers("redisAI", "createModelRunner, modelRunnerAddInput, modelRunnerAddOutput, modelRunnerRunAsync")
def test_model_runner(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("model")
    ai.modelstore(key, "ONNX", "CPU", add_model())
    source = """
async def f(_record):
    t = redisAI.createTensorFromValues('FLOAT', [2], [1.0, 2.0])
    runner = redisAI.createModelRunner('@model')
    redisAI.modelRunnerAddInput(runner, 'a', t)
    redisAI.modelRunnerAddInput(runner, 'b', t)
    redisAI.modelRunnerAddOutput(runner, 'sum')
    results = await redisAI.modelRunnerRunAsync(runner)
    return redisAI.tensorToFlatList(results[0])
"""
    assert run(deployment, source, model=key) == "[2.0, 4.0]"
    again = source.replace("    return", "    await redisAI.modelRunnerRunAsync(runner)\n    return")
    with pytest.raises(AssertionError, match="PyGraphRunner is invalid"):
        run(deployment, again, model=key)


@covers("redisAI", "modelRunnerRun of a TorchScript model, and refused for ONNX")
@pytest.mark.torch
def test_synchronous_run(deployment: Deployment, torch_models: dict[str, bytes]) -> None:
    ai = deployment.ai()
    ai.modelstore(deployment.key("onnx"), "ONNX", "CPU", add_model())
    ai.modelstore(deployment.key("torch"), "TORCH", "CPU", torch_models["add"])
    source = """
def f(_record):
    t = redisAI.createTensorFromValues('FLOAT', [2], [1.0, 2.0])
    runner = redisAI.createModelRunner('@model')
    redisAI.modelRunnerAddInput(runner, 'a', t)
    redisAI.modelRunnerAddInput(runner, 'b', t)
    redisAI.modelRunnerAddOutput(runner, 'sum')
    return redisAI.tensorToFlatList(redisAI.modelRunnerRun(runner)[0])
"""
    with pytest.raises(
        AssertionError, match="Cannot execute onnxruntime model synchronously, use async execution instead"
    ):
        run(deployment, source, model=deployment.key("onnx"))
    assert run(deployment, source, model=deployment.key("torch")) == "[2.0, 4.0]"


@pytest.mark.torch
@covers(
    "redisAI",
    "createScriptRunner, scriptRunnerAddInput, scriptRunnerAddInputList, scriptRunnerAddOutput",
    "scriptRunnerRun, scriptRunnerRunAsync",
)
def test_script_runner(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("script")
    with pytest.warns(DeprecationWarning):
        ai.scriptset(
            key, "CPU", "def add(a, b):\n    return a + b\n\ndef total(l: List[Tensor]):\n    return l[0] + l[1]\n"
        )
    source = """
async def f(_record):
    t = redisAI.createTensorFromValues('FLOAT', [2], [1.0, 2.0])
    runner = redisAI.createScriptRunner('@script', 'add')
    redisAI.scriptRunnerAddInput(runner, t)
    redisAI.scriptRunnerAddInput(runner, t)
    redisAI.scriptRunnerAddOutput(runner)
    first = await redisAI.scriptRunnerRunAsync(runner)
    runner = redisAI.createScriptRunner('@script', 'total')
    redisAI.scriptRunnerAddInputList(runner, [t, t])
    redisAI.scriptRunnerAddOutput(runner)
    second = redisAI.scriptRunnerRun(runner)
    return [redisAI.tensorToFlatList(first[0]), redisAI.tensorToFlatList(second[0])]
"""
    assert run(deployment, source, script=key) == "[[2.0, 4.0], [2.0, 4.0]]"


@covers("redisAI", "createDAGRunner: Input, TensorSet, TensorGet, ModelRun, OpsFromString, Run")
def test_dag_runner(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("model")
    ai.modelstore(key, "ONNX", "CPU", add_model())
    source = """
async def f(_record):
    t = redisAI.createTensorFromValues('FLOAT', [2], [1.0, 2.0])
    dag = redisAI.createDAGRunner()
    dag.Input('x', t)
    dag.TensorSet('y', t)
    dag.ModelRun(name='@model', inputs=['x', 'y'], outputs=['sum'])
    dag.TensorGet('sum')
    first = await dag.Run()
    dag = redisAI.createDAGRunner()
    dag.Input('x', t)
    dag.OpsFromString('|> AI.MODELEXECUTE @model INPUTS 2 x x OUTPUTS 1 z |> AI.TENSORGET z')
    second = await dag.Run()
    return [redisAI.tensorToFlatList(first[0]), redisAI.tensorToFlatList(second[0])]
"""
    assert run(deployment, source, model=key) == "[[2.0, 4.0], [2.0, 4.0]]"


@covers("redisAI", "tensors of clients in functions and back")
def test_with_the_client(deployment: Deployment) -> None:
    ai, given, made = deployment.ai(), deployment.key("given"), deployment.key("made")
    source = """
def double(record):
    t = redisAI.getTensorFromKey('@given')
    values = [2 * v for v in redisAI.tensorToFlatList(t)]
    redisAI.setTensorInKey('@made', redisAI.createTensorFromValues('DOUBLE', redisAI.tensorGetDims(t), values))
GB().foreach(double).register('@given', eventTypes=['ai.tensorset'], readValue=False, mode='async_local')
"""
    for name, key in (("given", given), ("made", made)):
        source = source.replace(f"@{name}", key)
    deployment.raw("RG.PYEXECUTE", "import redisAI\n" + source)
    ai.tensorset(given, np.array([[1.5, 2.5]]))
    eventually(lambda: ai.exists(made))
    assert ai.tensorget(made).tolist() == [[3.0, 5.0]]
