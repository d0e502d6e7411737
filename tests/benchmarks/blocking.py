"""New questions by `GET` on a shard, beside users' functions that block: how much longer they take than alone.

Each round asks alone and beside the functions, one after the other, so that what else the machine does concerns both.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.polling import eventually
from tests.harness.system import System

from .corpus import Corpus
from .report import Report, median
from .shard_get import sentence_keys

QUESTIONS = 200
FUNCTIONS = {
    "8 functions that sleep": (8, "while True: time.sleep(0.1)"),
    "8 functions that send commands and sleep": (8, "while True: execute('PING'), time.sleep(0.01)"),
    "1 function that computes": (1, "while True: sum(range(1000))"),
    "4 functions that compute": (4, "while True: sum(range(1000))"),
}
SCRIPT = "import time\ndef block(r):\n    {body}\nGB('ShardsIDReader').foreach(block).run(mode='async_local')"


@contextmanager
def beside(node: Any, count: int, body: str) -> Iterator[None]:
    """So many runs of a function that never ends, until the block's end."""
    script = SCRIPT.format(body=body)
    names = [node.execute_command("RG.PYEXECUTE", script, "UNBLOCKING") for _ in range(count)]
    eventually(lambda: int(node.info("everything")["qa_worker_functions_running"]) >= count)
    try:
        yield
    finally:
        for name in names:
            node.execute_command("RG.ABORTEXECUTION", name)
        eventually(lambda: int(node.info("everything")["qa_worker_functions_running"]) == 0)


def run(report: Report, binary: Path, corpus: Corpus, rounds: int, *, questions: int = QUESTIONS) -> None:
    """Ask new questions about stored sentences of one shard, alone and beside each kind of function."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, System(binary, shards=1) as cluster:
        cluster.cli("ingest", str(corpus.write_jsonl(Path(folder) / "corpus.jsonl")))
        (node,) = cluster.nodes
        targets = sentence_keys(cluster, questions)

        def asked() -> tuple[float, float]:
            took = []
            for _, tag, key in targets:
                name = f"bertqa{tag}_{key}_What is number {next(numbers)}?"
                started = time.perf_counter()
                if node.get(name) is None:
                    raise RuntimeError(f"no answer for {name!r}")
                took.append((time.perf_counter() - started) * 1000)
            return float(np.percentile(took, 50)), float(np.percentile(took, 95))

        asked()  # the first use of a shape compiles it
        rows = []
        for name, (count, body) in FUNCTIONS.items():
            alone, with_them = [], []
            for _ in range(rounds):
                alone.append(asked())
                with beside(node, count, body):
                    with_them.append(asked())
            ratios = [(b[0] / a[0], b[1] / a[1]) for a, b in zip(alone, with_them, strict=True)]
            rows.append(
                [
                    name,
                    *(median([values[which] for values in alone], 2) for which in (0, 1)),
                    *(median([values[which] for values in with_them], 2) for which in (0, 1)),
                    *(median([ratio[which] for ratio in ratios], 2) for which in (0, 1)),
                ]
            )
    report.table(
        "A new question about a stored sentence by GET, beside users' functions, one client (milliseconds)",
        ["beside", "alone p50", "alone p95", "p50", "p95", "p50 / alone", "p95 / alone"],
        rows,
        f"{len(targets)} questions a round, {rounds} rounds; median [least–most]",
    )
