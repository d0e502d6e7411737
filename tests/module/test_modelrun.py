"""AI.MODELEXECUTE, AI.MODELRUN and AI.INFO."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Later, Server
from tests.harness.workers import fake_worker
from tests.module.dags import started

RUN = ["AI.MODELEXECUTE", "m", "INPUTS", 1, "t", "OUTPUTS", 1, "o"]


def prepare(client: redis.Redis, blob: str = "identity") -> None:
    client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", blob)
    client.execute_command("AI.TENSORSET", "t", "INT32", 2, 1, "VALUES", 1, -2)


def info(client: redis.Redis) -> dict[bytes, Any]:
    flat = client.execute_command("AI.INFO", "m")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_run_and_statistics(ai: redis.Redis) -> None:
    prepare(ai)
    assert ai.execute_command(*RUN) == b"OK"
    assert ai.execute_command("AI.MODELRUN", "m", "TIMEOUT", 5000, "INPUTS", "t", "OUTPUTS", "p") == b"OK"
    tensor = [b"dtype", b"INT32", b"shape", [2, 1], b"values", [1, -2]]
    for key in ("o", "p"):
        assert ai.execute_command("AI.TENSORGET", key, "META", "VALUES") == tensor
    stats = info(ai)
    assert stats.pop(b"duration") > 0
    assert stats == {
        b"key": b"m", b"type": b"MODEL", b"backend": b"ONNX", b"device": b"CPU", b"tag": b"",
        b"samples": 4, b"calls": 2, b"errors": 0,
    }  # fmt: skip
    assert ai.execute_command("AI.INFO", "m", "RESETSTAT") == b"OK"
    assert info(ai)[b"calls"] == 0
    with pytest.raises(redis.ResponseError, match=r"^cannot find run info for key$"):
        ai.execute_command("AI.INFO", "t")


def test_outputs_without_dimensions_and_model_bytes(shared_ai: redis.Redis) -> None:
    prepare(shared_ai, "add_scalar")
    assert shared_ai.execute_command(*RUN) == b"OK"
    scalar = [b"dtype", b"FLOAT", b"shape", [], b"values", [b"1"]]
    assert shared_ai.execute_command("AI.TENSORGET", "o", "META", "VALUES") == scalar
    prepare(shared_ai, "bytes of the model")
    assert shared_ai.execute_command(*RUN) == b"OK"
    assert shared_ai.execute_command("AI.TENSORGET", "o", "BLOB") == b"bytes of the model"


@pytest.mark.parametrize("blob", ["garbage", "few", "fail", "die"])
def test_failed_runs_write_nothing(shared_ai: redis.Redis, blob: str) -> None:
    prepare(shared_ai, blob)
    with pytest.raises(redis.ResponseError, match=r"^the model failed$|^PROTOCOL|^WORKERLOST"):
        shared_ai.execute_command(*RUN)
    assert not shared_ai.exists("o")
    stats = info(shared_ai)
    assert [stats[name] for name in (b"calls", b"errors", b"samples")] == [1, 1, 0]


def test_inputs_and_model_are_fixed_at_the_call(ai: redis.Redis, ai_server: Server) -> None:
    prepare(ai, "held")
    run = Later(ai_server, *RUN)
    eventually(lambda: ai_server.field("in_flight") == 1)
    ai.execute_command("AI.TENSORSET", "t", "INT8", 1)
    ai.delete("m")
    ai_server.let_go()
    assert run.result() == b"OK"
    assert ai.execute_command("AI.TENSORGET", "o", "VALUES") == [1, -2]
    eventually(lambda: ai.llen("drops") == 1)


def test_output_key_of_another_type(ai: redis.Redis, ai_server: Server) -> None:
    prepare(ai, "held")
    run = Later(ai_server, *RUN)
    eventually(lambda: ai_server.field("in_flight") == 1)
    ai.set("o", "text")
    ai_server.let_go()
    assert str(run.result()).startswith("WRONGTYPE")
    assert ai.get("o") == b"text"
    with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
        ai.execute_command(*RUN)


def test_timeout_counts_waiting_only(ai: redis.Redis, ai_server: Server) -> None:
    prepare(ai, "held")
    running = started(ai_server, [*RUN, "TIMEOUT", 900])
    assert ai.execute_command(*RUN[:-1], "late", "TIMEOUT", 50) == b"TIMEDOUT"
    time.sleep(0.95)
    ai_server.let_go()
    assert running.result() == b"OK", "the 0.95 s in which the job ran do not count"
    assert not ai.exists("late")
    assert info(ai)[b"calls"] == 1


def test_results_go_to_the_database_of_the_client(ai: redis.Redis, ai_server: Server) -> None:
    with ai_server.client(decode_responses=False, db=3) as client:
        prepare(client)
        assert client.execute_command(*RUN) == b"OK"
        assert client.execute_command("AI.TENSORGET", "o", "VALUES") == [1, -2]
    assert not ai.exists("m", "o")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none", *RUN[2:]], "^model key is empty$"),
        (["t", *RUN[2:]], "^WRONGTYPE"),
        (["m", "IN", 1, "t", "OUTPUTS", 1, "o"], "^INPUTS not specified$"),
        (["m", "INPUTS", "x", "t", "OUTPUTS", 1, "o"], "^Invalid argument for input_count$"),
        (["m", "INPUTS", 0, "t", "OUTPUTS", 1, "o"], "^Input count must be a positive integer$"),
        (["m", "INPUTS", 99, "t", "OUTPUTS", 1, "o"], "^number of input keys to AI.MODELEXECUTE command does"),
        (["m", "INPUTS", 1, "t", "OUT", 1, "o"], "^OUTPUTS not specified$"),
        (["m", "INPUTS", 1, "t", "OUTPUTS", "x", "o"], "^Invalid argument for output_count$"),
        (["m", "INPUTS", 1, "t", "OUTPUTS", -1, "o"], "^Output count must be a positive integer$"),
        (["m", "INPUTS", 1, "t", "OUTPUTS", 2, "o"], "^number of output keys to AI.MODELEXECUTE command does"),
        (["m", "INPUTS", 2, "t", "t", "OUTPUTS", 1, "o"], "^Number of keys given as INPUTS here does not match"),
        (["m", "INPUTS", 1, "t", "OUTPUTS", 2, "o", "p"], "^Number of keys given as OUTPUTS here does not match model"),
        (["m", "INPUTS", 1, "none", "OUTPUTS", 1, "o"], "^tensor key is empty or in a different shard$"),
        ([*RUN[1:], "TIMEOUT"], "^No value provided for TIMEOUT$"),
        ([*RUN[1:], "TIMEOUT", "x"], "^Invalid value for TIMEOUT$"),
        ([*RUN[1:], "MORE"], "^Invalid argument: MORE$"),
        (["m", "INPUTS"], "^wrong number of arguments"),
    ],
)
def test_bad_input(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    prepare(shared_ai)
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.MODELEXECUTE", *arguments)
    assert not shared_ai.exists("o")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["IN", "t", "OUTPUTS", "o"], "^INPUTS not specified$"),
        (["INPUTS", "OUTPUTS", "o", "p"], "^INPUTS not specified$"),
        (["INPUTS", "t", "o", "p"], "^OUTPUTS not specified$"),
        (["INPUTS", "t", "t", "OUTPUTS"], "^OUTPUTS not specified$"),
        (["TIMEOUT", "x", "INPUTS", "t", "OUTPUTS", "o"], "^Invalid value for TIMEOUT$"),
        (["INPUTS", "t", "t", "OUTPUTS", "o"], "^Number of keys given as INPUTS here does not match model definition$"),
        (["INPUTS", "t"], "^wrong number of arguments"),
    ],
)
def test_bad_input_of_the_old_form(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    prepare(shared_ai)
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.MODELRUN", "m", *arguments)
    assert not shared_ai.exists("o")


def test_bad_questions_about_a_model(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    for words, text in (
        (["AI.INFO", "m", "WHAT"], r"^unsupported subcommand$"),
        (["AI.INFO", "none"], r"^cannot find run info for key$"),
        (["AI.INFO"], r"^wrong number of arguments"),
        (["AI.MODELGET", "m", "WHAT"], r"^Invalid argument, expected META or BLOB$"),
        (["AI._MODELSCAN", "x"], r"^wrong number of arguments"),
        (["AI._SCRIPTSCAN", "x"], r"^wrong number of arguments"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            shared_ai.execute_command(*words)


def test_not_in_a_transaction(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    shared_ai.execute_command("AI.SCRIPTSET", "s", "CPU", "SOURCE", "x")
    commands: list[list[Any]] = [RUN, ["AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", "b"]]
    commands += [["AI.SCRIPTEXECUTE", "s", "f", "INPUTS", 1, "t"], ["AI.SCRIPTSET", "s", "CPU", "SOURCE", "x"]]
    commands.append(["AI.DAGEXECUTE", "LOAD", 1, "t", "|>", *RUN])
    with shared_ai.pipeline(transaction=True) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies = pipeline.execute(raise_on_error=False)
    text = "Cannot run RedisAI command within a transaction or a LUA script"
    assert [str(reply) for reply in replies] == [text] * len(commands)


def test_key_positions(shared_ai: redis.Redis) -> None:
    assert shared_ai.execute_command("COMMAND", "GETKEYS", *RUN) == [b"m", b"t", b"o"]
    old = ["AI.MODELRUN", "m", "TIMEOUT", 5, "INPUTS", "a", "b", "OUTPUTS", "c"]
    assert shared_ai.execute_command("COMMAND", "GETKEYS", *old) == [b"m", b"a", b"b", b"c"]


def test_slot_moved_during_the_run(server_binary: Path) -> None:
    """The run writes nothing to a slot that another shard owns when the run ends."""
    with Cluster(server_binary, worker=fake_worker("models"), size=2) as cluster:
        first, second = cluster.nodes
        first.wait_ready()
        with first.client() as client, second.client() as other:
            client.response_callbacks.pop("CLUSTER", None)
            slot = int(client.execute_command("CLUSTER", "KEYSLOT", "{b}"))
            tagged = ["{b}" + word if word in ("m", "t", "o") else word for word in map(str, RUN)]
            client.execute_command("AI.MODELSTORE", "{b}m", "ONNX", "CPU", "BLOB", "held")
            client.execute_command("AI.TENSORSET", "{b}t", "INT8", 1)
            with pytest.raises(redis.ResponseError, match=r"same slot|CROSSSLOT"):
                client.execute_command(*tagged[:-1], "{x}o")
            run = Later(first, *tagged)
            eventually(lambda: first.field("in_flight") == 1)
            owner = other.execute_command("CLUSTER MYID")
            client.delete("{b}m", "{b}t")
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", owner)
            first.let_go()
            assert isinstance(run.result(), redis.exceptions.TryAgainError)
            assert client.keys("{b}*") == []
