"""TorchScript on a real server: models and scripts by commands and in functions, restarts, and endless loops."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.torch import models
from tests.torch.conftest import JOB_TIMEOUT_MS

ENTRY = "(tensors: List[Tensor], keys: List[str], args: List[str]):\n    "
SCRIPT = (
    f"def bar{ENTRY}return tensors[0] + tensors[1]\n"
    f"def count{ENTRY}redis.execute('SET', keys[0], args[0])\n"
    "    redis.execute('INCRBY', keys[0], 5)\n"
    "    return torch.tensor(int(str(redis.execute('GET', keys[0]))))\n"
    f"def listed{ENTRY}redis.execute('DEL', keys[0])\n"
    "    redis.execute('RPUSH', keys[0], args)\n"
    "    found: List[int] = []\n"
    "    for value in redis.asList(redis.execute('LRANGE', keys[0], '0', '-1')):\n"
    "        found.append(int(str(value)))\n"
    "    return torch.tensor(found)\n"
    f"def wrong{ENTRY}redis.execute('HGET', keys[0])\n    return tensors[0]\n"
    f"def through{ENTRY}return redisAI.model_execute(keys[0], tensors, 1)\n"
    f"def endless{ENTRY}a = tensors[0]\n"
    "    while bool(a.sum() > 0):\n        a = a * 1\n    return a\n"
)
ENTRY_POINTS = ("bar", "count", "listed", "wrong", "through", "endless")


def run(server: Server, *words: object) -> Any:
    with server.client(socket_timeout=JOB_TIMEOUT_MS / 1000) as client:
        return client.execute_command(*words)


@pytest.fixture(scope="module")
def shard(torch_shard: Server) -> Server:
    run(torch_shard, "AI.MODELSTORE", "add", "TORCH", "CPU", "BLOB", models.file_of(models.Add()))
    run(torch_shard, "AI.SCRIPTSTORE", "scr", "CPU", "ENTRY_POINTS", len(ENTRY_POINTS), *ENTRY_POINTS, "SOURCE", SCRIPT)
    run(torch_shard, "AI.TENSORSET", "a", "FLOAT", 2, "VALUES", 1, 2)
    run(torch_shard, "AI.TENSORSET", "b", "FLOAT", 2, "VALUES", 3, 4)
    return torch_shard


def test_a_model_by_commands(shard: Server) -> None:
    assert run(shard, "AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
    assert run(shard, "AI.TENSORGET", "c", "VALUES") == [4.0, 6.0]
    meta = run(shard, "AI.MODELGET", "add", "META")
    meta = dict(zip(meta[::2], meta[1::2], strict=True)) if isinstance(meta, list) else meta
    assert (meta["backend"], meta["inputs"], meta["outputs"]) == ("TORCH", ["a", "b"], [""])
    run(shard, "AI.TENSORSET", "three", "FLOAT", 3, "VALUES", 1, 2, 3)
    with pytest.raises(redis.ResponseError, match=r"The size of tensor a \(2\) must match"):
        run(shard, "AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "three", "OUTPUTS", 1, "c")
    with pytest.raises(redis.ResponseError, match="not a TorchScript file"):
        run(shard, "AI.MODELSTORE", "bad", "TORCH", "CPU", "BLOB", b"garbage")
    assert run(shard, "EXISTS", "bad") == 0


def test_a_batch_that_cannot_be_split_fails_all(shard: Server) -> None:
    blob = models.file_of(models.AddAndOne())
    run(shard, "AI.MODELSTORE", "bb", "TORCH", "CPU", "BATCHSIZE", 4, "MINBATCHSIZE", 4, "BLOB", blob)
    run(shard, "AI.TENSORSET", "m", "FLOAT", 2, 2, "VALUES", 1, 2, 3, 4)
    words = ("AI.MODELEXECUTE", "bb", "INPUTS", 2, "m", "m", "OUTPUTS", 2, "o1", "o2")
    with ThreadPoolExecutor(2) as pool:
        for outcome in [pool.submit(run, shard, *words) for _ in range(2)]:
            with pytest.raises(redis.ResponseError, match="Model did not generate the expected batch size"):
                outcome.result(60)


def test_a_script_by_commands(shard: Server) -> None:
    words = ("AI.SCRIPTEXECUTE", "scr")
    assert run(shard, *words, "bar", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
    assert run(shard, "AI.TENSORGET", "c", "VALUES") == [4.0, 6.0]
    assert run(shard, *words, "count", "KEYS", 1, "n", "ARGS", 1, "7", "OUTPUTS", 1, "c") == "OK"
    assert run(shard, "AI.TENSORGET", "c", "VALUES") == [12]
    assert run(shard, *words, "listed", "KEYS", 1, "l", "ARGS", 3, "1", "2", "3", "OUTPUTS", 1, "c") == "OK"
    assert run(shard, "AI.TENSORGET", "c", "VALUES") == [1, 2, 3]
    assert run(shard, *words, "through", "KEYS", 1, "add", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
    assert run(shard, "AI.TENSORGET", "c", "VALUES") == [4.0, 6.0]
    with pytest.raises(redis.ResponseError, match="Redis command returned an error: ERR wrong number of arguments"):
        run(shard, *words, "wrong", "KEYS", 1, "n", "INPUTS", 1, "a", "OUTPUTS", 1, "c")
    with pytest.raises(redis.ResponseError, match="Redis command returned an error: ERR model key is empty"):
        run(shard, *words, "through", "KEYS", 1, "none", "INPUTS", 1, "a", "OUTPUTS", 1, "c")


def test_a_script_has_the_rights_of_its_caller(shard: Server) -> None:
    run(shard, "ACL", "SETUSER", "tenant", "on", ">secret", "~mine*", "~scr", "~a", "+@all", "-set")
    with shard.client(username="tenant", password="secret") as client:
        with pytest.raises(redis.ResponseError, match="Redis command returned an error: NOPERM"):
            client.execute_command("AI.SCRIPTEXECUTE", "scr", "count", "KEYS", 1, "mine", "ARGS", 1, "7")
        with pytest.raises(redis.ResponseError, match="Redis command returned an error: NOPERM"):
            # the key is not among the command's KEYS: only the script's own call touches it
            source = "def peek(a):\n    redis.execute('LPUSH', 'yours', 'x')\n    return a\n"
            run(shard, "AI.SCRIPTSET", "mine:scr", "CPU", "SOURCE", source)
            client.execute_command("AI.SCRIPTEXECUTE", "mine:scr", "peek", "INPUTS", 1, "a", "OUTPUTS", 1, "mine:c")
    assert run(shard, "EXISTS", "yours") == 0


FUNCTIONS = """
import redisAI
async def work(record):
    a, b = redisAI.mgetTensorsFromKeyspace(['a', 'b'])
    runner = redisAI.createModelRunner('add')
    for tensor in (a, b):
        redisAI.modelRunnerAddInput(runner, 'x', tensor)
    redisAI.modelRunnerAddOutput(runner, 'y')
    (waited,) = redisAI.modelRunnerRun(runner)
    calls = redisAI.createScriptRunner('scr', 'bar')
    redisAI.scriptRunnerAddInputList(calls, [a, waited])
    redisAI.scriptRunnerAddOutput(calls)
    (called,) = await redisAI.scriptRunnerRunAsync(calls)
    again = redisAI.createScriptRunner('scr', 'bar')
    redisAI.scriptRunnerAddInput(again, a)
    redisAI.scriptRunnerAddInput(again, b)
    (sync,) = redisAI.scriptRunnerRun(again)
    dag = redisAI.createDAGRunner()
    dag.Input('a', a).TensorSet('b', b).ModelRun(name='add', inputs=['a', 'b'], outputs=['c'])
    dag.ScriptRun(name='scr', func='bar', inputs=['c', 'a'], outputs=['d']).TensorGet('d').TensorGet('c')
    d, c = await dag.Run()
    text = redisAI.createDAGRunner()
    text.OpsFromString('AI.TENSORSET x FLOAT 2 VALUES 1 1 |> AI.MODELEXECUTE add INPUTS 2 x x OUTPUTS 1 y')
    text.OpsFromString('|> AI.TENSORGET y')
    (y,) = await text.Run()
    redisAI.msetTensorsInKeyspace({'fn:d': d, 'fn:s': redisAI.createTensorFromValues('STRING', [2], ['x', 'y z'])})
    try:
        await dag.Run()
    except Exception as error:
        used = str(error)
    bad = redisAI.createDAGRunner().Input('a', a)
    try:
        bad.TensorGet('nope')
    except Exception as error:
        missing = str(error)
    failing = redisAI.createDAGRunner().Input('a', a).ModelRun(name='add', inputs=['a'], outputs=['z']).TensorGet('z')
    try:
        await failing.Run()
    except Exception as error:
        failed = str(error)
    return [str(t) for t in (waited, called, sync, d, c, y)] + [used, missing, failed]
