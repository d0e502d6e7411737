"""The worker's links: which connections can become links, and the errors of the internal commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import fake_worker
from tests.module.registrations import run


def test_hello_needs_the_token_and_the_version(shared: Server) -> None:
    with shared.client() as client:
        with pytest.raises(redis.exceptions.NoPermissionError, match="wrong worker token"):
            client.execute_command("QA.HELLO", "9", "0" * 64)
        with pytest.raises(redis.ResponseError, match="PROTOCOL worker speaks version 8, module speaks 9"):
            client.execute_command("QA.HELLO", "8", "0" * 64)


def test_a_worker_of_another_version_never_becomes_ready(server_binary: Path) -> None:
    with Server(server_binary, worker=fake_worker("functions", "--version", "10")) as server:
        eventually(lambda: server.field("worker_restarts") >= 1)
        assert server.field("worker_state") != "ready"
        eventually(lambda: "PROTOCOL worker speaks version 10, module speaks 9" in server.output())  # the worker's text


def test_password_and_acl_do_not_exclude_the_worker(server_binary: Path) -> None:
    with Server(server_binary, {"requirepass": "secret"}, worker=fake_worker("functions")) as server:
        eventually(lambda: "fake worker is ready" in server.output())
        with server.client(password="secret") as client:
            assert client.execute_command("RG.TRIGGER", "echo", "x") == ["x"]


def test_worker_is_not_an_administrator(shared: Server) -> None:
    replies = run(shared, ["CONFIG", "GET", "port"], ["ACL", "WHOAMI"], ["FLUSHALL"], ["SET", "a", "1"])
    assert str(replies[0]).startswith("-NOPERM")
    assert replies[1] == "qa-worker"
    assert replies[3] == "OK"


def test_bad_arguments(shared: Server) -> None:
    replies = run(
        shared,
        ["QA.NEXT", "-1", "0"],
        ["QA.NEXT", "1", "-1"],
        ["QA.NEXT", "1", "0", "-1", "0"],
        ["QA.NEXT", "1", "0", "0", "1025"],
        ["QA.NEXT", "1", "0", "0"],
        ["QA.DONE", "x", "OK"],
        ["QA.DONE", "999999", "OK"],
        ["QA.DONE", "1", "WHAT"],
        ["QA.SEND", "nobody", "x"],
        ["QA.ATOMIC", "0"],
    )
    assert all(str(reply).startswith("-ERR") for index, reply in enumerate(replies) if index != 6)
    assert replies[6] == "-NOJOB no such job: 999999"


def test_a_beat_has_named_values(shared: Server) -> None:
    beats: list[list[object]] = [
        ["QA.BEAT", "functions_stuck", "3"],
        ["QA.BEAT", "inference_ready", "2"],  # a missing name keeps its value
        ["QA.BEAT", "inference_ready", "9", "no_such", "1"],
        ["QA.BEAT", "inference_ready", "9", "batches", "-1"],
        ["QA.BEAT", "inference_ready"],
        ["QA.BEAT"],
    ]
    taken, other, unknown, negative, *halves = run(shared, *beats)
    assert (taken, other) == ("OK", "OK")
    assert unknown == "-ERR QA.BEAT has no value of this name: no_such"
    assert negative == "-ERR batches of QA.BEAT must be a non-negative integer, got -1"
    assert all("wrong number of arguments" in half for half in halves)
    assert shared.fields("worker_functions_stuck", "inference_ready") == (3, 2)  # a refused beat changes nothing


def test_a_worker_without_capacity_gets_no_job(shared: Server) -> None:
    """It may still ask for messages."""
    assert run(shared, ["QA.NEXT", "0", "0"], ["QA.NEXT", "8", "0", "0", "0"]) == [None, None]
