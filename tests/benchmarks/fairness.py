"""The time of one user's questions: without other load, next to a thousand connections, and next to bulk work.

A question is one `RG.TRIGGER qa.read` with a new text about one stored sentence, or about three, like a wave of a
question. Each round measures every other load, and just before it the questions alone, so that other work on the
machine affects both. The other loads run in a separate process.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from qa_cluster.shard_functions import READ_TRIGGER
from tests.harness.polling import eventually
from tests.harness.system import System

from .corpus import Corpus
from .loadgen import Request, encode, pipeline, run_resp_load
from .report import ROOT, Report, median
from .shard_get import sentence_keys

QUESTIONS = 150
CONNECTIONS = 1000
BULK_SENTENCES = 1000
MOST_A_CALL = 250
AIM = 2.0
PASSWORD = "fairness"
FOREVER_SECONDS = 3600.0


@dataclass(frozen=True)
class Others:
    """One of the other loads: named connections of a user, each with calls about some sentences."""

    user: str
    name: str
    connections: int
    sentences: int


def other_loads(connections: int, bulk: int) -> dict[str, Others]:
    """The other loads with which the first user's questions are measured."""
    calls = max(1, bulk // MOST_A_CALL)
    return {
        f"{connections} connections of another user": Others("bob", "", connections, 1),
        f"{connections} connections of the same user under another name": Others("alice", "other", connections, 1),
        f"{connections} connections of another user, calls of 3 sentences": Others("bob", "", connections, 3),
        f"another user's run of {bulk} sentences": Others("bob", "", calls, bulk // calls),
        f"the same as bulk work (the name bulk:run), {connections} connections": Others(
            "bob", "bulk:run", connections, 1
        ),
    }


def _calls(sentences: Sequence[str], each: int, questions: Iterator[int], prefix: str) -> Iterator[bytes]:
    """An endless sequence of calls, each with a new question, about the sentences in turn."""
    names = itertools.cycle(sentences)
    for number in questions:
        yield encode("RG.TRIGGER", READ_TRIGGER, "", f"{prefix} {number}?", *itertools.islice(names, each))


def flood(port: int, first: int, others: Others, sentences: Sequence[str]) -> None:
    """Ask questions without end, numbered from `first` on. It runs in a separate process."""
    calls = _calls(sentences, others.sentences, itertools.count(first), "Which other thing is number")
    # part of each call, because each call uses the next connection
    greeting = [encode("AUTH", others.user, PASSWORD), encode("CLIENT", "SETNAME", others.name)]
    requests: Iterator[Request] = ((pipeline([*greeting, call]),) for call in calls)
    run_resp_load(port, requests, clients=others.connections, max_seconds=FOREVER_SECONDS, strict=False)


class Bench:
    """One shard with documents, and users that have all rights."""

    def __init__(self, cluster: System, *, questions: int) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()
        (self._node,) = cluster.nodes
        self.sentences = [key for _, _, key in sentence_keys(cluster, 1000)]
        self._questions = questions
        self._starts = itertools.count(0, 1_000_000)
        for user in ("alice", "bob"):
            self._node.execute_command("ACL", "SETUSER", user, "on", f">{PASSWORD}", "~*", "+@all")
        self._alice = cluster.client(0, username="alice", password=PASSWORD, client_name="questions")

    def asked(self, each: int) -> tuple[float, float, float]:
        """Milliseconds of a question about `each` sentences: p50, p95, p99."""
        took = []
        calls = _calls(self.sentences, each, self._numbers, "What is thing number")
        connection = self._alice.connection_pool.get_connection()
        try:
            for call in itertools.islice(calls, self._questions):
                started = time.perf_counter()
                connection.send_packed_command([call])
                reply = connection.read_response()
                took.append((time.perf_counter() - started) * 1000)
                if any(str(answer).startswith("-") for answer in reply):
                    raise RuntimeError(f"no answer: {reply}")
        finally:
            self._alice.connection_pool.release(connection)
        p50, p95, p99 = np.percentile(took, (50, 95, 99))
        return float(p50), float(p95), float(p99)

    def _answered(self) -> int:
        """The number of calls of all users that the shard has answered."""
        return int(self._node.info("everything")["qa_jobs_trigger"]["ok"])

    def _read(self) -> int:
        """The number of sentences that the shard has read for all users, from the worker's last heartbeat."""
        return int(self._node.info("everything")["qa_worker_batched_items"])

    @contextmanager
    def running(self, others: Others) -> Iterator[Callable[[int], float]]:
        """Run the other load within the block; yield a function that returns the other load's sentences per second.

        The argument of the function is the number of sentences in each question of the measured user.
        """
        given = {"port": self._cluster.addresses[0][1], "first": next(self._starts), "others": asdict(others)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.fairness"], cwd=ROOT, stdin=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        before = self._answered()
        process.stdin.write(json.dumps(given | {"sentences": self.sentences}))
        process.stdin.close()
        try:
            eventually(lambda: self._answered() >= before + min(2, others.connections), 300)
            began, first = time.perf_counter(), self._read()

            def rate(own: int) -> float:
                return max(0.0, self._read() - first - own * self._questions) / (time.perf_counter() - began)

            yield rate
        finally:
            process.kill()
            process.wait()
            eventually(lambda: int(self._node.info("everything")["qa_queued_clients"]) == 0, 300)
            eventually(lambda: int(self._node.info("everything")["qa_in_flight"]) == 0, 300)


def run(
    report: Report,
    binary: Path,
    corpus: Corpus,
    rounds: int,
    *,
    questions: int = QUESTIONS,
    connections: int = CONNECTIONS,
    bulk: int = BULK_SENTENCES,
    sentences: Sequence[int] = (1, 3),
    settings: Sequence[tuple[str, int]] = (),
) -> None:
    """Measure questions of one user about different numbers of sentences, alone and with each of the other loads.

    `settings` are set on the shard first.
    """
    with tempfile.TemporaryDirectory() as folder, System(binary, shards=1) as cluster:
        cluster.cli("ingest", str(corpus.write_jsonl(Path(folder) / "corpus.jsonl")))
        (node,) = cluster.nodes
        node.config_set("qa.job-timeout-ms", 600_000)  # the last call of the other load waits for all its calls
        for name, value in settings:
            node.config_set(name, value)
        bench = Bench(cluster, questions=questions)
        for each in sentences:
            bench.asked(each)  # the first use of a shape compiles it
            rows = measured(bench, each, other_loads(connections, bulk), rounds)
            report.table(
                f"A user's question about {each} new sentence{'s' * (each > 1)} of one shard, one connection (ms)",
                ["other load", "p50", "p95", "p99", "p95 / alone", "others, sentences/s"],
                rows,
                f"{questions} questions a round, {rounds} rounds; median [least–most]; the ratio: to just before;"
                f" aim: p95 at most {AIM:g} × alone",
            )


def measured(bench: Bench, each: int, others: dict[str, Others], rounds: int) -> list[list[str]]:
    """The rows of one table: alone, then with each of the other loads."""
    alone: list[tuple[float, float, float]] = []
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in others}
    ratios: dict[str, list[float]] = {name: [] for name in others}
    rates: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        for name, wanted in others.items():
            alone.append(bench.asked(each))
            with bench.running(wanted) as rate:
                found[name].append(bench.asked(each))
                rates[name].append(rate(each))
            ratios[name].append(found[name][-1][1] / alone[-1][1])

    def cells(values: list[tuple[float, float, float]]) -> list[str]:
        return [median([value[which] for value in values], 1) for which in range(3)]

    rows = [["nothing", *cells(alone), "", ""]]
    rows += [[name, *cells(found[name]), median(ratios[name], 2), median(rates[name], 0)] for name in others]
    return rows


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    flood(wanted["port"], wanted["first"], Others(**wanted["others"]), wanted["sentences"])
