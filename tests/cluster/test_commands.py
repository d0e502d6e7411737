"""The commands of a user on a cluster with module, workers and reader."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster.keys import layout_key
from qa_cluster.security.local_password import PASSWORD_FILE
from qa_cluster.shard_functions import missing_functions
from tests.cluster.command import READER, TEXT, Qa, WithoutEncoder, needs_reader
from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.workers import FEW_TOKENS

pytestmark = [needs_reader, pytest.mark.timeout(300)]

SECONDS = 120.0


@pytest.fixture
def qa(tmp_path: Path) -> Iterator[Qa]:
    """The command in the test's own folder. Its processes end with the test."""
    made = Qa(tmp_path)
    yield made
    made("down")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Qa]:
    """The command in the test's own folder. Its clusters have no encoder."""
    made = WithoutEncoder(tmp_path)
    yield made
    made("down")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qa]:
    """A folder with a running cluster of one document. Tests that do not change the cluster share it."""
    made = WithoutEncoder(tmp_path_factory.mktemp("up"))
    (made.folder / "ada.txt").write_text(TEXT)
    made("--set", "shards=2", "up")
    made("ingest", "ada.txt")
    yield made
    made("down")
    assert processes_with(str(made.folder)) == []


def processes_with(marker: str) -> list[str]:
    """The command lines of live processes that contain `marker`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


def test_up_ingest_ask_and_down(qa: Qa) -> None:
    (qa.folder / "ada.txt").write_text(TEXT)
    (qa.folder / "more.jsonl").write_text('{"id": "nile", "text": "The Nile flows north."}\nbroken\n')

    qa("--set", "shards=2", "up")
    assert qa.status()["ready"]
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
    assert sum(shard["documents"] for shard in qa.status()["shards"]) == 2


def test_status_shows_that_documents_of_an_earlier_version_are_reindexed(up: Qa) -> None:
    said = "reindexing documents that an earlier version of qa-cluster indexed (1 of 8 partitions remain)"
    assert said not in up("status").stderr
    with redis.RedisCluster.from_url(f"redis://:{up.password}@{up.status()['shards'][0]['address']}") as client:
        name = next(key for node in client.get_primaries() for key in client.scan_iter("index:*", target_nodes=node))
        layout = layout_key(name.decode().partition("{")[2].removesuffix("}"))
        analyzer = client.hget(layout, "analyzer")
        client.hset(layout, "analyzer", "0-older")
        try:
            done = up("status")
            assert said in done.stderr
            assert "ready to answer" in done.stdout
        finally:
            client.hset(layout, "analyzer", analyzer)


def test_pre_tokenization_now_and_in_the_background(up: Qa) -> None:
    assert "1 document, 3 sentences tokenized, 0 failed" in up("pretokenize").stdout
    assert "1 document, 0 sentences tokenized, 0 failed" in up("pretokenize").stdout
    assert "1 document, 3 sentences tokenized, 0 failed" in up("pretokenize", "--force").stdout
    up("pretokenize", "--force", "--background")

    def finished() -> bool:
        jobs = up.status()["jobs"]
        if not jobs:  # between the queue and the worker, a job is not listed for a moment
            return False
        [job] = jobs
        assert job["state"] in ("queued", "started", "finished"), job
        return bool(job["state"] == "finished")

    eventually(finished, SECONDS)
    # after the end of the job's process: two shards, the jobs server, and its worker
    eventually(lambda: len(processes_with(str(up.folder))) == 4, SECONDS)


def test_sentences_are_found_by_their_words(up: Qa) -> None:
    shown = up("search", "Babbage's engines", "--top-k", "1").stdout
    assert "1. ada.txt" in shown
    assert "Charles Babbage designed the engine." in shown
    assert "1 of 3 sentences" in shown
    result = json.loads(up("search", "zurich", "--context", "1", "--doc-id", "ada.txt", "--json").stdout)
    [hit] = result["hits"]
    assert TEXT[hit["start"] : hit["end"]] == hit["text"] == "Zürich lies on a lake."
    assert hit["passage"]["text"] == TEXT[TEXT.index("Charles") :]
    assert [TEXT[span["start"] : span["end"]] for span in hit["highlights"]] == ["Zürich"]
    assert "no sentence" in up("search", "zebra").stdout


def test_a_reader_is_loaded_and_a_lost_reader_is_restored(up: Qa, tmp_path: Path) -> None:
    def listed() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(up("model", "list", "--json").stdout)
        return rows

    def ready() -> list[dict[str, Any]] | None:
        rows = listed()
        found = [(row["kind"], row["default"], row["warm"]) for row in rows]
        return rows if found == [("reader", True, 2)] else None

    # the worker compiles some shapes of the model only after it is ready
    before = eventually(ready, SECONDS)
    assert before is not None
    assert [row["shards"] for row in before] == [2]
    [shard] = [shard for shard in up.status()["shards"] if shard["documents"]]
    key = f"bert-qa{{{shard['tag']}}}"
    host, port = shard["address"].split(":")
    with redis.Redis(host=host, port=int(port), password=up.password) as client:
        assert client.config_get("qa.max-batch-tokens") == {"qa.max-batch-tokens": str(FEW_TOKENS)}
        assert client.delete(key) == 1
        # the shard answers while it copies the reader from another shard
        answer = json.loads(up("ask", "What lies on a lake?", "--json").stdout)["answers"][0]
        assert answer["answer"] == "Zürich"
        eventually(lambda: client.exists(key), SECONDS)
    eventually(lambda: listed() == before, SECONDS)  # the worker loads the reader some time after the key exists
    assert "loaded" in up("model", "load", str(READER)).stdout
    up("model", "load", str(tmp_path), code=1)
    card = up("model", "card", str(READER)).stdout
    assert "F1" in card or "model_id" in card


def test_a_killed_server_is_named_and_up_restarts_it(up: Qa) -> None:
    addresses = [shard["address"] for shard in up.status()["shards"]]
    os.kill(int((up.folder / ".qa-cluster" / "node-0" / "server.pid").read_text()), signal.SIGKILL)
    eventually(lambda: up.status(code=3)["down"] == [addresses[0]], SECONDS)
    shown = up("status", code=3)
    assert "server is down" in shown.stdout
    assert f"server {addresses[0]} does not answer: `qa-cluster up` starts" in shown.stderr
    up("up")
    answers = json.loads(up("ask", "Who designed the engine?", "--json").stdout)["answers"]
    assert answers[0]["answer"] == "Charles Babbage"


def test_an_interrupted_ingest_reports_the_stored_documents(plain: Qa) -> None:
    with (plain.folder / "many.jsonl").open("w") as file:
        for number in range(50_000):
            file.write(json.dumps({"id": f"d{number}", "text": f"Person {number} wrote book {number}."}) + "\n")
    plain("--set", "shards=1", "up")
    with plain.start("ingest", "many.jsonl", stderr=subprocess.PIPE) as process:
        eventually(lambda: sum(int(shard["documents"]) for shard in plain.status()["shards"]) > 0, SECONDS)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    # a slow command also prints lines of progress
    [line] = [line for line in errors.splitlines() if not line.startswith("·")]
    assert re.fullmatch(r"note: interrupted: \d+ documents stored, .*", line)


def test_an_attached_cluster_is_set_up_by_its_address(plain: Qa) -> None:
    plain("--set", "shards=1", "up", "--bare", "--no-password")
    [shard] = plain.status(code=3)["shards"]
    elsewhere = ("--cluster-url", f"redis://{shard['address']}", "--data-dir", str(plain.folder / "elsewhere"))
    missing = plain("status", *elsewhere, code=3).stderr
    for words in ("no model", "no manifest", "no tokenizer", "no functions", "qa:partitions"):
        assert words in missing
    plain("up", *elsewhere)
    plain("status", *elsewhere)
    for name, works in (("qa.read", True), ("paragraphs:*", False)):
        with redis.Redis(port=int(shard["address"].rpartition(":")[2])) as client:
            rows = client.execute_command("RG.DUMPREGISTRATIONS")
            [own] = [row[1] for row in rows if not missing_functions([row], [name])]
            assert client.execute_command("RG.UNREGISTER", own)
        lacking = f"function {name} is not registered: run `qa-cluster up`"
        assert lacking in plain("status", *elsewhere, code=3).stderr
        (plain.folder / "a.txt").write_text("Ada wrote it.")
        ingested = plain("ingest", "a.txt", *elsewhere, "--no-wait", code=0 if works else 3)
        assert works or lacking in ingested.stderr
        plain("up", *elsewhere)
        plain("status", *elsewhere)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_answers_and_ends_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    with socket.socket() as taken, (tmp_path / "err").open("w") as err:
        # the service uses the next free port, which is not in the range of outgoing connections
        busy = free_port()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", busy))
        taken.listen()
        options = ("--data-dir", "demo", "--port", str(busy), "--set", "shards=1")
        with WithoutEncoder(tmp_path).start("demo", *options, stdout=subprocess.PIPE, stderr=err) as process:
            assert process.stdout is not None
            shown = "".join(iter(process.stdout.readline, "Ctrl-C stops everything.\n"))
            for words in ("ZeroDivisionError", "empty pair of parentheses", "immutable arithmetic sequences"):
                assert words in shown
            assert (tmp_path / "demo" / PASSWORD_FILE).stat().st_mode & 0o777 == 0o600
            # only the shard's command line contains the folder
            eventually(lambda: len(processes_with(str(tmp_path))) == 1, SECONDS)
            process.send_signal(number)
            assert process.wait(SECONDS) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    assert f"another program uses port {busy}" in (tmp_path / "err").read_text()
    eventually(lambda: not processes_with(str(tmp_path)), SECONDS)
