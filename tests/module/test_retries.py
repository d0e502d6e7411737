"""Retried jobs after a worker's death: each needs capacity only in its own queue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import fake_worker

from .registrations import register, trigger

READ = "read"  # an own function
CALL = "call"  # a user function
FULL = "no-room-for-functions"
AGAIN = b"*3\r\n$9\r\nhang-once\r\n$0\r\n\r\n$1\r\n2\r\n"


@pytest.fixture
def server(server_binary: Path) -> Iterator[Server]:
    settings = {"qa.max-queue": 4, "qa.worker-silence-ms": 600_000}
    with Server(server_binary, settings, worker=fake_worker("functions")) as running:
        running.wait_ready()
        register(running, "own", trigger("id-read", READ, own=True, cost_from=3))
        register(running, "users", trigger("id-call", CALL))
        yield running


def begun(stack: ExitStack, server: Server, *names: str) -> list[Pending]:
    """Start calls of these triggers and kill the worker. The next worker has no capacity for user functions."""
    calls = []
    for number, name in enumerate(names, start=1):
        calls.append(stack.enter_context(Pending(server, "RG.TRIGGER", name, "hang-once")))
        eventually(lambda number=number: server.field("in_flight") == number)  # type: ignore[misc]
    server.let_go(FULL)
    server.signal_worker(signal.SIGKILL)
    return calls


def test_an_own_function_does_not_wait_for_capacity_of_user_functions(server: Server) -> None:
    with ExitStack() as stack:
        *functions, reads = begun(stack, server, CALL, CALL, READ)
        assert reads.reply() == AGAIN
        assert server.fields("in_flight", "queued_clients") == (0, 2)
        (server.directory / FULL).unlink()
        assert [call.reply() for call in functions] == [AGAIN] * 2
        assert server.fields("in_flight", "queued_clients") == (0, 0)


def test_functions_fill_their_own_queue_only(server: Server) -> None:
    with ExitStack() as stack:
        functions = begun(stack, server, *[CALL] * 4)
        eventually(lambda: server.fields("in_flight", "queued_clients") == (0, 4))
        assert execute(server, "RG.TRIGGER", READ, "echo") == ["echo", "", "1"]
        refusal = r"OVERLOADED queue is full: 4 jobs, limit 4 \(qa.max-queue\), try again later"
        with pytest.raises(redis.ResponseError, match=refusal):
            execute(server, "RG.TRIGGER", CALL, "echo")
        functions.pop().hang_up()
        eventually(lambda: server.field("queued_clients") == 3)
        (server.directory / FULL).unlink()
        assert execute(server, "RG.TRIGGER", CALL, "echo") == ["echo", "", "1"]
        assert [call.reply() for call in functions] == [AGAIN] * 3
