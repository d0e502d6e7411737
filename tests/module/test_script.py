"""AI.SCRIPT*: storing, reading and running scripts, and their persistence and replication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Later, Server
from tests.harness.workers import fake_worker
from tests.module.registrations import run

META = [b"device", b"CPU:1", b"tag", b"v1", b"Entry Points", [b"echo", b"fail"]]
EXECUTE = ["AI.SCRIPTEXECUTE", "s", "identity", "INPUTS", 1, "t", "OUTPUTS", 1, "o"]


def store(client: redis.Redis, key: str = "s", source: str = "the source") -> None:
    names = ["ENTRY_POINTS", 2, "echo", "fail"]
    stored = client.execute_command("AI.SCRIPTSTORE", key, "cpu:1", "TAG", "v1", *names, "SOURCE", source)
    assert stored == b"OK"


def prepare(client: redis.Redis) -> None:
    store(client)
    client.execute_command("AI.TENSORSET", "t", "INT32", 2, 1, "VALUES", 1, -2)


def info(client: redis.Redis, key: str = "s") -> dict[bytes, Any]:
    flat = client.execute_command("AI.INFO", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_a_script_that_loading_would_refuse_is_not_stored(ai: redis.Redis) -> None:
    """The server would not start with such an RDB file."""
    long, limit = "x" * ((1 << 20) + 1), "tag or name of 1048577 bytes is longer than the limit of 1048576 bytes"
    for words in (
        ["AI.SCRIPTSTORE", "s", "CPU", "TAG", long, "ENTRY_POINTS", 1, "f", "SOURCE", "x"],
        ["AI.SCRIPTSTORE", "s", "CPU", "ENTRY_POINTS", 2, "f", long, "SOURCE", "x"],
        ["AI.SCRIPTSET", "s", "CPU", "TAG", long, "SOURCE", "x"],
        ["AI.MODELSTORE", "m", "ONNX", "CPU", "TAG", long, "BLOB", "identity"],
    ):
        with pytest.raises(redis.ResponseError, match=limit):
            ai.execute_command(*words)
    assert ai.execute_command("AI.SCRIPTSET", "s", "CPU", "TAG", long[1:], "SOURCE", "x") == b"OK"
    ai.execute_command("DEBUG", "RELOAD")
    assert ai.execute_command("AI.SCRIPTGET", "s", "META")[3] == long[1:].encode()


def test_store_and_get(ai: redis.Redis) -> None:
    store(ai)
    for options in ([], ["META", "SOURCE"]):
        assert ai.execute_command("AI.SCRIPTGET", "s", *options) == [*META, b"source", b"the source"]
    assert ai.execute_command("AI.SCRIPTGET", "s", "META") == META
    assert ai.execute_command("AI.SCRIPTGET", "s", "SOURCE") == b"the source"
    assert ai.execute_command("AI.SCRIPTSET", "old", "GPU", "SOURCE", "old") == b"OK"
    assert ai.execute_command("AI.SCRIPTSET", "tagged", "CPU", "TAG", "t", "SOURCE", "old") == b"OK"
    old = [b"device", b"GPU", b"tag", b"", b"Entry Points", [], b"source", b"old"]
    assert ai.execute_command("AI.SCRIPTGET", "old") == old
    assert sorted(ai.execute_command("AI._SCRIPTSCAN")) == [[b"old", b""], [b"s", b"v1"], [b"tagged", b"t"]]
    assert ai.execute_command("AI._MODELSCAN") == []
    ai.rename("s", "renamed")
    ai.copy("renamed", "copied")
    assert ai.execute_command("AI.SCRIPTDEL", "old") == b"OK"
    assert sorted(ai.execute_command("AI._SCRIPTSCAN")) == [[b"copied", b"v1"], [b"renamed", b"v1"], [b"tagged", b"t"]]
    eventually(lambda: ai.llen("drops") == 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["TPU", "ENTRY_POINTS", 1, "f", "SOURCE", "x"], "^Invalid DEVICE$"),
        (["CPU", "ENTRIES", 1, "f", "SOURCE", "x"], "^Insufficient arguments, missing script entry points$"),
        (["CPU", "ENTRY_POINTS", 9, "f", "SOURCE", "x"], "^Insufficient arguments, missing script entry points$"),
        (["CPU", "ENTRY_POINTS", 0, "x", "SOURCE", "x"], "^Insufficient arguments, missing script entry points$"),
        (
            ["CPU", "ENTRY_POINTS", "x", "f", "SOURCE", "x"],
            "^Non numeric entry points number provided to AI.SCRIPTSTORE command$",
        ),
        (["CPU", "ENTRY_POINTS", 1, "f", "SOURC", "x"], "^Insufficient arguments, missing script SOURCE$"),
        (["CPU", "ENTRY_POINTS", 2, "f", "g", "SOURCE"], "^Insufficient arguments, missing script SOURCE$"),
        (["CPU", "ENTRY_POINTS", 1, "f", "SOURCE", "x", "y"], "^unexpected argument after the script SOURCE: y$"),
        (["CPU", "ENTRY_POINTS", 1, "f", "SOURCE", "x" * (2**24 + 1)], "16777217 bytes .* limit of 16777216 bytes"),
        (["CPU", "ENTRY_POINTS", 1, "f", "SOURCE", "refuse"], "^Function f does not exist in the given script.$"),
        (
            ["CPU", "ENTRY_POINTS", 1, "f", "SOURCE", "garbage"],
            "^PROTOCOL worker sent an invalid reply to script.load$",
        ),
        (["CPU", "ENTRY_POINTS", 1, "f", "SOURCE"], "^wrong number of arguments"),
    ],
)
def test_bad_input_changes_nothing(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    store(shared_ai)
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.SCRIPTSTORE", "s", *arguments)
    assert shared_ai.execute_command("AI.SCRIPTGET", "s", "SOURCE") == b"the source"


def test_keys_of_other_types(shared_ai: redis.Redis) -> None:
    shared_ai.set("text", "x")
    store(shared_ai)
    for command in (
        ["AI.SCRIPTSTORE", "text", "BAD", "BAD", "BAD", "b", "b", "b"],
        ["AI.SCRIPTSET", "text", "CPU", "SOURCE", "b"],
        ["AI.SCRIPTGET", "text"],
        ["AI.SCRIPTDEL", "text"],
        ["AI.SCRIPTEXECUTE", "text", "f", "INPUTS", 1, "t"],
        ["AI.MODELGET", "s"],
    ):
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
            shared_ai.execute_command(*command)
    for command in (["AI.SCRIPTGET", "no"], ["AI.SCRIPTDEL", "no"], ["AI.SCRIPTRUN", "no", "f"]):
        with pytest.raises(redis.ResponseError, match=r"^script key is empty$"):
            shared_ai.execute_command(*command)
    with pytest.raises(redis.ResponseError, match=r"^Insufficient arguments, missing script SOURCE$"):
        shared_ai.execute_command("AI.SCRIPTSET", "s", "CPU", "SOUR", "b")
    for command in (["AI.SCRIPTSET", "s", "CPU", "SOURCE", "b", "c"], ["AI.SCRIPTGET", "s", "a", "b", "c"]):
        with pytest.raises(redis.ResponseError, match=r"^wrong number of arguments"):
            shared_ai.execute_command(*command)


def test_run_and_statistics(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    assert shared_ai.execute_command(*EXECUTE) == b"OK"
    assert shared_ai.execute_command("AI.SCRIPTRUN", "s", "identity", "INPUTS", "t", "OUTPUTS", "p") == b"OK"
    for key in ("o", "p"):
        assert shared_ai.execute_command("AI.TENSORGET", key, "VALUES") == [1, -2]
    call = ["KEYS", 2, "k", "l", "ARGS", 1, "a b", "OUTPUTS", 1, "o"]
    assert shared_ai.execute_command("AI.SCRIPTEXECUTE", "s", "echo", *call) == b"OK"
    assert shared_ai.execute_command("AI.TENSORGET", "o", "VALUES") == [b"default", b"echo", b"k", b"l", b"|", b"a b"]
    assert shared_ai.execute_command("AI.SCRIPTEXECUTE", "s", "source", "INPUTS", 0, "OUTPUTS", 1, "o") == b"OK"
    assert shared_ai.execute_command("AI.TENSORGET", "o", "VALUES") == [b"the source"]
    with pytest.raises(redis.ResponseError, match=r"^the step failed$"):
        shared_ai.execute_command("AI.SCRIPTEXECUTE", "s", "fail", "INPUTS", 1, "t", "OUTPUTS", 1, "x")
    with pytest.raises(redis.ResponseError, match=r"^WORKERLOST"):
        shared_ai.execute_command("AI.SCRIPTEXECUTE", "s", "die", "INPUTS", 1, "t", "OUTPUTS", 1, "x")
    assert not shared_ai.exists("x")
    assert info(shared_ai) == {
        b"key": b"s", b"type": b"SCRIPT", b"backend": b"TORCH", b"device": b"CPU:1", b"tag": b"v1",
        b"duration": 4000, b"samples": -1, b"calls": 6, b"errors": 2,
    }  # fmt: skip
    shared_ai.execute_command("AI.INFO", "s", "RESETSTAT")
    assert info(shared_ai)[b"calls"] == 0


def test_variadic_inputs_of_the_old_form(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    run = ["AI.SCRIPTRUN", "s", "identity", "TIMEOUT", 5000, "INPUTS", "t", "$", "t", "OUTPUTS", "a", "b"]
    assert shared_ai.execute_command(*run) == b"OK"
    assert shared_ai.execute_command("AI.TENSORGET", "b", "VALUES") == [1, -2]
    assert shared_ai.execute_command("COMMAND", "GETKEYS", *run) == [b"s", b"t", b"t", b"a", b"b"]
    keys = ["KEYS", 1, "k", "INPUTS", 1, "i", "OUTPUTS", 1, "o", "ARGS", 1, "a", "TIMEOUT", 1]
    assert shared_ai.execute_command("COMMAND", "GETKEYS", "AI.SCRIPTEXECUTE", "s", "f", *keys) == [
        b"s",
        b"k",
        b"i",
        b"o",
    ]


SCOPE = "^KEYS or INPUTS scope must be provided first for AI.SCRIPTEXECUTE command$"
KEYS = "^Invalid or negative value found in number of KEYS$"
FEW = "^Invalid arguments provided to AI.SCRIPTEXECUTE$"
OLD = ["the old form", "identity"]  # AI.SCRIPTRUN


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "^wrong number of arguments"),
        (["f"], SCOPE),
        (["f", "ARGS", 1, "a", "INPUTS", 1, "t"], SCOPE),
        (["f", "INPUTS", 1, "t", "INPUTS", 1, "t"], "^Already Encountered INPUTS scope in AI.SCRIPTEXECUTE command$"),
        (["f", "KEYS", 1, "k", "KEYS", 1, "k"], "^Already Encountered KEYS scope in AI.SCRIPTEXECUTE command$"),
        (["f", "KEYS"], "^Missing arguments after KEYS keyword$"),
        (["f", "KEYS", "x", "k"], KEYS),
        (["f", "KEYS", -1, "k"], KEYS),
        (
            ["f", "KEYS", 3, "k"],
            "^Number of pre declared KEYS to be used in the command does not match the number of given arguments$",
        ),
        (["f", "INPUTS", "x", "t"], "^Invalid argument for inputs count in AI.SCRIPTEXECUTE$"),
        (["f", "INPUTS", 1, "t", "OUTPUTS", -1], "^Invalid argument for outputs count in AI.SCRIPTEXECUTE$"),
        (["f", "INPUTS", 1, "t", "ARGS"], "^Invalid argument for args count in AI.SCRIPTEXECUTE$"),
        (["f", "INPUTS", 9, "t"], FEW),
        (["f", "INPUTS", 1, "t", "OUTPUTS", 2, "o"], FEW),
        (["f", "INPUTS", 1, "t", "TIMEOUT"], "^No value provided for TIMEOUT in AI.SCRIPTEXECUTE$"),
        (["f", "INPUTS", 1, "t", "TIMEOUT", 0], "^Invalid value for TIMEOUT$"),
        (
            ["f", "INPUTS", 1, "t", "TIMEOUT", 1, "OUTPUTS", 1, "o"],
            "^Invalid AI.SCRIPTEXECUTE command. Unexpected argument: OUTPUTS$",
        ),
        (["f", "INPUTS", 1, "t", "WHAT\r\n"], "^Invalid AI.SCRIPTEXECUTE command. Unexpected argument: WHAT  $"),
        (["f", "INPUTS", 1, "none"], "^tensor key is empty or in a different shard$"),
        (["f", "INPUTS", 1, "s"], "^WRONGTYPE"),
        (["identity", "INPUTS", 1, "t", "OUTPUTS", 1, "s"], "^WRONGTYPE"),
        ([*OLD, "INPUTS", "t", "$", "t", "$", "OUTPUTS", "o"], "^Already encountered a variable size list of tensors$"),
        ([*OLD, "WHAT", "t", "OUTPUTS", "o"], "^Unrecongnized parameter to SCRIPTRUN$"),
        ([*OLD, "TIMEOUT"], "^No value provided for TIMEOUT$"),
        ([*OLD, "TIMEOUT", "x", "INPUTS", "t"], "^Invalid value for TIMEOUT$"),
    ],
)
def test_bad_calls(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    prepare(shared_ai)
    old = arguments[:1] == OLD[:1]
    command = ["AI.SCRIPTRUN", "s", *arguments[1:]] if old else ["AI.SCRIPTEXECUTE", "s", *arguments]
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command(*command)
    assert not shared_ai.exists("o")


def test_a_run_still_has_a_script_that_is_deleted_meanwhile(shared_ai: redis.Redis, shared_ai_server: Server) -> None:
    prepare(shared_ai)
    running = Later(shared_ai_server, "AI.SCRIPTEXECUTE", "s", "held", *EXECUTE[3:])
    eventually(lambda: shared_ai_server.field("in_flight") == 1)
    shared_ai.execute_command("AI.SCRIPTDEL", "s")
    shared_ai_server.let_go()
    assert running.result() == b"OK"
    store(shared_ai)
    busy = ["AI.SCRIPTEXECUTE", "s", "busy", *EXECUTE[3:-1], "late"]
    assert shared_ai.execute_command(*busy, "TIMEOUT", 5000) == b"TIMEDOUT"
    with pytest.raises(redis.ResponseError, match=r"^PROTOCOL worker sent an invalid result of dag.run$"):
        shared_ai.execute_command(*busy)
    assert not shared_ai.exists("late")


def test_a_replica_gets_the_outputs(shared_ai: redis.Redis, shared_ai_server: Server, shared_binary: Path) -> None:
    prepare(shared_ai)
    primary = {"replicaof": f"127.0.0.1 {shared_ai_server.port}"}
    with Server(shared_binary, primary) as replica, replica.client(decode_responses=False) as client:
        eventually(lambda: client.exists("s"), ignore=redis.RedisError)
        shared_ai.execute_command(*EXECUTE)
        eventually(lambda: client.exists("o"))
        assert client.execute_command("AI.TENSORGET", "o", "VALUES") == [1, -2]


def test_the_server_checks_slots(shared_binary: Path) -> None:
    with Cluster(shared_binary, worker=fake_worker("models"), size=2) as cluster:
        first = cluster.nodes[0]
        first.wait_ready()
        with first.client() as client:
            run = ["AI.SCRIPTEXECUTE", "{b}s", "f", "KEYS", 1, "{x}k", "INPUTS", 1, "{b}t", "OUTPUTS", 1, "{b}o"]
            with pytest.raises(redis.ResponseError, match=r"same slot|CROSSSLOT"):
                client.execute_command(*run)
            dag = ["AI.DAGEXECUTE", "ROUTING", "{a}", "|>", "AI.TENSORSET", "t", "INT8", 1]
            with pytest.raises(redis.exceptions.MovedError):
                client.execute_command(*dag)
            dag[2] = "{b}"
            assert client.execute_command(*dag) == ["OK"]
            with pytest.raises(redis.ResponseError, match=r"same slot|CROSSSLOT"):
                client.execute_command(*dag, "|>", "AI.MODELEXECUTE", "{x}m", *["INPUTS", 1, "t", "OUTPUTS", 1, "o"])


def test_the_worker_can_fetch_scripts(shared: Server) -> None:
    with shared.client() as client:
        client.set("text", "x")
        client.execute_command("AI.SCRIPTSTORE", "asked", "CPU", "ENTRY_POINTS", 1, "f", "SOURCE", "def f")
        client.execute_command("AI.MODELSTORE", "model", "ONNX", "CPU", "BLOB", "b")
        asked, model = run(shared, ["QA.SCRIPTREF", "asked"], ["QA.MODELREF", "model"])
        assert asked[1:] == ["CPU"] and model[1:] == ["ONNX", "CPU"]
        assert model[0] > asked[0], "one sequence of numbers"
        commands: list[list[object]] = [["QA.SCRIPT", asked[0]], ["QA.SCRIPT", model[0]], ["QA.MODEL", asked[0]]]
        commands += [["QA.SCRIPT", "x"], ["QA.SCRIPTREF", "none"], ["QA.SCRIPTREF", "text"]]
        assert run(shared, *commands) == [
            ["CPU", "def f", "f"],
            f"-ERR no such script: {model[0]}",
            f"-ERR no such model: {asked[0]}",
            "-ERR script ref must be a positive integer",
            "-ERR script key is empty",
            "-WRONGTYPE Operation against a key holding the wrong kind of value",
        ]
        client.execute_command("AI.SCRIPTDEL", "asked")
        eventually(lambda: f"model.drop {asked[0]}" in client.lrange("notices", 0, -1))
