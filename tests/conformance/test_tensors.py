"""redisai: tensors of every type and in every form of the client."""

from __future__ import annotations

import numpy as np
import pytest
import redis
import redisai

from tests.conformance.deployment import Deployment

NUMPY_TYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "bool")
covers = pytest.mark.covers


@covers("AI.TENSORSET", "BLOB", *(f"type {t}" for t in ("FLOAT", "DOUBLE", "INT8 to INT64", "UINT8, UINT16", "BOOL")))
@covers("AI.TENSORGET", "META", "BLOB")
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_round_trip(deployment: Deployment, dtype: str) -> None:
    ai, key = deployment.ai(), deployment.key(f"numpy:{dtype}")
    for shape in ((6,), (2, 3), (1, 1, 6)):
        values = np.array([0, 1, 1, 0, 1, 1] if dtype == "bool" else [0, 1, 2, 100, 126, 127], dtype=dtype).reshape(
            shape
        )
        assert ai.tensorset(key, values) == "OK"
        got = ai.tensorget(key)
        assert got.dtype == values.dtype
        assert got.shape == shape
        assert (got == values).all()
        mutable = ai.tensorget(key, as_numpy_mutable=True)
        mutable[...] = 0
        assert ai.tensorget(key, meta_only=True)["shape"] == list(shape)


@covers("AI.TENSORSET", "type STRING")
def test_strings(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("strings")
    values = np.array([["first", "zweite Größe"], ["", "four words in here"]])
    assert ai.tensorset(key, values) == "OK"
    assert (ai.tensorget(key) == values).all()
    assert ai.tensorset(key, ["one", "two"], dtype="str") == "OK"
    assert ai.tensorget(key, as_numpy=False)["values"] == ["one", "two"]
    with pytest.raises(
        redis.ResponseError, match="Number of string elements in data blob does not match tensor length"
    ):
        deployment.raw("AI.TENSORSET", key, "STRING", 3, "BLOB", b"a\0b\0")
    with pytest.raises(redis.ResponseError, match="C-string value contains null character"):
        deployment.raw("AI.TENSORSET", key, "STRING", 1, "VALUES", b"a\0b")


@covers("AI.TENSORSET", "VALUES", "zero-filled")
@covers("AI.TENSORGET", "VALUES")
def test_values(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("values")
    for dtype in ("float", "double", "int8", "int16", "int32", "int64", "uint8", "uint16"):
        assert ai.tensorset(key, (2, 3, 4), shape=(3, 1), dtype=dtype) == "OK"
        got = ai.tensorget(key, as_numpy=False)
        assert got["values"] == [2, 3, 4]
        assert got["shape"] == [3, 1]
    ai.tensorset(key, [0.5, 1e30], dtype="float")
    assert ai.tensorget(key, as_numpy=False)["values"] == pytest.approx([0.5, 1e30])
    assert deployment.raw("AI.TENSORGET", key, "VALUES")[0] == "0.5"
    deployment.raw("AI.TENSORSET", key, "INT32", 2, 2)
    assert (ai.tensorget(key) == np.zeros((2, 2), dtype="int32")).all()
    # RedisAI refused the smallest INT8
    ai.tensorset(key, [-128], dtype="int8")
    assert ai.tensorget(key, as_numpy=False)["values"] == [-128]


@covers("AI.TENSORSET", "errors")
def test_refused_tensors(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("refused")
    ai.tensorset(key, [1.0], dtype="float")
    # tests/module/test_tensor.py has the errors that redisai cannot cause
    with pytest.raises(redis.ResponseError, match="wrong number of values was given in"):
        deployment.raw("AI.TENSORSET", key, "FLOAT", 2, "VALUES", 1)
    with pytest.raises(redis.ResponseError, match="invalid data type"):
        ai.tensorset(key, np.array([1], dtype="uint64"))
    assert ai.tensorget(key, as_numpy=False)["values"] == [1.0]


@covers("AI.TENSORGET", "errors")
def test_tensorget_errors(deployment: Deployment) -> None:
    ai, key = deployment.ai(), deployment.key("text")
    deployment.raw("SET", key, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ai.tensorget(key)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ai.tensorset(key, [1], dtype="int64")
    with pytest.raises(redis.ResponseError, match="tensor key is empty or in a different shard"):
        ai.tensorget(deployment.key("none"))
    ai.tensorset(deployment.key("t"), [1], dtype="int64")
    with pytest.raises(redis.ResponseError, match="unsupported data format"):
        deployment.raw("AI.TENSORGET", deployment.key("t"), "XML")
    with pytest.raises(redis.ResponseError, match="both BLOB and VALUES specified"):
        deployment.raw("AI.TENSORGET", deployment.key("t"), "BLOB", "VALUES")


@covers("AI.TENSORSET", "in pipelines and MULTI")
@covers("AI.TENSORGET", "in pipelines and MULTI")
@pytest.mark.parametrize("transaction", [False, True])
def test_pipeline(deployment: Deployment, transaction: bool) -> None:
    key = deployment.key("piped")
    pipeline = deployment.ai().pipeline(transaction=transaction)
    values = np.array([[2.0, 3.0]], dtype="float32")
    pipeline.tensorset(key, values)
    pipeline.set(deployment.key("plain"), "text")
    pipeline.tensorget(key)
    pipeline.tensorget(key, meta_only=True)
    stored, plain, got, meta = pipeline.execute()
    assert (stored, plain) == (b"OK", True)
    assert (got == values).all()
    assert meta == {"dtype": "FLOAT", "shape": [1, 2]}


@covers("AI.TENSORSET", "without postprocessing")
def test_client_options(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    key = deployment.key("raw")
    plain = deployment.ai(enable_postprocess=False, debug=True)
    assert plain.tensorset(key, [7], dtype="int64") == b"OK"
    assert plain.tensorget(key, meta_only=True) == [b"dtype", b"INT64", b"shape", [1]]
    assert "AI.TENSORSET" in capsys.readouterr().out


@covers("AI.TENSORSET", "keys: TTL, COPY, DUMP, MEMORY USAGE", better="COPY and MEMORY USAGE work")
def test_tensors_are_keys(deployment: Deployment) -> None:
    ai, key, other = deployment.ai(), deployment.key("t"), deployment.key("u")
    values = np.arange(1000, dtype="int64")
    ai.tensorset(key, values)
    assert ai.type(key) == b"AI_TENSOR"
    assert ai.memory_usage(key) >= values.nbytes
    assert ai.copy(key, other)
    assert (ai.tensorget(other) == values).all()
    payload = ai.dump(key)
    ai.delete(key)
    ai.restore(key, 0, payload)
    assert (ai.tensorget(key) == values).all()
    ai.expire(key, 100)
    assert 0 < ai.ttl(key) <= 100


@pytest.mark.shards(3)
@covers("AI.TENSORSET", "MOVED")
@covers("AI.TENSORGET", "MOVED")
def test_wrong_shard(deployment: Deployment) -> None:
    ai, elsewhere = deployment.ai(0), deployment.key("t", 1)
    with pytest.raises(redis.ResponseError, match="MOVED"):
        ai.tensorset(elsewhere, [1], dtype="int64")
    with pytest.raises(redis.ResponseError, match="MOVED"):
        ai.tensorget(elsewhere)


def test_the_installed_client_has_the_named_version() -> None:
    assert redisai.__version__ == "1.3.0"
