"""The worker process: restart, backoff, silence, clean end, no leaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import fake_worker

NO_ROOM = "no-room-for-functions"  # while this file exists, the fake worker has no capacity for user functions


def ended(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_killed_worker_is_restarted_and_its_jobs_retried(server: Server) -> None:
    with Pending(server, "RG.TRIGGER", "do", "hang-once") as pending, server.client() as client:
        client.config_set("qa.worker-silence-ms", 600_000)  # the module must detect the worker's end, not its silence
        eventually(lambda: server.field("in_flight") == 1)
        first = server.signal_worker(signal.SIGKILL)
        assert pending.reply() == b"*3\r\n$9\r\nhang-once\r\n$0\r\n\r\n$1\r\n2\r\n"
    eventually(lambda: server.field("worker_last_exit") == "signal 9")  # the module may reap the process later
    assert server.field("jobs_trigger")["retried"] == 1
    assert server.field("worker_pid") != first


def begin(stack: ExitStack, server: Server, *words: str, room: bool = True) -> list[Pending]:
    """Start calls in this order, then kill the worker. Without `room`, the next worker cannot run user functions."""
    calls = []
    for number, word in enumerate(words, start=1):
        calls.append(stack.enter_context(Pending(server, "RG.TRIGGER", "do", *word.split())))
        eventually(lambda number=number: server.field("in_flight") == number)  # type: ignore[misc]
    execute(server, "CONFIG", "SET", "qa.worker-silence-ms", 600_000)
    if not room:
        (server.directory / NO_ROOM).touch()
    server.signal_worker(signal.SIGKILL)
    return calls


def test_a_job_that_kills_two_workers_fails_alone(server: Server) -> None:
    with ExitStack() as stack:
        killer, *others = begin(stack, server, "die-later", *["hang-once"] * 12)
        assert killer.reply() == b"-WORKERLOST worker died twice on this job\r\n"
        for other in others:
            assert other.reply() == b"*3\r\n$9\r\nhang-once\r\n$0\r\n\r\n$1\r\n2\r\n"
    assert server.field("jobs_trigger")["lost"] == 1
    assert server.fields("in_flight", "queued_clients") == (0, 0)


def test_a_long_retried_job_does_not_delay_the_others(server: Server) -> None:
    with ExitStack() as stack:
        long, *others = begin(stack, server, "held long", "hang-once", "hang-once")
        for other in others:
            assert other.reply() == b"*3\r\n$9\r\nhang-once\r\n$0\r\n\r\n$1\r\n2\r\n"
        assert server.field("in_flight") == 1
        server.let_go("long")
        assert long.reply() == b"*3\r\n$4\r\nheld\r\n$4\r\nlong\r\n$1\r\n2\r\n"


def test_a_client_that_disconnects_while_its_job_waits_for_a_retry(server: Server) -> None:
    with ExitStack() as stack:
        # with capacity, the next worker would take the second job after 0.2 s
        first, second = begin(stack, server, "held first", "held second", room=False)
        eventually(lambda: server.fields("in_flight", "queued_clients") == (0, 2))
        server.wait_ready()
        second.hang_up()
        eventually(lambda: server.fields("in_flight", "queued_clients") == (0, 1))
        (server.directory / NO_ROOM).unlink()
        server.let_go("first")
        assert first.reply().startswith(b"*3\r\n$4\r\nheld")
    assert execute(server, "RG.TRIGGER", "echo", "x") == ["x"]


def test_silent_worker_is_killed(server_binary: Path) -> None:
    with Server(server_binary, {"qa.worker-silence-ms": 300}, worker=fake_worker("functions", "--silent")) as server:
        eventually(lambda: server.field("worker_restarts") >= 1)
        assert server.field("worker_killed") >= 1
        assert "worker: fake worker is ready" in server.output()  # what the worker prints is in the log
        assert "has been silent for more than 300 ms" in server.output()


HUNG_MS = 200
"""A worker that is inactive for this time counts as hung in the service."""


@pytest.fixture(scope="module")
def patient_server(shared_binary: Path) -> Iterator[Server]:
    """A server that does not replace its silent worker."""
    with Server(shared_binary, {"qa.worker-silence-ms": 60_000}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        yield server


def test_a_stopped_worker_is_inactive_until_its_next_heartbeat(patient_server: Server) -> None:
    assert patient_server.field("worker_inactive_ms") < HUNG_MS
    pid = patient_server.signal_worker(signal.SIGSTOP)
    eventually(lambda: patient_server.field("worker_silence_ms") > 1500)
    silence, inactive = patient_server.fields("worker_silence_ms", "worker_inactive_ms")
    assert inactive >= HUNG_MS and silence - inactive < 1000  # nearly all of the worker's silence counts as inactive
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: patient_server.field("worker_silence_ms") < 1000)
    eventually(lambda: patient_server.field("worker_inactive_ms") == 0)


def test_a_worker_that_sleeps_with_the_interpreter_lock_is_inactive(patient_server: Server) -> None:
    with Pending(patient_server, "RG.TRIGGER", "do", "freeze", "3000") as pending:
        eventually(lambda: patient_server.field("worker_inactive_ms") >= HUNG_MS)
        assert pending.reply().startswith(b"*3")
    eventually(lambda: patient_server.field("worker_inactive_ms") == 0)


def silent_but_active(server: Server) -> bool:
    """Whether the worker has missed heartbeats although it is active."""
    silence, inactive = server.fields("worker_silence_ms", "worker_inactive_ms")
    assert inactive < HUNG_MS
    return bool(silence > 2 * HUNG_MS)


def test_a_worker_that_computes_with_the_interpreter_lock_is_active(patient_server: Server) -> None:
    with Pending(patient_server, "RG.TRIGGER", "do", "compute", "50000000") as pending:
        eventually(lambda: silent_but_active(patient_server))
        assert pending.reply().startswith(b"*3")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the busy process needs a processor for itself")
def test_a_worker_that_gets_no_processor_is_active(patient_server: Server) -> None:
    """Another process uses the worker's processor for 0.7 s of each second."""
    first, *others = os.sched_getaffinity(0)
    os.sched_setaffinity(patient_server.pid, others)
    for thread in (Path("/proc") / str(patient_server.field("worker_pid")) / "task").iterdir():
        os.sched_setaffinity(int(thread.name), {first})
    with taken_processor(first):
        for _ in range(2):
            eventually(lambda: silent_but_active(patient_server))
            eventually(lambda: patient_server.field("worker_silence_ms") < HUNG_MS)


