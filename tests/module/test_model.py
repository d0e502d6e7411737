"""Storing, reading and deleting models; AI.CONFIG."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Later, Server

META = [b"backend", b"ONNX", b"device", b"CPU:1", b"tag", b"v1", b"batchsize", 4, b"minbatchsize", 2]
META += [b"inputs", [b"x"], b"outputs", [b"y"], b"minbatchtimeout", 1000]


def store(client: redis.Redis, key: str = "m", blob: bytes = b"identity") -> None:
    options = ["TAG", "v1", "BATCHSIZE", 4, "MINBATCHSIZE", 2]
    assert client.execute_command("AI.MODELSTORE", key, "onnx", "cpu:1", *options, "BLOB", blob[:3], blob[3:]) == b"OK"


def test_store_and_get(shared_ai: redis.Redis) -> None:
    store(shared_ai)
    assert shared_ai.execute_command("AI.MODELGET", "m") == [*META, b"blob", b"identity"]
    assert shared_ai.execute_command("AI.MODELGET", "m", "META", "BLOB") == [*META, b"blob", b"identity"]
    assert shared_ai.execute_command("AI.MODELGET", "m", "META") == META
    assert shared_ai.execute_command("AI.MODELGET", "m", "BLOB") == b"identity"
    assert shared_ai.execute_command("AI.MODELSET", "old", "TORCH", "GPU", "BLOB", "b") == b"OK"
    assert shared_ai.execute_command("AI.MODELGET", "old", "META")[:4] == [b"backend", b"TORCH", b"device", b"GPU"]


def test_the_blob_is_returned_in_chunks(ai: redis.Redis) -> None:
    blob = bytes(range(256))
    store(ai, blob=blob)
    assert ai.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 511 * 1024 * 1024
    assert ai.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 100) == b"OK"
    assert ai.execute_command("AI.MODELGET", "m", "BLOB") == [blob[:100], blob[100:200], blob[200:]]
    ai.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 128)
    assert ai.execute_command("AI.MODELGET", "m", "BLOB") == [blob[:128], blob[128:], b""]
    ai.execute_command("DEBUG", "RELOAD")
    assert ai.execute_command("AI.MODELGET", "m", "BLOB") == [blob[:128], blob[128:], b""]


def test_chunk_size_of_clients_is_not_that_of_the_log(ai: redis.Redis, ai_server: Server) -> None:
    ai.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 64)
    store(ai, "m", b"x" * 50000)

    def log_of() -> bytes:
        return b"".join(path.read_bytes() for path in ai_server.directory.glob("appendonlydir/*incr*"))

    eventually(lambda: b"AI.MODELSTORE" in log_of())  # a busy disk delays the write
    log = log_of()
    count = log[: log.index(b"AI.MODELSTORE")].rsplit(b"*", 1)[1].split(b"\r\n")[0]
    assert int(count) < 25


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["XLA", "CPU", "BLOB", "b"], "^unsupported backend$"),
        (["TF", "CPU", "BLOB", "b"], "^unsupported backend TF: .* ONNX"),
        (["ONNX", "TPU", "BLOB", "b"], "^Invalid DEVICE$"),
        (["ONNX", "CPU:x", "BLOB", "b"], "^Invalid DEVICE$"),
        (["ONNX", "CPU:1234567", "BLOB", "b"], "^Invalid DEVICE$"),
        (["ONNX", "CPU", "BATCHSIZE", "x", "BLOB", "b"], "^Invalid argument for BATCHSIZE$"),
        (["ONNX", "CPU", "BATCHSIZE", 2, "MINBATCHSIZE", -1, "BLOB", "b"], "^Invalid argument for MINBATCHSIZE$"),
        (["ONNX", "CPU", "MINBATCHSIZE", 2, "BLOB", "b"], "^MINBATCHSIZE specified without BATCHSIZE$"),
        (["ONNX", "CPU", "BATCHSIZE", 2, "MINBATCHTIMEOUT", 2, "BLOB", "b"], "^MINBATCHTIMEOUT specified without"),
        (["ONNX", "CPU", "INPUTS", 1, "a", "OUTPUTS", 1, "b", "BLOB", "b"], "^INPUTS argument should not be specified"),
        (["ONNX", "CPU", "FILE", "b"], "^Invalid argument, expected BLOB$"),
        (["ONNX", "CPU", "TAG", "t"], "^Insufficient arguments, missing model BLOB$"),
        (["ONNX", "CPU", "BLOB", ""], "^Insufficient arguments, missing model BLOB$"),
        (["ONNX", "CPU", "BLOB", "refuse"], "^No graph was found in the protobuf.$"),
        (["ONNX", "CPU", "BLOB", "bad names"], "^PROTOCOL worker sent an invalid reply"),
        (["ONNX", "CPU", "BLOB", b"x" * 1048577], r"1048577 bytes .* limit of 1048576 bytes \(qa.max-model-mb\)"),
        (["ONNX", "CPU", "MINBATCHTIMEOUT", 2, "BLOB", "b"], "^MINBATCHTIMEOUT specified without MINBATCHSIZE$"),
        (
            ["ONNX", "CPU", "BATCHSIZE", 2, "MINBATCHSIZE", 2, "MINBATCHTIMEOUT", "x", "BLOB", "b"],
            "^Invalid argument for MINBATCHTIMEOUT$",
        ),
        (["TFLITE", "CPU", "BLOB", "b"], "^unsupported backend TFLITE: .* ONNX"),
        (["ONNX", "CPU"], "^wrong number of arguments"),
    ],
)
def test_bad_input_changes_nothing(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    store(shared_ai)
    shared_ai.config_set("qa.max-model-mb", 1)
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.MODELSTORE", "m", *arguments)
    assert shared_ai.execute_command("AI.MODELGET", "m", "BLOB") == b"identity"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ONNX", "TPU", "BLOB", "b"], "^unsupported device$"),
        (["ONNX", "CPU:12345678", "BLOB", "b"], "^Invalid DEVICE$"),
        (["ONNX", "CPU", "MINBATCHTIMEOUT", 2, "BLOB", "b"], "^MINBATCHTIMEOUT specified without BATCHSIZE$"),
        (["ONNX", "CPU", "BATCHSIZE", 2, "MINBATCHTIMEOUT", 2, "BLOB", "b"], "^MINBATCHTIMEOUT specified without MINB"),
        (["ONNX", "CPU", "INPUTS", "a", "OUTPUTS", "b", "BLOB", "b"], "^INPUTS argument should not be specified for"),
        (["ONNX", "CPU"], "^Insufficient arguments, missing model BLOB$"),
        (["ONNX"], "^wrong number of arguments"),
    ],
)
def test_bad_input_of_the_old_form(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.MODELSET", "m", *arguments)
    assert not shared_ai.exists("m")


def test_keys_of_other_types_and_delete(ai: redis.Redis) -> None:
    ai.set("text", "x")
    wrong = ["AI.MODELSTORE", "text", "BAD", "BAD", "BLOB", "b"]
    for command in (wrong, ["AI.MODELGET", "text"], ["AI.MODELDEL", "text"]):
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
            ai.execute_command(*command)
    store(ai)
    assert ai.execute_command("AI.MODELDEL", "m") == b"OK"
    for name in ("AI.MODELGET", "AI.MODELDEL"):
        with pytest.raises(redis.ResponseError, match=r"^model key is empty$"):
            ai.execute_command(name, "m")
    eventually(lambda: ai.llen("drops") == 1)


def test_type_changed_while_the_worker_loads(ai: redis.Redis, ai_server: Server) -> None:
    """The key becomes a string while an earlier run delays the worker's read of the file."""
    store(ai, "held", b"held")
    ai.execute_command("AI.TENSORSET", "t", "INT8", 1)
    run = Later(ai_server, "AI.MODELEXECUTE", "held", "INPUTS", 1, "t", "OUTPUTS", 1, "o")
    eventually(lambda: ai_server.field("in_flight") == 1)
    stored = Later(ai_server, "AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", "identity")
    eventually(lambda: ai_server.field("queued_clients") == 1)
    ai.set("m", "text")
    ai_server.let_go()
    assert (run.result(), str(stored.result())[:9]) == (b"OK", "WRONGTYPE")
    assert ai.get("m") == b"text"


def test_scan_follows_renames_and_copies(ai: redis.Redis) -> None:
    store(ai)
    ai.rename("m", "n")
    ai.copy("n", "o")
    assert sorted(ai.execute_command("AI._MODELSCAN")) == [[b"n", b"v1"], [b"o", b"v1"]]
    ai.delete("n")
    assert ai.execute_command("AI._MODELSCAN") == [[b"o", b"v1"]]
    ai.execute_command("DEBUG", "RELOAD")
    assert ai.execute_command("AI._MODELSCAN") == [[b"o", b"v1"]]
    ai.flushall(asynchronous=True)
    assert ai.execute_command("AI._MODELSCAN") == []
