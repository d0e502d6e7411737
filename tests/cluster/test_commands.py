"""The commands on a cluster with module, workers and reader, as a user runs them; on every server program."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from qa_cluster.cluster.servers.ports import free_node_ports
from qa_cluster.reading.local_reader import bundled_reader
from qa_cluster.reading.manifest import MODEL_FILE

READER = Path(os.environ.get("QA_TEST_READER") or bundled_reader())
needs_reader = pytest.mark.skipif(not (READER / MODEL_FILE).is_file(), reason=f"there is no reader in {READER}")
pytestmark = [needs_reader, pytest.mark.timeout(300)]

QA = [sys.executable, "-m", "qa_cluster.cluster.cli"]
TEXT = "Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine. Zürich lies on a lake."

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(server: str) -> dict[str, str]:
    return {**os.environ, "QA_READER": str(READER), "QA_SERVER": server, "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def qa(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs the command in the test's folder, and stops in the end what it started."""
    server = request.getfixturevalue("server") if "server" in request.fixturenames else ""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*QA, *arguments],
            cwd=tmp_path,
            env=environment(server),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    yield run
    run("down")


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def processes_with(marker: str) -> list[str]:
    """Command lines of live processes that hold `marker`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


@pytest.mark.usefixtures("server")
def test_from_nothing_to_an_answer_and_back(qa: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text(TEXT)
    (tmp_path / "more.jsonl").write_text('{"id": "nile", "text": "The Nile flows north."}\nbroken\n')

    qa("up")
    assert json.loads(qa("status", "--json").stdout)["ready"]
    stored = qa("ingest", "ada.txt", "more.jsonl", "--on-error", "skip")
    assert "2 documents stored, 1 skipped" in stored.stdout
    assert "more.jsonl:2" in stored.stderr

    first = json.loads(qa("ask", "Who wrote the first program?", "--json").stdout)
    best = first["answers"][0]
    assert best["answer"] == "Ada Lovelace"
    assert TEXT[best["start"] : best["end"]] == "Ada Lovelace"
    assert "Ada Lovelace" in qa("ask", "Who wrote the first program?").stdout

    qa("down")
    qa("ask", "Who wrote the first program?", code=3)
    qa("up")
    again = json.loads(qa("ask", "Who designed the engine?", "--json").stdout)
    assert again["answers"][0]["answer"] == "Charles Babbage"
    report = json.loads(qa("status", "--json").stdout)
    assert sum(shard["documents"] for shard in report["shards"]) == 2


def test_pre_tokenization_now_and_in_the_background(qa: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text(TEXT)
    qa("up")
    qa("ingest", "ada.txt")
    assert "1 document, 0 sentences tokenized, 0 failed" in qa("pretokenize").stdout
    assert "1 document, 3 sentences tokenized, 0 failed" in qa("pretokenize", "--force").stdout
    qa("pretokenize", "--force", "--background")

    def finished() -> bool:
        jobs = json.loads(qa("status", "--json").stdout)["jobs"]
        if not jobs:  # on its way from the queue to the worker it is in no list
            return False
        [job] = jobs
        assert job["state"] in ("queued", "started", "finished"), job
        return bool(job["state"] == "finished")

    wait_for(finished)
    assert "5 processes stopped" in qa("down").stdout


def test_a_reader_is_loaded_and_a_lost_one_comes_back(qa: Run, tmp_path: Path) -> None:
    import redis

    qa("up")
    rows = json.loads(qa("model", "list", "--json").stdout)
    deadline = time.monotonic() + 60  # the first question finds the usual shapes compiled, the others follow
    while [(row["default"], row["warm"]) for row in rows] != [(True, 3)]:
        assert time.monotonic() < deadline, rows
        rows = json.loads(qa("model", "list", "--json").stdout)
    assert [row["shards"] for row in rows] == [3]
    shard = json.loads(qa("status", "--json").stdout)["shards"][1]
    key = f"bert-qa{{{shard['tag']}}}"
    host, port = shard["address"].split(":")
    with redis.Redis(host=host, port=int(port)) as client:
        assert client.delete(key) == 1
        # the shard gets it from another one, and answers meanwhile
        qa("status")
        wait_for(lambda: bool(client.exists(key)), 60)
    # the key is there before its worker has looked at it
    wait_for(lambda: bool(json.loads(qa("model", "list", "--json").stdout) == rows), 60)
    assert "loaded" in qa("model", "load", str(READER)).stdout
    qa("model", "load", str(tmp_path), code=1)
    assert "F1" in qa("model", "card", str(READER)).stdout or "model_id" in qa("model", "card", str(READER)).stdout


def test_serve_answers_until_it_is_told_to_stop(qa: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text(TEXT)
    qa("up")
    qa("ingest", "ada.txt")
    port = free_node_ports(1)[0]
    with (
        (tmp_path / "serve.log").open("w") as log,
        subprocess.Popen(
            [*QA, "serve", "--port", str(port)], cwd=tmp_path, env=environment(""), stdout=log, stderr=log
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):

        def ready() -> bool:
            try:
                return client.get("/readyz").is_success
            except httpx.TransportError:
                return False

        try:
            wait_for(ready)
            result = client.get("/qa", params={"question": "Who wrote the first program?"}).json()
            assert result["answers"][0]["answer"] == "Ada Lovelace"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_an_interrupted_ingest_says_what_is_stored(qa: Run, tmp_path: Path) -> None:
    with (tmp_path / "many.jsonl").open("w") as file:
        for number in range(50_000):
            file.write(json.dumps({"id": f"d{number}", "text": f"Person {number} wrote book {number}."}) + "\n")
    qa("up")

    def documents() -> int:
        return sum(int(shard["documents"]) for shard in json.loads(qa("status", "--json").stdout)["shards"])

    with subprocess.Popen(
        [*QA, "ingest", "many.jsonl"], cwd=tmp_path, env=environment(""), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: documents() > 0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    [line] = errors.splitlines()
    assert re.fullmatch(r"note: interrupted: \d+ documents stored, .*", line)


def test_a_killed_server_is_named_and_up_brings_it_back(qa: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text(TEXT)
    qa("up")
    qa("ingest", "ada.txt")
    ports = [shard["address"] for shard in json.loads(qa("status", "--json").stdout)["shards"]]
    os.kill(int((tmp_path / ".qa-cluster" / "node-0" / "server.pid").read_text()), signal.SIGKILL)
    wait_for(lambda: json.loads(qa("status", "--json", code=3).stdout)["down"] == [ports[0]])
    shown = qa("status", code=3)
    assert "server is down" in shown.stdout
    assert f"does not answer: {ports[0]}; `qa-cluster up` starts" in shown.stderr
    qa("up")
    answers = json.loads(qa("ask", "Who designed the engine?", "--json").stdout)["answers"]
    assert answers[0]["answer"] == "Charles Babbage"


def test_an_attached_cluster_is_set_up_by_its_address(qa: Run, tmp_path: Path) -> None:
    qa("up", "--bare")
    [shard, *_] = json.loads(qa("status", "--json", code=3).stdout)["shards"]
    url = f"redis://{shard['address']}"
    other = str(tmp_path / "elsewhere")
    missing = qa("status", "--cluster-url", url, "--data-dir", other, code=3).stderr
    for words in ("no model", "no manifest", "no tokenizer", "no functions", "qa:partitions"):
        assert words in missing
    qa("up", "--cluster-url", url, "--data-dir", other)
    qa("status", "--cluster-url", url, "--data-dir", other)


def test_the_demo_answers_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*QA, "demo", "--once", "--data-dir", "demo"],
        cwd=tmp_path,
        env=environment(""),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("ZeroDivisionError", "empty pair of parentheses", "immutable arithmetic sequences"):
        assert words in done.stdout
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_takes_everything_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with socket.socket() as taken, (tmp_path / "err").open("w") as err:
        # the port after it is taken in its place: not one of those that outgoing connections get meanwhile
        busy = free_node_ports(1)[0]
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", busy))
        taken.listen()
        with subprocess.Popen(
            [*QA, "demo", "--data-dir", "demo", "--port", str(busy)],
            cwd=tmp_path,
            env=environment(""),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "Ctrl-C" in line:
                    break
            assert len(processes_with(str(tmp_path))) == 3
            process.send_signal(number)
            assert process.wait(60) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    assert f"port {busy} is taken" in (tmp_path / "err").read_text()
    wait_for(lambda: not processes_with(str(tmp_path)))
