"""Behaviour that clients of RedisAI rely on: outputs that are not tensors, text tensors, printed values, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.gears.onnx_file import add_model, sequence_model, unknown_rank_model
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER


def refusal(shard: Server, *command: Any) -> str:
    with pytest.raises(redis.ResponseError) as told:
        execute(shard, *command)
    return str(told.value)


def printed(shard: Server, key: str) -> Any:
    """The values of a tensor as RESP2 clients get them."""
    with shard.client(protocol=2) as client:
        return client.execute_command("AI.TENSORGET", key, "VALUES")


@pytest.mark.parametrize("device", ["CPU", "CPU:1"])
def test_a_model_with_outputs_that_are_no_tensors_runs_without_them(shard: Server, device: str) -> None:
    assert execute(shard, "AI.MODELSTORE", "m", "ONNX", device, "BLOB", sequence_model()) == "OK"
    execute(shard, "AI.TENSORSET", "x", "FLOAT", 2, "VALUES", 1, 2)
    assert execute(shard, "AI.MODELEXECUTE", "m", "INPUTS", 1, "x", "OUTPUTS", 1, "y") == "OK"
    assert printed(shard, "y") == ["2", "4"]
    told = refusal(shard, "AI.MODELEXECUTE", "m", "INPUTS", 1, "x", "OUTPUTS", 2, "y", "z")
    assert "does not match model definition" in told


@pytest.mark.parametrize("dims", [(3,), (1, 2), (2, 1, 2)])
def test_an_input_of_unknown_rank_accepts_any_shape(shard: Server, dims: tuple[int, ...]) -> None:
    for operator in ("Identity", "SequenceAt"):
        model = unknown_rank_model(in_ort=operator == "SequenceAt")
        assert execute(shard, "AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", model) == "OK"
        execute(shard, "AI.TENSORSET", "x", "FLOAT", *dims)
        assert execute(shard, "AI.MODELEXECUTE", "m", "INPUTS", 1, "x", "OUTPUTS", 1, "y") == "OK"
        assert execute(shard, "AI.TENSORGET", "y", "META") == ["dtype", "FLOAT", "shape", list(dims)]


def test_mismatched_inputs_are_refused_and_no_client_gets_the_outputs_of_another(
    server_binary: Path,
) -> None:
    with Server(server_binary, {"qa.worker-threads": 1}, worker=WORKER) as shard:
        shard.wait_ready()
        assert execute(shard, "AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", add_model()) == "OK"
        for name, values in {"a": [1, 2], "b": [3, 4], "long": [5, 6, 7]}.items():
            execute(shard, "AI.TENSORSET", name, "FLOAT", len(values), "VALUES", *values)
        pid = shard.field("worker_pid")
        for _ in range(5):
            assert execute(shard, "AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "y") == "OK"
            assert printed(shard, "y") == ["4", "6"]
            told = refusal(shard, "AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "long", "OUTPUTS", 1, "z")
            assert told.startswith("INFERENCE ") and "2 by 3" in told
            assert execute(shard, "EXISTS", "z") == 0
        assert shard.field("worker_pid") == pid


def test_the_nul_at_the_end_of_strings_is_optional(shard: Server) -> None:
    with shard.client(decode_responses=False) as client:
        for data in (
            (b"BLOB", b"one\0two\0"),
            (b"BLOB", b"one\0two"),
            (b"VALUES", b"one\0", b"two"),
            (b"VALUES", b"one", b"two\0"),
        ):
            assert client.execute_command("AI.TENSORSET", "s", "STRING", 2, *data) == b"OK"
            assert client.execute_command("AI.TENSORGET", "s", "BLOB") == b"one\0two\0"
            assert client.execute_command("AI.TENSORGET", "s", "VALUES") == [b"one", b"two"]
        for dims, blob in ((1, b"one\0two"), (3, b"one\0two\0"), (3, b"one\0two"), (1, b"")):
            with pytest.raises(redis.ResponseError, match="Number of string elements"):
                client.execute_command("AI.TENSORSET", "s", "STRING", dims, "BLOB", blob)
        with pytest.raises(redis.ResponseError, match="null character"):
            client.execute_command("AI.TENSORSET", "s", "STRING", 1, "VALUES", b"a\0b\0")
    script = "GB('ShardsIDReader').map(lambda r: redisAI.createTensorFromBlob('STRING', [2], b'one\\0two')).run()"
    assert execute(shard, "RG.PYEXECUTE", script) == [["['one', 'two']"], []]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("PERSIST 2 a a |> AI.TENSORSET", "PERSIST keys must be unique"),
        ("LOAD 1 none PERSIST 2 a a |> AI.TENSORSET", "PERSIST keys must be unique"),
        ("LOAD 1 none |> AI.TENSORSET", "tensor key is empty or in a different shard"),
        ("ROUTING a |> AI.TENSORGET none |> AI.TENSORSET", "wrong number of arguments for 'AI.TENSORSET' command"),
        ("PERSIST 1 none |> AI.TENSORGET other |> AI.NONE", "Unsupported command within DAG"),
        ("PERSIST 1 none |> AI.TENSORGET other", "INPUT key cannot be found in DAG"),
        ("PERSIST 1 none |> AI.TENSORSET a FLOAT 1", "PERSIST key cannot be found in DAG"),
    ],
)
def test_a_dag_reports_the_first_of_several_errors(shard: Server, words: str, told: str) -> None:
    assert refusal(shard, "AI.DAGEXECUTE", *words.split()) == told


def test_a_dag_is_in_the_slow_log_with_its_time(shard: Server) -> None:
    with shard.client() as client:
        client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", sequence_model())
        client.execute_command("AI.TENSORSET", "x", "FLOAT", 1)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        client.execute_command(
            *["AI.DAGEXECUTE", "LOAD", "1", "x", "|>", "AI.MODELEXECUTE", "m", "INPUTS", "1", "x", "OUTPUTS", "1", "y"]
        )
        (entry,) = [entry for entry in client.slowlog_get(100) if bytes(entry["command"]).startswith(b"AI.DAGEXECUTE")]
        assert entry["duration"] > 0
        client.config_set("slowlog-log-slower-than", 10_000)
