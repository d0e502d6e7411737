"""Workers that misbehave: clients always get an answer or an error, and the server continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.fake_worker.rogue import POINTS
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

pytestmark = pytest.mark.hostile

SETTINGS: dict[str, object] = {"qa.cancel-grace-ms": 300, "qa.atomic-lease-ms": 300, "qa.worker-backoff-ms": 5}
SOURCE = "def bar(tensors: List[Tensor], keys: List[str], args: List[str]):\n    return tensors[0]\n"
COMMANDS: dict[str, list[Any]] = {
    "trigger": ["RG.TRIGGER", "echo", "x"],
    "script": ["RG.PYEXECUTE", "x"],
    "event": ["GET", "hook:x:1"],
    "command": ["RG.DUMPEXECUTIONS"],
    "model.load": ["AI.MODELSTORE", "other", "ONNX", "CPU", "BLOB", "bytes"],
    "model.run": ["AI.MODELEXECUTE", "m", "INPUTS", 1, "t", "OUTPUTS", 1, "out"],
    "script.load": ["AI.SCRIPTSTORE", "othersc", "CPU", "ENTRY_POINTS", 1, "bar", "SOURCE", SOURCE],
    "dag.run": ["AI.SCRIPTEXECUTE", "sc", "bar", "INPUTS", 1, "t", "OUTPUTS", 1, "out"],
}
TENSOR = ["INT8", 1, 2, "hex:0001"]
STEP = ["OK", 5, 1, ""]
GARBAGE: list[list[Any]] = [
    ["OK", "hex:2a320d0a3a310d0a"],  # an array of two with one element
    ["OK", "hex:2432313437343833363437"],  # a bulk string without its end
    ["OK", "", ""],
    ["WHAT"],
    ["TENSORS"],
    ["TENSORS", 1],
    ["TENSORS", -1],
    ["TENSORS", 2**62, *TENSOR],
    ["TENSORS", 2, *TENSOR, *TENSOR],
    ["TENSORS", 1, "INT8", 1, 3, "hex:0001"],
    ["TENSORS", 1, "INT8", 2**40, 1, "hex:0001"],
    ["TENSORS", 1, "INT64", 2, 2**40, 2**40, "hex:00"],
    ["TENSORS", 1, "NOTYPE", 1, 2, "hex:0001"],
    ["DAG"],
    ["DAG", 1],
    ["DAG", 1, *STEP],
    ["DAG", 2, *STEP, 1, *TENSOR],
    ["DAG", 1, *STEP, 2, *TENSOR, *TENSOR],
    ["DAG", 1, *STEP, 2**62, *TENSOR],
    ["DAG", -1, -1],
    ["DAG", 1, "WHAT", 5, 1, "", 1, *TENSOR],
    ["DAG", 1, "OK", -5, 2**63, "", 1, *TENSOR],
    ["DAG", 1, *STEP, 1, "NOT"],
    ["DAG", 1, *STEP, 1, *TENSOR, "more"],
    ["SKIP", "x"],
    ["OVERRIDE"],
    ["ERR"],
    ["ERR", "a\r\n+two lines"],
    ["ABORTED"],
    ["TIMEDOUT", "x"],
]
# Faults in the report of a job may have other effects for each kind of job. Other faults do not depend on the kind.
MISBEHAVIOURS = [(what, kind) for what in ("die", "half") for kind in ("trigger", "event", "dag.run")]
MISBEHAVIOURS += [(what, "trigger") for what in ("close control", "half control", "long control", "stay in atomic")]


@contextmanager
def started(binary: Path, *options: str, **settings: object) -> Iterator[Server]:
    """A server with the rogue worker."""
    worker = fake_worker("rogue", *options)
    with Server(binary, SETTINGS | settings, worker=worker) as server:
        yield server


@pytest.fixture(scope="module")
def rogue(shared_binary: Path) -> Iterator[Server]:
    """One server for all tests that instruct a running worker. It has a tensor, a model and a script."""
    with started(shared_binary) as server:
        server.wait_ready()
        with server.client() as client:
            tell(server, "model.load", ["OK", b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"])
            tell(server, "script.load", ["OK", b"+OK\r\n"])
            client.execute_command("AI.TENSORSET", "t", "INT8", 2, "VALUES", 1, 2)
            client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", "bytes")
            store = ["sc" if word == "othersc" else word for word in COMMANDS["script.load"]]
            client.execute_command(*store)
        yield server


@pytest.fixture(autouse=True)
def honest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Removes the instructions after each test."""
    yield
    if "rogue" in request.fixturenames:
        server: Server = request.getfixturevalue("rogue")
        with server.client() as client:
            client.delete(*[f"answer:{kind}" for kind in COMMANDS], "twice", "others", "refused", "late")


