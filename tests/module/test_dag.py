"""AI.DAGEXECUTE: its replies, the keys that it persists, and workers that send wrong data."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.harness.fake_worker.models import LIES
from tests.harness.polling import eventually
from tests.harness.servers import Later, Server
from tests.harness.workers import fake_worker
from tests.module.dags import RUN, dag, numbers, prepare, run, started, store


def test_the_replies_of_a_dag_and_its_persisted_tensors(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    reply = shared_ai.execute_command(
        *dag(
            *("LOAD", 1, "a", "PERSIST", 2, "b", "n", "TIMEOUT", 5000),
            run("m"),
            ["AI.TENSORGET", "b", "VALUES"],
            ["AI.TENSORSET", "n", "FLOAT", 2, "VALUES", "0.5", 4],
            ["ai.tensorget", "n", "META", "VALUES"],
            run("m", "n", "b"),
            ["AI.TENSORGET", "b", "META"],
            ["AI.SCRIPTEXECUTE", "s", "echo", "ARGS", 1, "x", "INPUTS", 1, "b", "OUTPUTS", 1, "n"],
            ["AI.TENSORGET", "n", "VALUES"],
            ["AI.TENSORGET", "a", "BLOB"],
        )
    )
    assert reply == [
        b"OK",
        [1, -2],
        b"OK",
        [b"dtype", b"FLOAT", b"shape", [2], b"values", [b"0.5", b"4"]],
        b"OK",
        [b"dtype", b"FLOAT", b"shape", [2]],
        b"OK",
        [b"default", b"echo", b"|", b"x"],
        b"\1\0\0\0\xfe\xff\xff\xff",
    ]
    assert shared_ai.execute_command("AI.TENSORGET", "b", "VALUES") == [b"0.5", b"4"], "the last tensor of that name"
    assert shared_ai.execute_command("AI.TENSORGET", "n", "VALUES") == [b"default", b"echo", b"|", b"x"]
    assert numbers(shared_ai, "m") == [2000, 4, 2, 0]
    assert numbers(shared_ai, "s") == [1000, -1, 1, 0]


def test_nothing_is_persisted_when_a_step_fails(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    words = dag(
        *("LOAD", 1, "a", "PERSIST", 2, "b", "x"),
        run("m"),
        ["AI.TENSORGET", "b", "VALUES"],
        ["AI.TENSORSET", "x", "INT8", 1],
        run("fail", "b", "y"),
        run("m", "y", "z"),
        ["AI.TENSORGET", "z"],
        ["AI.TENSORGET", "x", "VALUES"],
    )
    reply = shared_ai.execute_command(*words)
    assert str(reply[3]) == "the step failed" and isinstance(reply[3], redis.ResponseError)
    assert [*reply[:3], *reply[4:]] == [b"OK", [1, -2], b"OK", b"NA", b"NA", [0]]
    assert not shared_ai.exists("b", "x")
    assert numbers(shared_ai, "m") == [1000, 2, 1, 0], "a step that did not run does not count"
    assert numbers(shared_ai, "fail") == [0, 0, 1, 1]


def test_without_a_step_no_worker_is_asked(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client(decode_responses=False) as client:
        words = dag("PERSIST", 1, "t", ["AI.TENSORSET", "t", "INT8", 1, "VALUES", 7], ["AI.TENSORGET", "t", "VALUES"])
        assert client.execute_command(*words) == [b"OK", [7]]
        assert client.execute_command("AI.TENSORGET", "t", "VALUES") == [7]
        read_only = ["AI.DAGEXECUTE_RO", "LOAD", 1, "t", "|>", "AI.TENSORGET", "t", "VALUES"]
        assert client.execute_command(*read_only) == [[7]]
        client.set("text", "x")
        words[3:4] = ["text"]
        words[words.index("AI.TENSORSET") + 1] = "text"
        words[words.index("AI.TENSORGET") + 1] = "text"
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
            client.execute_command(*words)


def test_read_only(ai: redis.Redis, ai_server: Server, server_binary: Path) -> None:
    prepare(ai)
    words = ["AI.DAGEXECUTE_RO", "LOAD", 1, "a", "|>", *RUN, "|>", "AI.TENSORGET", "b", "VALUES"]
    assert ai.execute_command(*words) == [b"OK", [1, -2]]
    for wrong, text in (
        (["PERSIST", 1, "b", "|>", *RUN], "^PERSIST cannot be specified in a read-only DAG$"),
        (
            ["LOAD", 1, "a", "|>", "AI.SCRIPTEXECUTE", "s", "f"],
            "^AI.SCRIPTEXECUTE command cannot be specified in a read-only DAG$",
        ),
        ([], "^missing arguments for 'AI.DAGEXECUTE_RO' command$"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            ai.execute_command("AI.DAGEXECUTE_RO", *wrong)
    settings = {"replicaof": f"127.0.0.1 {ai_server.port}"}
    with (
        Server(server_binary, settings, worker=fake_worker("models")) as replica,
        replica.client(decode_responses=False) as client,
    ):
        eventually(lambda: client.exists("c"), ignore=redis.RedisError)
        eventually(lambda: client.execute_command(*words) == [b"OK", [1, -2]], ignore=redis.RedisError)
        with pytest.raises(redis.ReadOnlyError):
            client.execute_command(*dag("LOAD", 1, "a", RUN))
        ai.execute_command(*dag("LOAD", 1, "a", "PERSIST", 1, "b", RUN))
        eventually(lambda: client.exists("b"))
        assert client.execute_command("AI.TENSORGET", "b", "VALUES") == [1, -2]


def test_timeout_counts_waiting_only(ai: redis.Redis, ai_server: Server) -> None:
    prepare(ai)
    head = ["LOAD", 1, "a", "PERSIST", 1, "b", "TIMEOUT"]
    running = started(ai_server, dag(*head, 900, run("held")))
    assert ai.execute_command(*dag(*head, 50, run("m"))) == b"TIMEDOUT"
    assert ai.execute_command("AI.TENSORSET", "a", "INT8", 1) == b"OK"
    time.sleep(0.95)
    ai_server.let_go()
    assert running.result() == [b"OK"], "the 0.95 s in which the job ran do not count"
    assert ai.execute_command("AI.TENSORGET", "b", "VALUES") == [1, -2], "the tensor at the time of the call"
    assert numbers(ai, "m") == [0, 0, 0, 0]
    assert ai.execute_command(*dag(*head, 5000, run("busy"))) == b"TIMEDOUT"
    assert numbers(ai, "busy") == [0, 0, 0, 0]
    busy = ["AI.MODELEXECUTE", "busy", "INPUTS", 1, "a", "OUTPUTS", 1, "x"]
    assert ai.execute_command(*busy, "TIMEOUT", 5000) == b"TIMEDOUT"
    with pytest.raises(redis.ResponseError, match=r"^PROTOCOL"):
        ai.execute_command(*busy)
    assert not ai.exists("x")
    fields = ai_server.info()
    assert [fields["qa_jobs_dag.run"]["deadline"], fields["qa_jobs_model.run"]["deadline"]] == [2, 2]


def test_persisted_key_of_another_type(ai: redis.Redis, ai_server: Server) -> None:
    prepare(ai)
    words = dag("LOAD", 1, "a", "PERSIST", 2, "x", "b", run("m", "a", "x"), run("held"))
    running = Later(ai_server, *words)
    eventually(lambda: ai_server.field("in_flight") == 1)
    ai.set("b", "text")
    ai_server.let_go()
    assert str(running.result()).startswith("WRONGTYPE")
    assert ai.get("b") == b"text" and not ai.exists("x")
    with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
        ai.execute_command(*words)


@pytest.mark.parametrize("lie", sorted(set(LIES) - {b"busy"}))
def test_wrong_data_from_a_worker_fails_the_command(shared_ai: redis.Redis, lie: bytes) -> None:
    prepare(shared_ai)
    store(shared_ai, "liar", lie.decode())
    with pytest.raises(redis.ResponseError, match=r"^PROTOCOL worker sent an invalid"):
        shared_ai.execute_command(*dag("LOAD", 1, "a", "PERSIST", 1, "b", run("liar")))
    with pytest.raises(redis.ResponseError, match=r"^PROTOCOL worker sent an invalid"):
        shared_ai.execute_command("AI.SCRIPTEXECUTE", "s", lie, "INPUTS", 1, "a", "OUTPUTS", 1, "b")
    assert not shared_ai.exists("b")
    assert numbers(shared_ai, "liar")[1:] == [0, 1, 1]
    assert shared_ai.execute_command(*dag("LOAD", 1, "a", RUN)) == [b"OK"]


def test_a_worker_that_dies(shared_ai: redis.Redis) -> None:
    prepare(shared_ai)
    with pytest.raises(redis.ResponseError, match=r"^WORKERLOST"):
        shared_ai.execute_command(*dag("LOAD", 1, "a", "PERSIST", 1, "b", run("die")))
    assert numbers(shared_ai, "die") == [0, 0, 1, 1]
