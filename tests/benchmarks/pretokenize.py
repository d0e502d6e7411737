"""Pre-tokenization: sentences per second with 1, 2 and 3 shards, and the memory of a stored sentence."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.harness.system import System

from .corpus import Corpus
from .report import Report

SHARDS = (1, 2, 3)


def run(report: Report, corpus: Corpus, binary: Path) -> None:
    """Measure, per number of shards, ingest (split and index on write) and the bulk job on the same data."""
    rows = []
    for shards in SHARDS:
        with tempfile.TemporaryDirectory() as folder, System(binary, shards=shards) as cluster:
            nodes = cluster.nodes
            before = _memory(nodes)
            file = corpus.write_jsonl(Path(folder) / "corpus.jsonl")
            started = time.perf_counter()
            cluster.cli("ingest", str(file))
            ingest = time.perf_counter() - started
            sentences = sum(
                int(n.hget(k, "sentences")) for n in nodes for k in n.scan_iter(match="document:*", count=1000)
            )
            taken = _memory(nodes) - before
            started = time.perf_counter()
            cluster.cli("pretokenize", "--force")
            bulk = time.perf_counter() - started
            rows.append(
                [
                    str(shards),
                    str(sentences),
                    f"{sentences / ingest:.0f}",
                    f"{sentences / bulk:.0f}",
                    f"{taken / sentences:.0f}",
                ]
            )
    report.table(
        "Pre-tokenization",
        ["shards", "sentences", "ingest: sentences/s", "bulk job: sentences/s", "bytes per stored sentence"],
        rows,
        "wall time of `qa-cluster ingest` and `qa-cluster pretokenize --force`, each with its start; memory: text,"
        " tokens, postings and keys, as the servers' used_memory grew",
    )


def _memory(nodes: list[object]) -> int:
    return sum(int(node.info("memory")["used_memory"]) for node in nodes)  # type: ignore[attr-defined]
