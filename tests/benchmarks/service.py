"""`/qa` of qa-cluster, by reading plan, compared with a usual service; new and repeated questions."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import redis

from tests.harness.system import System

from .corpus import Corpus, variations
from .loadgen import Load, get_requests, run_load
from .report import Report, median
from .systems import baseline, plain_server

SENTENCES_PER_CALL = 100
CLIENTS = (1, 8, 64)
UNCACHED = {1: 150, 8: 400, 64: 800}
BASELINE_UNCACHED = {1: 40, 8: 80, 64: 160}
CACHED = {1: 2000, 8: 6000, 64: 8000}
MAX_SECONDS = 30.0
TIMEOUT_MS = 300_000  # a busy machine computes 64 questions in more than a minute
# Settings of the service, because the baselines have no time limit.
PATIENT = dict.fromkeys(("QA_REQUEST_TIMEOUT_MS", "QA_REQUEST_TIMEOUT_MAX_MS"), str(TIMEOUT_MS))
NAMES = {
    "fast": "qa-cluster, plan fast",
    "balanced": "qa-cluster, plan balanced",
    "all": "qa-cluster, plan balanced, all 8",
    "torch": "FastAPI + PyTorch float32, all 8",
    "near": "qa-cluster, repeat",
    "redis": "FastAPI + redis-py GET",
}


class Questions:
    """Yields questions that are new to every server."""

    def __init__(self, corpus: Corpus, total: int) -> None:
        self._left = iter(variations(corpus.questions, total))

    def take(self, count: int) -> list[str]:
        """The next `count` questions."""
        return [next(self._left) for _ in range(count)]


def measure(port: int, questions: Sequence[str], clients: int, extra: str = "") -> Load:
    """Run one round of `GET` requests; RuntimeError if a status is not 200."""
    return run_load(port, get_requests(port, questions, extra), clients=clients, max_seconds=MAX_SECONDS)


def run(report: Report, cluster: System, corpus: Corpus, checkpoint: Path | None, rounds: int) -> None:
    """Run all servers in turn, one at a time, so that they do not compete for cores."""
    per_round = 3 * sum(UNCACHED.values()) + (sum(BASELINE_UNCACHED.values()))
    questions = Questions(corpus, (rounds + 1) * per_round + 200)
    loads: dict[tuple[str, int], list[Load]] = {}

    def rounds_of(name: str, call: Callable[[int], Load]) -> None:
        for _ in range(rounds):
            for clients in CLIENTS:
                loads.setdefault((name, clients), []).append(call(clients))

    cluster.start_service(**PATIENT)
    port = cluster.port
    measure(port, questions.take(64), 8)
    rounds_of("fast", lambda n: measure(port, questions.take(UNCACHED[n]), n, "&plan=fast"))
    rounds_of("balanced", lambda n: measure(port, questions.take(UNCACHED[n]), n))
    rounds_of("all", lambda n: measure(port, questions.take(UNCACHED[n]), n, "&waves=false&retriever_k=8"))
    known = questions.take(100)
    measure(port, known, 8)
    rounds_of("near", lambda n: measure(port, [known[i % len(known)] for i in range(CACHED[n])], n))
    cluster.stop_service()
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is not None:
            sentences = Path(folder) / "sentences.json"
            sentences.write_text(json.dumps(stored_sentences(cluster)))
            environment = {"QA_BENCH_SENTENCES": str(sentences), "QA_BENCH_CHECKPOINT": str(checkpoint)}
            with baseline("tests.benchmarks.baselines.torch_server:app", environment, Path(folder)) as port:
                measure(port, questions.take(16), 8)
                rounds_of("torch", lambda n: measure(port, questions.take(BASELINE_UNCACHED[n]), n))
        with plain_server(Path(folder), str(cluster.binary)) as url:
            client = redis.Redis.from_url(url)
            body = json.dumps({"answer": "x" * 40, "context": "y" * 900})
            for question in known:
                client.set("answer:" + question, body)
            with baseline("tests.benchmarks.baselines.cache_server:app", {"QA_BENCH_REDIS": url}, Path(folder)) as port:
                measure(port, known, 8)
                rounds_of("redis", lambda n: measure(port, [known[i % len(known)] for i in range(CACHED[n])], n))
    for title, names in (("Uncached", ("fast", "balanced", "all", "torch")), ("Repeated", ("near", "redis"))):
        print_loads(report, loads, f"{title} questions over HTTP", {name: NAMES[name] for name in names})


def stored_sentences(cluster: System) -> list[str]:
    """The text of every stored sentence, so that the baseline ranks and reads the same sentences."""
    found: list[str] = []
    for node in cluster.nodes:
        for key in sorted(node.scan_iter(match="document:*", count=1000)):
            for first in range(0, int(node.hget(key, "sentences")), SENTENCES_PER_CALL):
                name = key.removeprefix("document:")
                found += node.execute_command("RG.TRIGGER", "qa.sentences", name, first, SENTENCES_PER_CALL)
    return found


def print_loads(
    report: Report, loads: Mapping[tuple[str, int], list[Load]], title: str, names: Mapping[str, str]
) -> None:
    """Print a table of some servers by their names; the last server is the baseline of the ratios."""
    base, rows = [*names][-1], []
    rounds = max(len(found) for found in loads.values())
    for name in names:
        for clients in sorted({count for _, count in loads}):
            found = loads.get((name, clients))
            if found is None:
                continue
            ratio = ""
            if (base, clients) in loads and name != base:
                pairs = zip(found, loads[base, clients], strict=True)
                ratio = median([ours.per_second / theirs.per_second for ours, theirs in pairs], 1) + " ×"
            rows.append(
                [
                    names[name],
                    str(clients),
                    median([load.per_second for load in found], 0),
                    median([load.percentile(50) for load in found]),
                    median([load.percentile(99) for load in found]),
                    ratio,
                ]
            )
    note = (
        f"medians of {rounds} rounds [least–most]; load generator, service and shards share the {os.cpu_count()} cores"
    )
    report.table(title, ["", "clients", "requests/s", "p50 ms", "p99 ms", "against the baseline"], rows, note)
