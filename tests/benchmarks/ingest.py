"""Ingests a corpus and measures speed, processor time of each kind of process, memory, and pauses.

The documents are a folder's text files (`make bench ARGS='corpus --documents FOLDER'`). `tests/yardstick/fetch.py
FOLDER` fills a folder with the documentation of 64 Debian and PyPI packages. `--sentences` is the approximate number of
sentences to ingest. Every run chooses the same documents, in a random order.
"""

from __future__ import annotations

import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.harness.polling import eventually
from tests.harness.system import System

from .pinger import Pinger
from .report import Report

SENTENCE_CHARS = 132
MAX_DOCUMENT_CHARS = 200_000
_TICKS = os.sysconf("SC_CLK_TCK")


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """The files of a folder as documents of bounded size, in the order of their names."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes().decode(errors="replace").replace("\0", " ")
        for part, first in enumerate(range(0, len(text), MAX_DOCUMENT_CHARS)):
            if piece := text[first : first + MAX_DOCUMENT_CHARS].strip():
                yield f"{path.relative_to(folder)}#{part}", piece


def memory_of(cluster: System) -> int:
    """The bytes of all keys on all shards, including the servers' overhead."""
    return sum(int(cluster.info(node)["used_memory_dataset"]) for node in cluster.nodes)


def some_of(folder: Path, sentences: int) -> list[tuple[str, str]]:
    """A random choice of a folder's documents with about `sentences` sentences."""
    documents = list(texts_of(folder))
    random.Random(1).shuffle(documents)
    taken: list[tuple[str, str]] = []
    characters = 0
    for document in documents:
        if characters > sentences * SENTENCE_CHARS:
            break
        taken.append(document)
        characters += len(document[1])
    return taken


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


class Costs:
    """Processor seconds of servers and workers."""

    def __init__(self, cluster: System) -> None:
        self._servers = [int(cluster.info(node)["process_id"]) for node in cluster.nodes]
        self._workers = [cluster.worker_pid(node) for node in cluster.nodes]

    def now(self) -> tuple[float, float]:
        """The seconds so far of all servers, and of all workers."""
        return sum(map(_processor_seconds, self._servers)), sum(map(_processor_seconds, self._workers))


def run(report: Report, cluster: System, folder: Path, sentences: int) -> None:
    """Ingest and measure."""
    documents = some_of(folder, sentences)
    empty, costs = memory_of(cluster), Costs(cluster)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "documents.jsonl"
        path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in documents))
        with ExitStack() as stack:
            pingers = [stack.enter_context(Pinger(port)) for _, port in cluster.addresses]
            before, client, begun = costs.now(), _children_seconds(), time.perf_counter()
            cluster.cli("ingest", str(path))
            took, after = time.perf_counter() - begun, costs.now()
            client = _children_seconds() - client
    found = cluster.total("qa_index_sentences")
    eventually(lambda: cluster.total("qa_queued_events") + cluster.total("qa_in_flight") == 0, 120)
    memory = memory_of(cluster) - empty
    size = sum(len(text.encode()) for _, text in documents)

    def each(seconds: float) -> str:
        return f"{seconds / found * 1e6:.1f}"

    cells = {
        "documents": len(documents),
        "sentences": found,
        "sentences/s": f"{found / took:.0f}",
        "µs a sentence: client": each(client),
        "servers": each(after[0] - before[0]),
        "workers": each(after[1] - before[1]),
        "bytes a sentence beyond its text": f"{(memory - size) / found:.0f}",
        "keys": sum(node.dbsize() for node in cluster.nodes),
        "longest PING, ms": f"{max(pinger.pauses.longest_ms for pinger in pingers):.1f}",
    }
    note = "processor time; the client's includes its start"
    report.table("Ingest until all is found", [*cells], [[*map(str, cells.values())]], note)
