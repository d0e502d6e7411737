"""`GET` of one question about one pre-tokenized sentence on a shard, compared with the bare call of the runtime."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import openvino as ov
import redis

from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.precisions import openvino_settings
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder
from tests.harness.system import System

from .corpus import Corpus
from .report import Report, median

PAIRS = 300


def sentence_keys(cluster: System, count: int) -> list[tuple[int, str, str]]:
    """Node, tag and key of stored sentences, evenly from all shards."""
    found = []
    for number, node in enumerate(cluster.nodes):
        for key in node.scan_iter(match="document:*", count=1000):
            name = key.removeprefix("document:")
            tag = name.rpartition(":")[2]
            found += [(number, tag, f"{name}:{index}") for index in range(int(node.hget(key, "sentences")))]
    step = max(1, len(found) // count)
    return found[::step][:count]


def run(report: Report, cluster: System, corpus: Corpus, model: Path, rounds: int) -> None:
    """Run rounds of bare call, uncached `GET` and cached `GET` on the same pairs."""
    nodes = cluster.clients(decode_responses=False)
    targets = [(n, tag, key, read_with(nodes[n], tag, key)) for n, tag, key in sentence_keys(cluster, PAIRS)]
    manifest = Manifest.load(model / "manifest.json")
    tokenizer = ReaderTokenizer((model / "tokenizer.json").read_bytes())
    threads = int(nodes[0].config_get("qa.worker-threads")["qa.worker-threads"]) or 1
    core = ov.Core()
    compiled = core.compile_model(
        str(model / "reader.onnx"),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            **openvino_settings(manifest.precision),
        },
    )
    request = compiled.create_infer_request()
    rows: dict[str, list[list[float]]] = {"bare runtime call": [], "GET, uncached": [], "GET, cached": []}
    for number in range(rounds):
        questions = [
            f"{corpus.questions[i % len(corpus.questions)]} {'!' * number}".strip() for i in range(len(targets))
        ]
        feeds = [padded(tokenizer, manifest, q, *t[3]) for q, t in zip(questions, targets, strict=True)]
        for feed in feeds:  # the first use of a shape compiles it
            request.infer(feed)
        rows["bare runtime call"].append([_timed(lambda feed=feed: request.infer(feed)) for feed in feeds])
        keys = [(nodes[n], f"bertqa{tag}_{key}_{q}") for q, (n, tag, key, _) in zip(questions, targets, strict=True)]
        rows["GET, uncached"].append([_timed_get(node, key) for node, key in keys])
        rows["GET, cached"].append([_timed_get(node, key) for node, key in keys])
    report.table(
        "One question, one sentence with its neighbours: GET on a shard, one client (milliseconds)",
        ["", "p50", "p99", "p50 over the bare call"],
        [
            [
                name,
                median([float(np.percentile(r, 50)) for r in values], 3),
                median([float(np.percentile(r, 99)) for r in values], 3),
                median(
                    [
                        float(np.percentile(r, 50) - np.percentile(b, 50))
                        for r, b in zip(values, rows["bare runtime call"], strict=True)
                    ],
                    3,
                ),
            ]
            for name, values in rows.items()
        ],
        f"{len(targets)} pairs a round, {rounds} rounds; runtime threads: {threads}; padded to the worker's shapes",
    )


def read_with(node: redis.Redis, tag: str, key: str) -> tuple[str, str]:
    """The title and the text that the reader reads for a sentence. They do not depend on the question."""
    answer = json.loads(node.get(f"bertqa{tag}_{key}_What is read?"))
    return str(answer["title"]), str(answer.get("context", answer["sentence"]))


def padded(tokenizer: ReaderTokenizer, manifest: Manifest, question: str, title: str, passage: str) -> list[np.ndarray]:
    """The arrays that the worker passes to its runtime for this pair. Lengths are multiples of 16."""
    encoder = TextPairEncoder(tokenizer, PairEncoder(manifest))
    return list(encoder.pairs.batch(encoder.windows(question, passage, title, "")).values())


def _timed(call: object) -> float:
    started = time.perf_counter()
    call()  # type: ignore[operator]
    return (time.perf_counter() - started) * 1000


def _timed_get(node: object, key: str) -> float:
    started = time.perf_counter()
    value = node.get(key)  # type: ignore[attr-defined]
    elapsed = (time.perf_counter() - started) * 1000
    if value is None:
        raise RuntimeError(f"no answer for {key!r}")
    return elapsed
