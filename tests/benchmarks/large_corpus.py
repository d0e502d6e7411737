"""What a large corpus costs.

It measures ranking on the shards and over HTTP, alone and while documents are written; the time until a document is
found; pauses while documents are removed and the append-only file is rewritten; a restart.
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.ranking.ranker import parse_statistics, rank_commands, statistics_commands
from qa_cluster.ranking.terms import question_terms
from tests.harness.polling import eventually
from tests.harness.system import System

from .living import writing
from .pinger import Pinger
from .report import Report

COUNT = 8
WRITES = 100
FOUND = 20
REMOVED = 20
RANKING = ("QA.INDEX.STATS", "QA.INDEX.RANK")
_numbers = itertools.count()


def rank_on_shard(node: Any, tags: list[str], question: str) -> float:
    """The time in ms of the commands that rank a question in the indexes of a shard, in a pipeline."""
    terms = question_terms(question)
    begun = time.perf_counter()
    replies = _pipelined(node, statistics_commands(tags, terms))
    _pipelined(node, rank_commands(parse_statistics(tags, terms, replies), COUNT))
    return (time.perf_counter() - begun) * 1000


def spent_on_shard(node: Any, tags: list[str], question: str) -> float:
    """The time in ms that a shard itself spends on these commands, from its own counters."""
    before = _spent(node)
    rank_on_shard(node, tags, question)
    return (_spent(node) - before) / 1000


def _spent(node: Any) -> float:
    """Microseconds of all commands on indexes so far."""
    counted = node.info("commandstats")
    return float(sum(found["usec"] for name, found in counted.items() if name.upper().endswith(RANKING)))


def _pipelined(node: Any, commands: Any) -> list[Any]:
    with node.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return list(pipeline.execute())


def rank_over_http(cluster: System, question: str) -> float:
    """`timings_ms.rank` of a new question."""
    asked = urllib.parse.quote(f"{question} ({next(_numbers)})")
    status, _, body = cluster.http(f"/qa?question={asked}&cache=off&retriever_k=1")
    if status != 200:
        raise RuntimeError(f"status {status}: {body[:200]!r}")
    return float(json.loads(body)["timings_ms"]["rank"])


def quantiles(values: list[float]) -> list[str]:
    """Median and 99th percentile."""
    return [f"{np.percentile(values, q):.2f}" for q in (50, 99)]


@contextmanager
def pinged(cluster: System) -> Iterator[list[float]]:
    """The longest answer to PING of all shards, in ms, once the block has ended."""
    longest: list[float] = []
    with ExitStack() as stack:
        pingers = [stack.enter_context(Pinger(port)) for _, port in cluster.addresses]
        yield longest
    longest.append(max(pinger.pauses.longest_ms for pinger in pingers))


def run(report: Report, cluster: System, questions: list[str]) -> None:
    """Measure on a cluster with the corpus."""
    cluster.start_service()
    nodes = cluster.clients(decode_responses=False)
    tags = {index: _local_tags(cluster, index) for index in range(len(nodes))}
    texts = (f"Report {n} of the day: nothing unusual was seen at post {n % 97}." for n in itertools.count())
    rows = []
    for writes in (0, WRITES):
        with writing(cluster, texts, writes):
            for name, measure in _measures(cluster, nodes, tags):
                rows.append([name, str(writes), *quantiles([measure(question) for question in questions])])
    sentences = cluster.total("qa_index_sentences")
    title = f"Ranking, {sentences} sentences, {len(questions)} natural questions (milliseconds)"
    report.table(title, ["where", "documents written/s", "p50", "p99"], rows)
    report.table(
        "Other times and pauses (milliseconds)",
        ["what", "ms"],
        [
            ["a document is found after its put: median, longest", _until_found(cluster)],
            [f"longest PING while {REMOVED} of the largest documents are removed", _removal(cluster)],
            ["longest PING while the append-only files are rewritten", _rewrite(cluster)],
            ["longest PING in 5 s of rest", _rest(cluster)],
            ["from `up` of the stopped cluster to the first answer", _restart(cluster, questions[0])],
        ],
    )


def _measures(
    cluster: System, nodes: list[Any], tags: dict[int, list[str]]
) -> list[tuple[str, Callable[[str], float]]]:
    largest = max(range(len(nodes)), key=lambda index: int(cluster.info(cluster.nodes[index])["qa_index_sentences"]))
    return [
        ("commands on one shard", lambda question: rank_on_shard(nodes[largest], tags[largest], question)),
        ("time of the shard itself in them", lambda question: spent_on_shard(nodes[largest], tags[largest], question)),
        ("timings_ms.rank over HTTP", lambda question: rank_over_http(cluster, question)),
    ]


def _local_tags(cluster: System, index: int) -> list[str]:
    found = cluster.nodes[index].scan_iter(match="index:{*", count=10_000)
    return sorted(key.partition("{")[2].rstrip("}") for key in found)


def _until_found(cluster: System) -> str:
    times = []
    with ClusterClient(cluster.url) as client:
        for number in range(FOUND):
            word = f"zqx{number}vw{time.monotonic_ns()}"
            client.put_document(f"found/{number}", f"The word {word} stands here.", wait=False)
            begun = time.perf_counter()
            while not client.search(word, top_k=1).hits:
                time.sleep(0.0005)
            times.append((time.perf_counter() - begun) * 1000)
    return f"{np.median(times):.1f}, {max(times):.1f}"


def _removal(cluster: System) -> str:
    with ClusterClient(cluster.url) as client:
        largest = sorted(client.list_documents(), key=lambda entry: -entry.sentences)[:REMOVED]
        with pinged(cluster) as longest:
            for entry in largest:
                client.delete_document(entry.id)
    return f"{longest[0]:.1f} (of {largest[0].sentences} to {largest[-1].sentences} sentences)"


def _rewrite(cluster: System) -> str:
    with pinged(cluster) as longest:
        for node in cluster.nodes:
            node.bgrewriteaof()
        time.sleep(0.5)
        eventually(
            lambda: not any(int(node.info("persistence")["aof_rewrite_in_progress"]) for node in cluster.nodes), 120
        )
    return f"{longest[0]:.1f}"


def _rest(cluster: System) -> str:
    with pinged(cluster) as longest:
        time.sleep(5)
    return f"{longest[0]:.1f}"


def _restart(cluster: System, question: str) -> str:
    cluster.stop_service()
    cluster.cli("down")
    begun = time.perf_counter()
    cluster.cli("up")
    up = time.perf_counter() - begun
    with ClusterClient(cluster.url) as client:
        client.ask(question, no_answer=False)
    return f"{(time.perf_counter() - begun) * 1000:.0f} ({up * 1000:.0f} of it `up`)"
