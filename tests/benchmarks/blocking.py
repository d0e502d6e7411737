"""New questions by `GET` on a shard, alone and while user functions block: how much longer they take.

Each round asks alone and then with the functions, so that other load on the machine affects both. Two shards are
measured: one whose worker runs the models, and one with an inference worker. Functions that sleep or wait need no
processor time. Functions that compute share the interpreter lock with the worker's code and the processors with its
models.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.polling import eventually
from tests.harness.system import System

from .corpus import Corpus
from .report import Report, median
from .shard_get import sentence_keys

QUESTIONS = 100
INFERENCE_WORKERS = (0, 1)
STREAMS = 4
ENTRIES = 500
SCRIPT = "import time\ndef block(r):\n    {body}\nGB('ShardsIDReader').foreach(block).run(mode='async_local')"
SLOW_STREAM = """
import time
GB('StreamReader').foreach(lambda r: time.sleep(1)).register(prefix='slow:*', batch=1, mode='async_local')
"""


@contextmanager
def runs(node: Any, count: int, body: str) -> Iterator[None]:
    """Runs `count` copies of a function that never ends, until the end of the block."""
    script = SCRIPT.format(body=body)
    names = [node.execute_command("RG.PYEXECUTE", script, "UNBLOCKING") for _ in range(count)]
    eventually(lambda: running(node) >= count)
    try:
        yield
    finally:
        for name in names:
            node.execute_command("RG.ABORTEXECUTION", name)
        eventually(lambda: running(node) == 0)


@contextmanager
def slow_streams(node: Any) -> Iterator[None]:
    """Streams whose function sleeps for a second at each entry. They have more entries than the block has seconds."""
    node.execute_command("RG.PYEXECUTE", SLOW_STREAM, "ID", "slow")
    tag = node.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda _: hashtag()).run()")[0][0]
    names = [f"slow:{number}{{{tag}}}" for number in range(STREAMS)]
    for name in names:
        pipe = node.pipeline(transaction=False)
        for number in range(ENTRIES):
            pipe.execute_command("XADD", name, "*", "n", number)
        pipe.execute()
    eventually(lambda: running(node) >= 1)
    try:
        yield
    finally:
        for entry in node.execute_command("RG.DUMPREGISTRATIONS"):
            fields = dict(zip(entry[::2], entry[1::2], strict=True))
            if fields["reader"] == "StreamReader":
                node.execute_command("RG.UNREGISTER", fields["id"], "ABORTPENDING")
        for name in names:
            node.execute_command("DEL", name)
        eventually(lambda: running(node) == 0)


FUNCTIONS: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "2 runs that sleep": partial(runs, count=2, body="while True: time.sleep(0.1)"),
    "8 runs that sleep": partial(runs, count=8, body="while True: time.sleep(0.1)"),
    f"{STREAMS} streams whose function sleeps 1 s": slow_streams,
    "8 runs that send commands and sleep": partial(runs, count=8, body="while True: execute('PING'), time.sleep(0.01)"),
    "1 run that computes": partial(runs, count=1, body="while True: sum(range(1000))"),
    "4 runs that compute": partial(runs, count=4, body="while True: sum(range(1000))"),
}


def running(node: Any) -> int:
    """How many functions have a thread."""
    return int(node.info("everything")["qa_worker_functions_running"])


class Asking:
    """New questions about stored sentences, one after the other."""

    def __init__(self, cluster: System, questions: int) -> None:
        (self._node,) = cluster.nodes
        self._targets = sentence_keys(cluster, questions)
        self._numbers = itertools.count()

    def round(self) -> tuple[float, float]:
        """p50 and p95 of one round, in milliseconds."""
        took = []
        for _, tag, key in self._targets:
            name = f"bertqa{tag}_{key}_What is number {next(self._numbers)}?"
            started = time.perf_counter()
            if self._node.get(name) is None:
                raise RuntimeError(f"no answer for {name!r}")
            took.append((time.perf_counter() - started) * 1000)
        return float(np.percentile(took, 50)), float(np.percentile(took, 95))


def run(
    report: Report,
    binary: Path,
    corpus: Corpus,
    rounds: int,
    *,
    questions: int = QUESTIONS,
    inference_workers: tuple[int, ...] = INFERENCE_WORKERS,
) -> None:
    """Ask new questions about stored sentences of one shard, alone and with each kind of function."""
    rows = []
    for workers in inference_workers:
        settings = {"QA_INFERENCE_WORKERS": str(workers)}
        with tempfile.TemporaryDirectory() as folder, System(binary, shards=1, **settings) as cluster:
            cluster.cli("ingest", str(corpus.write_jsonl(Path(folder) / "corpus.jsonl")))
            (node,) = cluster.nodes
            if int(node.info("everything")["qa_inference_workers"]) != workers:
                raise RuntimeError(f"the shard does not have {workers} inference workers")
            asking = Asking(cluster, questions)
            asking.round()  # the first use of a shape compiles it
            for name, beside in FUNCTIONS.items():
                rows.append([name, str(workers), *_compared(node, asking, beside, rounds)])
    report.table(
        "A new question about a stored sentence by GET, beside users' functions, one client (milliseconds)",
        ["beside", "inference workers", "alone p50", "alone p95", "p50", "p95", "p50 / alone", "p95 / alone"],
        rows,
        f"{questions} questions a round, {rounds} rounds; median [least–most]",
    )


def _compared(
    node: Any, asking: Asking, beside: Callable[[Any], AbstractContextManager[None]], rounds: int
) -> list[str]:
    """The cells of one row: alone and with the functions, measured in turn."""
    alone, with_them = [], []
    for _ in range(rounds):
        alone.append(asking.round())
        with beside(node):
            with_them.append(asking.round())
    ratios = [(b[0] / a[0], b[1] / a[1]) for a, b in zip(alone, with_them, strict=True)]
    return [median([values[which] for values in found], 2) for found in (alone, with_them, ratios) for which in (0, 1)]
