"""Jobs from the client's side: round trips, limits, deadlines, fairness, clients that leave."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker


def trigger(server: Server, *args: str, **options: Any) -> Any:
    with server.client(**options) as client:
        return client.execute_command("RG.TRIGGER", *args)


def test_the_reply_of_a_function_is_the_reply_of_the_command(shared: Server) -> None:
    assert trigger(shared, "echo", "a", "b c", "ü") == ["a", "b c", "ü"]
    values = {"+OK": "OK", ":7": 7, "$-1": None, "*0": [], "*1\r\n*1\r\n:1": [[1]]}
    for resp, expected in values.items():
        assert trigger(shared, "do", "raw", f"{resp}\r\n") == expected
    with pytest.raises(redis.ResponseError, match=r"^BROKEN very$"):
        trigger(shared, "do", "error", "BROKEN very")
    with pytest.raises(redis.ResponseError, match=r"^subcommand not found$"):
        trigger(shared, "nobody")


OF_ANOTHER_KIND = ["TIMEDOUT", "TENSORS 1 INT8 1 1 x", "DAG 0 0", "DAG 1 OK 1 1  0"]
INVALID = ["", "x", "+OK", ":x\r\n", "$5\r\nab\r\n", "*2\r\n:1\r\n", ":1\r\n:2\r\n", "*1\r\n" * 17 + ":1\r\n"]


def test_an_invalid_reply_fails_one_job(shared: Server) -> None:
    restarts = shared.field("worker_restarts")
    wrong = [["status", *status.split(" ")] for status in OF_ANOTHER_KIND] + [["raw", resp] for resp in INVALID]
    for words in wrong:
        with pytest.raises(redis.ResponseError, match=r"^PROTOCOL worker sent an invalid reply$"):
            trigger(shared, "do", *words)
        assert trigger(shared, "echo", "x") == ["x"]
    assert shared.field("worker_restarts") == restarts


def test_scripts_and_commands_reach_the_worker(shared: Server) -> None:
    with shared.client() as client:
        options = ["ID", "i", "DESCRIPTION", "d", "UNBLOCKING", "UPGRADE", "REQUIREMENTS", "a", "b"]
        assert client.execute_command("RG.PYEXECUTE", "code", *options) == ["code", "1", "i", "d", "1", "", "a", "b"]
        assert client.execute_command("RG.GETRESULTS", "x-1") == ["RG.GETRESULTS", "x-1"]


def test_no_worker_configured(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:
        with pytest.raises(redis.ResponseError, match="NOWORKER"):
            client.execute_command("RG.PYEXECUTE", "x")
        assert server.field("worker_state") == "stopped"


def test_deadline_while_no_worker_is_ready(server_binary: Path) -> None:
    with Server(server_binary, {"qa.script-timeout-ms": 200}, worker="sleep 60") as server, server.client() as client:
        with pytest.raises(redis.ResponseError, match=r"DEADLINE job waited \d+ ms, limit 200 ms"):
            client.execute_command("RG.PYEXECUTE", "x")
        assert server.field("queued_clients") == 0


def test_deadline_of_a_running_job_and_late_answer(server_binary: Path) -> None:
    # long enough for the start of the worker; the grace time is long enough for the function to stop
    settings = {"qa.job-timeout-ms": 3000, "qa.cancel-grace-ms": 60_000}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with pytest.raises(redis.ResponseError, match=r"DEADLINE job ran \d+ ms, limit 3000 ms"):
            trigger(server, "do", "sleep", "4500")
        with server.client() as client:
            eventually(lambda: client.lrange("late", 0, -1))
            assert client.lrange("late", 0, -1)[0].startswith("NOJOB no such job: ")
            eventually(lambda: client.lrange("notices", 0, -1))
            assert client.lrange("notices", 0, -1)[0].startswith("cancel ")
        assert server.field("worker_restarts") == 0


def test_a_worker_with_a_hanging_job_is_killed(server_binary: Path) -> None:
    settings = {"qa.job-timeout-ms": 3000, "qa.cancel-grace-ms": 200}  # the worker starts within the limit
    with Server(server_binary, settings, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with pytest.raises(redis.ResponseError, match="DEADLINE"):
            trigger(server, "do", "hang")
        eventually(lambda: server.field("worker_restarts") == 1)
        server.wait_ready()
        with server.client() as client:
            client.config_set("qa.job-timeout-ms", 30_000)
        assert trigger(server, "echo", "x") == ["x"]
        assert server.field("worker_killed") == 1


def test_a_client_that_disconnects_removes_its_job(server: Server) -> None:
    with server.client() as other:
        other.config_set("qa.cancel-grace-ms", 60_000)
        with Pending(server, "RG.TRIGGER", "do", "held", "go"):
            eventually(lambda: server.field("in_flight") == 1)
        eventually(lambda: server.field("in_flight") == 0)
        eventually(lambda: [n for n in other.lrange("notices", 0, -1) if n.startswith("cancel")])
        server.let_go()
        eventually(lambda: other.lrange("late", 0, -1))
    assert server.field("jobs_trigger")["client_gone"] == 1
    assert server.field("worker_restarts") == 0


def test_jobs_of_a_dead_worker_and_later_jobs_are_all_done(server_binary: Path) -> None:
    settings = {"qa.worker-backoff-ms": 800, "qa.worker-silence-ms": 600_000}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server:
        server.wait_ready()
        server.signal_worker(signal.SIGSTOP)  # so that the worker takes some jobs and finishes none
        waiting = [Pending(server, "RG.TRIGGER", "echo", str(number)) for number in range(40)]
        eventually(lambda: sum(server.fields("in_flight", "queued_clients")) == 40)
        server.signal_worker(signal.SIGKILL)
        waiting += [Pending(server, "RG.TRIGGER", "echo", str(number)) for number in range(40, 60)]
        for number, pending in enumerate(waiting):
            assert pending.reply().endswith(f"{number}\r\n".encode())
            pending.hang_up()