def tell(server: Server, kind: str, answer: list[Any]) -> None:
    """Tell the worker what to answer."""
    words = ["hex:" + word.hex() if isinstance(word, bytes) else word for word in answer]
    with server.client() as client:
        client.set(f"answer:{kind}", json.dumps(words))


def ask(server: Server, kind: str) -> Any:
    """The reply or the error that the client of a job of this kind gets."""
    with server.client(socket_timeout=60) as client:
        try:
            return client.execute_command(*COMMANDS[kind])
        except redis.ResponseError as error:
            return error


@contextmanager
def job_timeout(server: Server, ms: int) -> Iterator[None]:
    """Limits the time of triggers within the block. Otherwise jobs have enough time on a busy machine."""
    with server.client() as client:
        client.config_set("qa.job-timeout-ms", ms)
        try:
            yield
        finally:
            client.config_set("qa.job-timeout-ms", 30_000)


def is_well(server: Server) -> None:
    """Checks that the server answers, no client waits, and a ready worker does the next job."""
    with server.client() as client:
        client.delete(*[f"answer:{kind}" for kind in COMMANDS])
        assert client.ping()
    server.wait_ready()
    assert ask(server, "trigger") == ["x"]
    eventually(lambda: server.fields("in_flight", "queued_clients") == (0, 0))


@pytest.mark.parametrize("kind", sorted(COMMANDS))
def test_an_invalid_report_fails_its_job(rogue: Server, kind: str) -> None:
    with rogue.client() as client:
        client.delete("out")
        for garbage in GARBAGE:
            rogue.wait_ready()
            tell(rogue, kind, garbage)
            reply = ask(rogue, kind)
            fine = garbage[0] in ("ERR", "SKIP", "OVERRIDE", "WHAT") and kind == "event"
            timed_out = garbage[0] == "TIMEDOUT" and reply == "TIMEDOUT"
            assert isinstance(reply, redis.ResponseError) or fine or timed_out or reply is None, f"{garbage}: {reply!r}"
            assert "two lines" not in str(reply) or "\n" not in str(reply)
        assert client.exists("out", "other", "othersc") == 0
    is_well(rogue)


@pytest.mark.parametrize(("what", "kind"), MISBEHAVIOURS)
def test_misbehaviour_in_a_job_fails_that_job_only(rogue: Server, what: str, kind: str) -> None:
    before = rogue.field("worker_number")
    tell(rogue, kind, [what])
    with job_timeout(rogue, 2000):
        reply = ask(rogue, kind)
    assert isinstance(reply, redis.ResponseError) or (kind == "event" and reply is None), reply
    eventually(lambda: rogue.field("worker_number") > before)
    is_well(rogue)


def test_a_worker_cannot_end_jobs_of_others(rogue: Server) -> None:
    tell(rogue, "trigger", ["others"])
    assert ask(rogue, "trigger") == "own"
    with rogue.client() as client:
        replies = client.lrange("others", 0, -1)
    assert len(replies) == 7
    assert all(reply.startswith(("NOJOB", "ERR")) for reply in replies), replies
    is_well(rogue)


def test_a_job_ends_once(rogue: Server) -> None:
    tell(rogue, "trigger", ["twice"])
    reply = ask(rogue, "trigger")
    assert reply == "first", reply
    with rogue.client() as client:
        replies = eventually(lambda: client.lrange("twice", 0, -1))
    assert replies[0] == "OK"
    assert replies[1].startswith("NOJOB")


def test_death_at_each_point_of_the_protocol(server_binary: Path) -> None:
    with started(server_binary, "--die-at-every-point") as server:
        eventually(lambda: server.field("worker_number") > len(POINTS) and server.field("worker_state") == "ready")
        with server.client() as client:
            assert client.execute_command("RG.TRIGGER", "echo", "x") == ["x"]
        assert server.field("worker_restarts") >= len(POINTS)


def test_jobs_time_out_with_a_worker_that_only_beats(server_binary: Path) -> None:
    settings = {"qa.worker-start-ms": 400, "qa.worker-silence-ms": 400, "qa.script-timeout-ms": 600}
    with started(server_binary, "--mute", **settings) as server:
        with server.client() as client, pytest.raises(redis.ResponseError):
            client.execute_command("RG.PYEXECUTE", "x")
        assert server.field("queued_clients") == 0