TAKE = """import time
while True:
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        pass
    time.sleep(0.3)
"""


@contextmanager
def taken_processor(processor: int) -> Iterator[None]:
    """A process with a higher priority than all others on a processor; the user needs the right to start it."""
    process = subprocess.Popen([sys.executable, "-S", "-c", TAKE])
    try:
        os.sched_setaffinity(process.pid, {processor})
        os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        yield
    except PermissionError:
        pytest.skip("this user may not start a process with a higher priority")
    finally:
        process.kill()
        process.wait()


def test_a_server_that_was_stopped_itself_does_not_kill_its_worker(server_binary: Path) -> None:
    with Server(server_binary, {"qa.worker-silence-ms": 2000}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        worker = server.field("worker_pid")
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(server.pid, signal.SIGCONT)
        assert server.field("worker_silence_ms") < 1500
        time.sleep(0.5)
        assert (server.field("worker_pid"), server.field("worker_killed")) == (worker, 0)


def test_worker_that_never_says_hello_is_killed(server_binary: Path) -> None:
    with Server(server_binary, {"qa.worker-start-ms": 200}, worker="sleep 60") as server:
        eventually(lambda: server.field("worker_restarts") >= 1)


def test_a_worker_that_cannot_start_is_retried_at_growing_intervals(server_binary: Path) -> None:
    with Server(server_binary, worker=fake_worker("functions", "--crash")) as server:
        eventually(lambda: server.field("worker_restarts") >= 3)
        assert server.field("worker_restarts") < 8
        with server.client() as client:
            assert client.ping()


def test_a_missing_worker_program(server_binary: Path) -> None:
    with Server(server_binary, worker="/no/such/program") as server:
        eventually(lambda: "worker cannot be started: /no/such/program: No such file or directory" in server.output())
        assert server.field("worker_pid") == 0


def test_worker_ends_with_the_server(server_binary: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with Server(server_binary, worker=fake_worker("functions")) as server:
            server.wait_ready()
            pid = server.field("worker_pid")
            server.stop(number)
            eventually(partial(ended, pid))


def test_restarts_leak_nothing(server_binary: Path) -> None:
    def kill(server: Server) -> None:
        pid = server.signal_worker(signal.SIGKILL)
        eventually(lambda: server.field("worker_pid") not in (0, pid), pause=0.01)

    with Server(server_binary, {"qa.worker-backoff-ms": 1}, worker=fake_worker("functions")) as server:

        def settled() -> int:
            server.wait_ready()
            eventually(lambda: server.field("worker_links") == 4)
            return len(os.listdir(f"/proc/{server.pid}/fd"))

        kill(server)
        before = settled()
        for _ in range(5):
            kill(server)
        eventually(lambda: settled() <= before)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        eventually(lambda: len(children.read_text().split()) == 1)  # the last worker may not be reaped yet


def test_what_a_client_cannot_change(patient_server: Server) -> None:
    with patient_server.client() as client:
        with pytest.raises(redis.ResponseError, match="immutable"):
            client.config_set("qa.worker-command", "touch /tmp/x")
        with pytest.raises(redis.ResponseError):
            client.execute_command("MODULE", "UNLOAD", "qa")
