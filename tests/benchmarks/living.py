"""Repeated questions while documents are written: how many come from the near cache, and how many a second.

The documents are a folder's text files (`make bench ARGS='living --documents FOLDER'`; `tests/yardstick/fetch.py
FOLDER` fills one with the documentation of 64 Debian and PyPI packages). Every tenth file is held back. Its paragraphs
are written as new documents while questions about the other files are asked.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from qa_cluster.client import ClusterClient
from qa_cluster.errors import QAError
from tests.harness.polling import eventually
from tests.harness.system import System

from .loadgen import Load, get_requests, run_load
from .report import Report, median

QUESTIONS = 100
CLIENTS = 4
RATES = (0, 1, 10, 100)
SECONDS = 10.0
MAX_DOCUMENT_CHARS = 200_000
_PARAGRAPH = re.compile(r"\n\s*\n")
_KEPT = re.compile(rb'^qa_questions_total\{[^}]*"(near|shard|none)"[^}]*\} (\d+)', re.MULTILINE)


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """The files of a folder as documents of bounded size, in the order of their names."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes().decode(errors="replace").replace("\0", " ")
        for part, first in enumerate(range(0, len(text), MAX_DOCUMENT_CHARS)):
            if piece := text[first : first + MAX_DOCUMENT_CHARS].strip():
                yield f"{path.relative_to(folder)}#{part}", piece


def divided(folder: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """The documents that are stored at the start, and the texts that are written later."""
    documents, later = [], []
    for number, (name, text) in enumerate(texts_of(folder)):
        if number % 10 == 9:
            later += [part.strip() for part in _PARAGRAPH.split(text) if 80 <= len(part.strip()) <= 2000]
        else:
            documents.append((name, text))
    return documents, later


def questions_of(path: Path, count: int) -> list[str]:
    """The first questions of a yardstick file."""
    return [json.loads(line)["question"] for line in path.read_text().splitlines()[:count]]


@contextmanager
def writing(cluster: System, texts: Iterator[str], per_second: int) -> Iterator[list[float]]:
    """A thread that writes this number of new documents a second; the list gets the time of each write.

    The block starts after the first write, so the time for connecting does not count.
    """
    written: list[float] = []
    stop, begun_to_write = threading.Event(), threading.Event()

    def write() -> None:
        with ClusterClient(cluster.url) as client:
            begun = time.perf_counter()
            while not stop.wait(max(0.0, begun + len(written) / per_second - time.perf_counter())):
                try:
                    client.put_document(f"new/{time.monotonic_ns()}", next(texts), wait=False)
                except QAError:
                    if stop.is_set():
                        return
                    raise
                written.append(time.perf_counter())
                begun_to_write.set()

    if not per_second:
        yield written
        return
    thread = threading.Thread(target=write)
    thread.start()
    try:
        while not begun_to_write.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the writer ended before it had written anything")
        yield written
    finally:
        stop.set()
        thread.join()


def answered_from(port: int) -> dict[str, int]:
    """How many questions the service has answered from each cache."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        body = reply.read()
    counts: dict[str, int] = {}
    for tier, count in _KEPT.findall(body):
        counts[tier.decode()] = counts.get(tier.decode(), 0) + int(count)
    return counts


def memory_of(cluster: System) -> int:
    """The bytes of all keys, with the servers' overhead for them, on all shards."""
    return sum(int(cluster.info(node)["used_memory_dataset"]) for node in cluster.nodes)


def load(port: int, questions: list[str], seconds: float) -> Load:
    """All clients ask all questions, again and again."""
    requests = get_requests("127.0.0.1", port, "/qa", questions)
    return run_load("127.0.0.1", port, requests * max(1, int(seconds * 100)), clients=CLIENTS, max_seconds=seconds)


def run(
    report: Report,
    cluster: System,
    folder: Path,
    questions: list[str],
    *,
    rounds: int,
    seconds: float = SECONDS,
    rates: Sequence[int] = RATES,
) -> None:
    """Fill the cluster and ask, at each rate of writes."""
    documents, later = divided(folder)
    empty = memory_of(cluster)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "documents.jsonl"
        path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in documents))
        begun = time.perf_counter()
        cluster.cli("ingest", str(path))
        took = time.perf_counter() - begun
    sentences = cluster.total("qa_index_sentences")
    memory = memory_of(cluster) - empty
    characters = sum(len(text.encode()) for _, text in documents)
    report.table(
        "The corpus",
        ["documents", "sentences", "ingested and found, sentences/s", "bytes a sentence beyond its text"],
        [[str(len(documents)), str(sentences), f"{sentences / took:.0f}", f"{(memory - characters) / sentences:.0f}"]],
    )
    cluster.start_service()
    texts = (later[number % len(later)] + f" ({number})" for number in range(10**9))
    rows = []
    for rate in rates:
        kept, speeds, slow, writes, drops = [], [], [], [], []
        for _ in range(rounds):
            eventually(lambda: cluster.total("qa_queued_events") + cluster.total("qa_in_flight") == 0, 120)
            run_load(
                "127.0.0.1",
                cluster.port,
                get_requests("127.0.0.1", cluster.port, "/qa", questions),
                clients=CLIENTS,
                max_seconds=60,
            )
            before, dropped = answered_from(cluster.port), cluster.total("qa_watched_dropped")
            with writing(cluster, texts, rate) as written:
                found = load(cluster.port, questions, seconds)
            after = answered_from(cluster.port)
            counts = {tier: after[tier] - before.get(tier, 0) for tier in after}
            kept.append(100 * counts.get("near", 0) / max(1, sum(counts.values())))
            if set(found.statuses) != {200}:
                raise RuntimeError(f"statuses {found.statuses}")
            speeds.append(found.per_second)
            slow.append(found.percentile(99))
            writes.append(len(written) / found.seconds)
            drops.append((cluster.total("qa_watched_dropped") - dropped) / found.seconds)
        numbers = (median(writes, 1), median(kept, 2), median(speeds, 0), median(slow), median(drops, 2))
        rows.append([str(rate), *numbers])
    report.table(
        f"{len(questions)} repeated questions from {CLIENTS} clients while other documents are written",
        ["documents/s", "written/s", "near cache, %", "requests/s", "p99 ms", "questions dropped/s, all partitions"],
        rows,
        f"{seconds:g} s a round, {rounds} rounds; median [least–most]",
    )
    cluster.stop_service()
