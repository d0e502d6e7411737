"""The module writes nothing during a pause of writes (CLIENT PAUSE, a failover). A write would abort the server."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker
from tests.module.registrations import run


def test_outputs_of_a_model_wait_for_the_end_of_the_pause(server_binary: Path) -> None:
    with (
        Server(server_binary, {"appendonly": "yes"}, worker=fake_worker("models")) as server,
        server.client() as client,
    ):
        server.wait_ready()
        client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", "held")
        client.execute_command("AI.TENSORSET", "t", "INT8", 1)
        with Pending(server, "AI.MODELEXECUTE", "m", "INPUTS", "1", "t", "OUTPUTS", "1", "o") as run:
            eventually(lambda: server.field("in_flight") == 1)
            started = time.monotonic()
            client.execute_command("CLIENT", "PAUSE", 2500, "WRITE")
            server.let_go()
            assert run.reply() == b"+OK\r\n"
            assert time.monotonic() - started > 2.4
        assert client.exists("o") == 1


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_worker_is_not_killed_during_a_pause(server_binary: Path, mode: str) -> None:
    """The worker cannot send beats or report the end of a cancelled job, and the module must not kill it for this."""
    settings = {"qa.worker-silence-ms": 4000, "qa.cancel-grace-ms": 2000, "qa.job-timeout-ms": 3000}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server, server.client() as client:
        server.wait_ready()
        with Pending(server, "RG.TRIGGER", "do", "sleep", "2500") as job:
            eventually(lambda: server.field("in_flight") == 1)
            client.execute_command("CLIENT", "PAUSE", 7_000, mode)
            assert job.reply().startswith((b"-DEADLINE", b"*3"))
            client.set("after the pause", 1)
        client.config_set("qa.job-timeout-ms", 30_000)
        assert client.execute_command("RG.TRIGGER", "echo", "x") == ["x"]
        assert server.field("worker_killed") == 0


def test_end_of_a_worker_that_indexes_is_not_counted_in_a_pause(server_binary: Path) -> None:
    settings = {"qa.worker-silence-ms": 60_000, "appendonly": "yes"}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server, server.client() as client:
        server.wait_ready()
        for paused in (True, False):
            assert run(server, ["QA.INDEXING", 0, "document", "t"]) == ["OK"]
            if paused:
                client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            number = server.field("worker_number")
            server.signal_worker(signal.SIGKILL)
            eventually(lambda number=number: server.field("worker_number") > number)  # type: ignore[misc]
            client.execute_command("CLIENT", "UNPAUSE")
            server.wait_ready()
            assert client.exists("failures:{t}") == int(not paused)
