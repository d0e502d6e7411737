"""redisai: models in ONNX and TorchScript, their runs, batches, statistics and errors."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import redis

from tests.conformance.deployment import Deployment
from tests.gears.onnx_file import add_model

covers = pytest.mark.covers
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
ADD = add_model()


def set_inputs(deployment: Deployment, *, shard: int = 0, rows: int = 1) -> tuple[str, str, str]:
    """Set two tensors; return their keys and a third key on the same shard."""
    ai = deployment.ai(shard)
    a, b, total = (deployment.key(name, shard) for name in ("a", "b", "sum"))
    ai.tensorset(a, np.full(rows, 2, dtype="float32"))
    ai.tensorset(b, np.full(rows, 3, dtype="float32"))
    return a, b, total


@covers("AI.MODELSTORE", "", better="the worker loads it, so only its client waits, not the server")
@covers("AI.MODELSTORE", "ONNX", "TAG")
@covers("AI.MODELGET", "META", "META and BLOB", "BLOB")
@covers("AI.MODELEXECUTE", "")
@covers("AI.MODELDEL", "")
@covers("AI._MODELSCAN", "")
def test_onnx(deployment: Deployment) -> None:
    for shard in range(deployment.shards):
        ai, key = deployment.ai(shard), deployment.key("onnx", shard)
        a, b, total = set_inputs(deployment, shard=shard)
        assert ai.modelstore(key, "ONNX", "CPU", ADD, tag="v1.0") == "OK"
        meta = ai.modelget(key, meta_only=True)
        assert (meta["backend"], meta["device"]) == ("ONNX", "CPU")
        assert meta["tag"] == "v1.0"
        assert (meta["inputs"], meta["outputs"]) == (["a", "b"], ["sum"])
        assert (meta["batchsize"], meta["minbatchsize"]) == (0, 0)
        assert "blob" not in meta
        assert ai.modelget(key)["blob"] == ADD
        assert ai.execute_command("AI.MODELGET", key, "BLOB") == ADD
        assert ai.modelexecute(key, [a, b], [total]) == "OK"
        assert ai.tensorget(total).tolist() == [5.0]
        assert ai.modelexecute(key, (a, b), total) == "OK"
        assert ai.modelscan() == [[key, "v1.0"]]
        assert ai.modeldel(key) == "OK"
        assert ai.modelscan() == []
        with pytest.raises(redis.ResponseError, match="model key is empty"):
            ai.modelget(key)
        with pytest.raises(redis.ResponseError, match="model key is empty"):
            ai.modeldel(key)


@pytest.mark.torch
@covers("AI.MODELSTORE", "TORCH")
@covers("AI.MODELSET", "TORCH")
@covers("AI.MODELRUN", "TORCH")
def test_torch(deployment: Deployment, torch_models: dict[str, bytes]) -> None:
    ai, key = deployment.ai(), deployment.key("torch")
    a, b, total = set_inputs(deployment, rows=3)
    assert ai.modelstore(key, "TORCH", "CPU", torch_models["add"]) == "OK"
    meta = ai.modelget(key)
    assert meta["backend"] == "TORCH"
    assert meta["inputs"] == ["a", "b"]
    assert meta["outputs"] == [""]
    assert meta["blob"] == torch_models["add"]
    assert ai.modelexecute(key, [a, b], total) == "OK"
    assert ai.tensorget(total).tolist() == [5.0, 5.0, 5.0]
    assert ai.modelset(key, "TORCH", "CPU", torch_models["two"], tag="two") == "OK"
    one = deployment.key("one")
    assert ai.modelrun(key, [a, b], [total, one]) == "OK"
    assert ai.tensorget(one).tolist() == [1.0]


@covers("AI.MODELSET", "", "TAG", "BATCHSIZE, MINBATCHSIZE")
@covers("AI.MODELRUN", "")
def test_deprecated_commands(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("old")
    a, b, total = set_inputs(deployment)
    assert ai.modelset(key, "ONNX", "CPU", ADD, batch=4, minbatch=1, tag="old") == "OK"
    assert ai.modelget(key, meta_only=True)["batchsize"] == 4
    assert ai.modelrun(key, [a, b], [total]) == "OK"
    assert ai.tensorget(total).tolist() == [5.0]
    assert deployment.raw("AI.MODELRUN", key, "TIMEOUT", 5000, "INPUTS", a, b, "OUTPUTS", total) == "OK"


@covers("AI.MODELGET", "chunks")
@covers("AI.CONFIG", "MODEL_CHUNK_SIZE", "GET")
def test_chunks(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("chunked")
    whole = ai.config("MODEL_CHUNK_SIZE")
    assert whole == 511 * 1024 * 1024
    try:
        assert ai.config("MODEL_CHUNK_SIZE", 64) == "OK"
        assert ai.config("MODEL_CHUNK_SIZE") == 64
        assert ai.modelstore(key, "ONNX", "CPU", ADD) == "OK"
        chunks = ai.modelget(key)["blob"]
        assert [len(chunk) for chunk in chunks[:-1]] == [64] * (len(ADD) // 64)
        assert b"".join(chunks) == ADD
    finally:
        ai.config("MODEL_CHUNK_SIZE", whole)
    assert ai.modelget(key)["blob"] == ADD
    assert ai.config("NO_SUCH_SETTING") is None
    for words, text in (
        (("MODEL_CHUNK_SIZE",), "MODEL_CHUNK_SIZE: missing chunk size"),
        (("MODEL_CHUNK_SIZE", "x"), "MODEL_CHUNK_SIZE: invalid chunk size"),
        (("BACKENDSPATH",), "BACKENDSPATH: missing path argument"),
        (("NOTHING",), "unsupported subcommand"),
    ):
        with pytest.raises(redis.ResponseError) as caught:
            deployment.raw("AI.CONFIG", *words)
        assert str(caught.value) == text


@covers("AI.CONFIG", "BACKENDSPATH")
def test_backends_path(deployment: Deployment) -> None:
    ai = deployment.ai()
    assert ai.config("BACKENDSPATH", "/opt/backends") == "OK"
    assert ai.config("BACKENDSPATH") == "/opt/backends"


@covers("AI.CONFIG", "LOADBACKEND", better="nothing to load: the worker contains the backends")
def test_loadbackend(deployment: Deployment) -> None:
    ai = deployment.ai()
    assert ai.loadbackend("ONNX", "redisai_onnxruntime/redisai_onnxruntime.so") == "OK"
    with pytest.raises(redis.ResponseError, match="error loading backend"):
        ai.loadbackend("TF", "redisai_tensorflow/redisai_tensorflow.so")
    with pytest.raises(redis.ResponseError, match="unsupported backend"):
        ai.loadbackend("PADDLE", "x.so")


@covers(
    "AI.MODELSTORE",
    "BATCHSIZE, MINBATCHSIZE, MINBATCHTIMEOUT",
    better="MINBATCHSIZE without a timeout gets a default timeout; RedisAI waited forever",
)
def test_batching(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("batched")
    a, b, _ = set_inputs(deployment)
    assert ai.modelstore(key, "ONNX", "CPU", ADD, batch=4, minbatch=2, minbatchtimeout=200) == "OK"
    meta = ai.modelget(key, meta_only=True)
    assert (meta["batchsize"], meta["minbatchsize"], meta["minbatchtimeout"]) == (4, 2, 200)
    started = time.monotonic()
    ai.modelexecute(key, [a, b], [deployment.key("alone")])
    assert time.monotonic() - started >= 0.19
    replies: list[str] = []

    def run(number: int) -> None:
        replies.append(deployment.ai().modelexecute(key, [a, b], [deployment.key(f"out:{number}")]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == ["OK"] * 4
    assert all(ai.tensorget(deployment.key(f"out:{number}")).tolist() == [5.0] for number in range(4))
    assert ai.modelstore(key, "ONNX", "CPU", ADD, batch=4, minbatch=2) == "OK"
    assert ai.modelexecute(key, [a, b], [deployment.key("default")]) == "OK"


@covers("AI.MODELSTORE", "errors", "overwrites")
def test_refused_models(deployment: Deployment) -> None:
    ai, key, text_key = deployment.ai(), deployment.key("model"), deployment.key("text")
    ai.modelstore(key, "ONNX", "CPU", ADD)
    ai.set(text_key, "x")
    with pytest.raises(redis.ResponseError, match="No graph was found in the protobuf"):
        ai.modelstore(key, "ONNX", "CPU", b"\x08\x08")
    with pytest.raises(redis.ResponseError, match="not a model that ONNX Runtime can load"):
        ai.modelstore(key, "ONNX", "CPU", b"not a model")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ai.modelstore(text_key, "ONNX", "CPU", ADD)
    # tests/module/test_model.py has the other argument errors
    with pytest.raises(redis.ResponseError, match="unsupported backend"):
        deployment.raw("AI.MODELSTORE", key, "PADDLE", "CPU", "BLOB", ADD)
    # the earlier model still exists and works
    assert ai.modelget(key)["blob"] == ADD
    a, b, total = set_inputs(deployment)
    assert ai.modelexecute(key, [a, b], [total]) == "OK"
    assert ai.modelstore(key, "ONNX", "CPU", ADD, tag="second") == "OK"
    assert ai.modelget(key, meta_only=True)["tag"] == "second"


@covers("AI.MODELEXECUTE", "errors")
def test_refused_runs(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("model")
    a, b, total = set_inputs(deployment)
    ai.modelstore(key, "ONNX", "CPU", ADD)
    wrong = deployment.key("wrong")
    ai.tensorset(wrong, np.array([1, 2], dtype="int64"))
    none = deployment.key("none")
    # tests/module/test_modelrun.py has the errors that redisai cannot cause
    for call, text in (
        (lambda: ai.modelexecute(none, [a, b], [total]), "model key is empty"),
        (lambda: ai.modelexecute(key, [a, none], [total]), "tensor key is empty or in a different shard"),
        (
            lambda: ai.modelexecute(key, [a], [total]),
            "Number of keys given as INPUTS here does not match model definition",
        ),
        (
            lambda: ai.modelexecute(key, [a, b], [total, none]),
            "Number of keys given as OUTPUTS here does not match model definition",
        ),
    ):
        with pytest.raises(redis.ResponseError) as caught:
            call()
        assert str(caught.value) == text
    with pytest.raises(redis.ResponseError):
        ai.modelexecute(key, [a, wrong], [total])
    assert not ai.exists(total)


@covers("AI.MODELEXECUTE", "TIMEOUT")
def test_timeout_while_queued(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("model")
    a, b, total = set_inputs(deployment)
    ai.modelstore(key, "ONNX", "CPU", ADD, batch=8, minbatch=8, minbatchtimeout=5000)
    assert ai.modelexecute(key, [a, b], [total], timeout=100) == "TIMEDOUT"
    assert not ai.exists(total)
    ai.modelstore(key, "ONNX", "CPU", ADD)
    assert ai.modelexecute(key, [a, b], [total], timeout=10_000) == "OK"


@covers("AI.MODELSTORE", "devices CPU and CPU:n")
@covers("AI.MODELEXECUTE", "devices as separate queues")
def test_devices(deployment: Deployment) -> None:
    ai = deployment.ai()
    a, b, total = set_inputs(deployment)
    for device in ("CPU", "CPU:1", "cpu:2"):
        key = deployment.key(f"on {device}")
        assert ai.modelstore(key, "ONNX", device, ADD) == "OK"
        assert ai.modelget(key, meta_only=True)["device"].upper() == device.upper()
        assert ai.modelexecute(key, [a, b], [total]) == "OK"


@covers("AI.INFO", "", "RESETSTAT")
def test_info(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("counted")
    a, b, total = set_inputs(deployment, rows=3)
    ai.modelstore(key, "ONNX", "CPU", ADD, tag="t")
    fresh = ai.infoget(key)
    assert fresh == {
        **{"key": key, "type": "MODEL", "backend": "ONNX", "device": "CPU", "tag": "t"},
        **{"duration": 0, "samples": 0, "calls": 0, "errors": 0},
    }
    for _ in range(2):
        ai.modelexecute(key, [a, b], [total])
    wrong = deployment.key("wrong")
    ai.tensorset(wrong, np.array([1], dtype="int64"))
    with pytest.raises(redis.ResponseError):
        ai.modelexecute(key, [a, wrong], [total])
    counted = ai.infoget(key)
    assert (counted["calls"], counted["samples"], counted["errors"]) == (3, 6, 1)
    assert counted["duration"] > 0
    assert ai.inforeset(key) == "OK"
    assert ai.infoget(key)["calls"] == 0
    with pytest.raises(redis.ResponseError, match="cannot find run info for key"):
        ai.infoget(deployment.key("none"))


@pytest.mark.left_out(
    "AI.MODELSTORE", "TF, TFLITE", why="these runtimes are not maintained", instead="export to ONNX or TorchScript"
)
def test_backends_left_out(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("tf")
    with pytest.raises(redis.ResponseError, match="ONNX"):
        ai.modelstore(key, "TF", "CPU", b"graph", inputs=["a"], outputs=["b"])
    with pytest.raises(redis.ResponseError, match="ONNX"):
        ai.modelstore(key, "TFLITE", "CPU", b"graph")
    with pytest.raises(redis.ResponseError, match="ONNX"):
        ai.modelset(key, "TF", "CPU", b"graph", inputs=["a"], outputs=["b"])
    assert not ai.exists(key)


@covers("AI.MODELSTORE", "keys: COPY, DUMP, MEMORY USAGE", better="COPY and MEMORY USAGE work")
def test_models_are_keys(deployment: Deployment) -> None:
    ai, key, other = deployment.ai(), deployment.key("model"), deployment.key("copy")
    a, b, total = set_inputs(deployment)
    ai.modelstore(key, "ONNX", "CPU", ADD)
    assert ai.type(key) == b"AI__MODEL"
    assert ai.memory_usage(key) >= len(ADD)
    assert ai.copy(key, other)
    payload = ai.dump(key)
    ai.delete(key)
    assert ai.modelexecute(other, [a, b], [total]) == "OK"
    ai.restore(key, 0, payload)
    assert ai.modelexecute(key, [a, b], [total]) == "OK"


@pytest.mark.shards(3)
@covers("AI.MODELEXECUTE", "MOVED, CROSSSLOT")
def test_wrong_shard(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("model")
    a, b, total = set_inputs(deployment)
    ai.modelstore(key, "ONNX", "CPU", ADD)
    with pytest.raises(redis.ResponseError, match="MOVED"):
        deployment.ai(1).modelexecute(key, [a, b], [total])
    with pytest.raises(redis.ResponseError, match=r"CROSSSLOT|same slot"):
        ai.modelexecute(key, [a, b], [deployment.key("sum", 1)])