GB('PythonReader').flatmap(work).run(lambda: iter([1]))
"""


def test_runners_in_functions(shard: Server) -> None:
    source = FUNCTIONS.replace(".run(lambda: iter([1]))", ".run(gen)").replace("GB(", "def gen():\n    yield 1\nGB(")
    results, errors = run(shard, "RG.PYEXECUTE", source)
    assert not errors
    assert results[:6] == [
        "[4.0, 6.0]",
        "[5.0, 8.0]",
        "[4.0, 6.0]",
        "[5.0, 8.0]",
        "[4.0, 6.0]",
        "[2.0, 2.0]",
    ]
    assert results[6:] == [
        "PyDAGRunner is invalid",
        "ERR INPUT key cannot be found in DAG: nope",
        "ERR the model has 2 inputs, got 1",
    ]
    assert run(shard, "AI.TENSORGET", "fn:d", "VALUES") == [5.0, 8.0]
    assert run(shard, "AI.TENSORGET", "fn:s", "VALUES") == ["x", "y z"]


def test_a_dag_by_command(shard: Server) -> None:
    reply = run(
        shard,
        *("AI.DAGEXECUTE", "LOAD", 2, "a", "b", "PERSIST", 1, "dag:d", "|>"),
        *("AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c", "|>"),
        *("AI.SCRIPTEXECUTE", "scr", "bar", "INPUTS", 2, "c", "a", "OUTPUTS", 1, "dag:d", "|>"),
        *("AI.TENSORGET", "c", "VALUES"),
    )
    assert reply == ["OK", "OK", [4.0, 6.0]]
    assert run(shard, "AI.TENSORGET", "dag:d", "VALUES") == [5.0, 8.0]


def test_a_worker_that_died_is_replaced_with_models_and_scripts(shard: Server) -> None:
    shard.signal_worker(signal.SIGKILL)
    assert run(shard, "AI.SCRIPTEXECUTE", "scr", "bar", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c2") == "OK"
    assert run(shard, "AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "c2", "OUTPUTS", 1, "c3") == "OK"
    assert run(shard, "AI.TENSORGET", "c3", "VALUES") == [5.0, 8.0]


def test_a_run_that_never_ends_costs_only_its_process(shard: Server) -> None:
    before = eventually(lambda: shard.field("worker_pid"))
    words = ("AI.SCRIPTEXECUTE", "scr", "endless", "INPUTS", 1, "a", "OUTPUTS", 1, "c")
    with shard.client() as client:
        client.config_set("qa.job-timeout-ms", 1500)
        client.config_set("qa.cancel-grace-ms", 300)
    try:
        with pytest.raises(redis.ResponseError, match="DEADLINE"):
            run(shard, *words)
        time.sleep(2)  # enough time for the module to end a worker that still has the job
    finally:
        run(shard, "CONFIG", "SET", "qa.job-timeout-ms", JOB_TIMEOUT_MS)
        run(shard, "CONFIG", "SET", "qa.cancel-grace-ms", 2000)
    with pytest.raises(
        redis.ResponseError, match=r"script scr: its run takes longer than 5000 ms.*qa\.model-timeout-ms"
    ):
        run(shard, *words)
    assert shard.field("worker_pid") == before
    with pytest.raises(redis.ResponseError, match="script scr is refused, because it failed 2 times in a row"):
        run(shard, *words)
    run(shard, "AI.SCRIPTSTORE", "scr", "CPU", "ENTRY_POINTS", len(ENTRY_POINTS), *ENTRY_POINTS, "SOURCE", SCRIPT)
    assert run(shard, "AI.SCRIPTEXECUTE", "scr", "bar", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
    np.testing.assert_array_equal(run(shard, "AI.TENSORGET", "c", "VALUES"), [4.0, 6.0])
