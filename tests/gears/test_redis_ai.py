"""Models on a real server: the `AI.*` commands through the worker, the module `redisAI` inside functions, restarts."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.gears.onnx_file import add_model, token_model
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

pytestmark = pytest.mark.one_server("models run in the worker; tests/module stores and runs models on both servers")

SCORE = """
import redisAI
async def score(record):
    ids = redisAI.createTensorFromValues('INT64', [1, 3], [int(x) for x in record['key'].split(':')[1:]])
    mask = redisAI.createTensorFromBlob('INT64', [1, 3], b'\\x01\\0\\0\\0\\0\\0\\0\\0' * 3)
    runner = redisAI.createModelRunner('reader')
    redisAI.modelRunnerAddInput(runner, 'input_ids', ids)
    redisAI.modelRunnerAddInput(runner, 'attention_mask', mask)
    redisAI.modelRunnerAddOutput(runner, 'score')
    (scores,) = await redisAI.modelRunnerRunAsync(runner)
    override_reply(str(scores))
GB('KeysReader').map(score).register(prefix='score:*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def test_generic_model_by_commands(shard: Server) -> None:
    assert execute(shard, "AI.MODELSTORE", "add", "ONNX", "CPU", "BLOB", add_model()) == "OK"
    execute(shard, "AI.TENSORSET", "a", "FLOAT", 2, "VALUES", 1, 2)
    execute(shard, "AI.TENSORSET", "b", "FLOAT", 2, "VALUES", 3, 4)
    execute(shard, "AI.TENSORSET", "i", "INT64", 2, "VALUES", 3, 4)
    assert execute(shard, "AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "sum") == "OK"
    assert execute(shard, "AI.TENSORGET", "sum", "VALUES") == [4.0, 6.0]
    with pytest.raises(redis.ResponseError, match="input b is int64, the model takes float32"):
        execute(shard, "AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "i", "OUTPUTS", 1, "sum")
    with pytest.raises(redis.ResponseError, match="not a model that ONNX Runtime can load"):
        execute(shard, "AI.MODELSTORE", "bad", "ONNX", "CPU", "BLOB", b"nonsense")
    with pytest.raises(redis.ResponseError, match=r"with its extra torch|not a TorchScript file"):
        execute(shard, "AI.MODELSTORE", "bad", "TORCH", "CPU", "BLOB", b"nonsense")
    assert execute(shard, "EXISTS", "bad") == 0


def test_token_model_in_a_function_and_after_a_crash(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", SCORE)
    assert execute(shard, "GET", "score:1:2:3") is None
    (entry,) = execute(shard, "RG.DUMPREGISTRATIONS")
    assert "given key do not contain RedisAI model: reader" in str(entry)
    execute(shard, "AI.MODELSTORE", "reader", "ONNX", "CPU", "BLOB", token_model())
    assert execute(shard, "GET", "score:1:2:3") == "[[1.0, 2.0, 3.0]]"
    eventually(lambda: shard.field("worker_batched_items") >= 1)
    shard.signal_worker(signal.SIGKILL)
    assert execute(shard, "GET", "score:4:5:6") == "[[4.0, 5.0, 6.0]]"


def test_pipelined_misses_share_batches(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", SCORE)
    execute(shard, "AI.MODELSTORE", "reader", "ONNX", "CPU", "BLOB", token_model())
    clients = [shard.client() for _ in range(4)]
    pipes = [client.pipeline(transaction=False) for client in clients]
    for number, pipe in enumerate(pipes):
        for n in range(25):
            pipe.get(f"score:{number}:{n}:9")
    for number, pipe in enumerate(pipes):
        assert pipe.execute() == [f"[[{number}.0, {n}.0, 9.0]]" for n in range(25)]
    for client in clients:
        client.close()


def test_a_run_has_at_most_as_many_tokens_as_the_setting(shared_binary: Path) -> None:
    at_once = """
import asyncio, redisAI
def runner():
    made = redisAI.createModelRunner('reader')
    for name in ('input_ids', 'attention_mask'):
        redisAI.modelRunnerAddInput(made, name, redisAI.createTensorFromValues('INT64', [1, 3], [1, 1, 1]))
    redisAI.modelRunnerAddOutput(made, 'score')
    return made
async def score(record):
    return len(await asyncio.gather(*(redisAI.modelRunnerRunAsync(runner()) for _ in range(8))))
GB('ShardsIDReader').map(score).run()
"""
    with Server(shared_binary, {"qa.max-batch-tokens": 32}, worker=WORKER) as server:
        execute(server, "AI.MODELSTORE", "reader", "ONNX", "CPU", "BLOB", token_model())
        assert execute(server, "RG.PYEXECUTE", at_once) == [["8"], []]
        eventually(lambda: server.field("worker_batched_items") == 8)
        # the requests arrive one after the other, so they may need up to 8 batches
        batches, padded = server.fields("worker_batches", "worker_padded_tokens")
        assert 4 <= batches <= 8 and padded == 8 * 16


def test_replaced_model_is_used_at_once(shard: Server) -> None:
    execute(shard, "RG.PYEXECUTE", SCORE)
    execute(shard, "AI.MODELSTORE", "reader", "ONNX", "CPU", "BLOB", token_model())
    assert execute(shard, "GET", "score:1:2:3") == "[[1.0, 2.0, 3.0]]"
    execute(shard, "DEL", "reader")
    eventually(lambda: execute(shard, "GET", "score:1:2:3") is None)


def test_tensors_of_functions(shard: Server) -> None:
    execute(shard, "AI.TENSORSET", "t", "INT32", 2, 2, "VALUES", 1, 2, 3, 4)
    execute(shard, "SET", "text", "x")
    script = """
import redisAI
def f(r):
    t = redisAI.getTensorFromKey('t')
    redisAI.setTensorInKey('copy', t)
    redisAI.msetTensorsInKeyspace({'u': redisAI.createTensorFromValues('FLOAT', [2], [1.5, 2])})
    both = redisAI.mgetTensorsFromKeyspace(['copy', 'u'])
    found = [str(t), redisAI.tensorGetDims(t), redisAI.tensorToFlatList(t)]
    found += [len(redisAI.tensorGetDataAsBlob(t)), str(both[1])]
    for call in (lambda: redisAI.getTensorFromKey('none'), lambda: redisAI.getTensorFromKey('text'),
                 lambda: redisAI.setTensorInKey('text', t), lambda: redisAI.createModelRunner('text'),
                 lambda: redisAI.createTensorFromBlob('FLOAT', [2], b'123')):
        try:
            call()
        except Exception as error:
            found.append(str(error))
    return found
GB('CommandReader').map(f).flatmap(lambda r: r).register(trigger='f')
"""
    execute(shard, "RG.PYEXECUTE", script)
    found = execute(shard, "RG.TRIGGER", "f")
    assert found[:5] == ["[[1, 2], [3, 4]]", "(2, 2)", "[1, 2, 3, 4]", "16", "[1.5, 2.0]"]
    refusals = (
        "tensor key is empty",
        "key is not a tensor",
        "already set with non",
        "do not contain RedisAI",
        "length",
    )
    for text, expected in zip(found[5:], refusals, strict=True):
        assert expected in text
    assert execute(shard, "AI.TENSORGET", "copy", "VALUES") == [1, 2, 3, 4]


def test_rows_of_a_client_are_one_item(shard: Server) -> None:
    execute(shard, "AI.MODELSTORE", "reader", "ONNX", "CPU", "BLOB", token_model())
    ids = np.arange(70 * 5, dtype=np.int64)
    execute(shard, "AI.TENSORSET", "ids", "INT64", 70, 5, "BLOB", ids.tobytes())
    execute(shard, "AI.TENSORSET", "mask", "INT64", 70, 5, "BLOB", np.ones(350, np.int64).tobytes())
    execute(shard, "AI.MODELEXECUTE", "reader", "INPUTS", 2, "ids", "mask", "OUTPUTS", 1, "out")
    assert execute(shard, "AI.TENSORGET", "out", "META")[3] == [70, 5]
    assert execute(shard, "AI.TENSORGET", "out", "VALUES") == [float(n) for n in range(350)]
