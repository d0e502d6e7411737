"""The longest time that a pinging client waits during large operations in its shard."""

from __future__ import annotations

import itertools
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.provision import demo_corpus
from tests.gears.onnx_file import double_model, table_model
from tests.harness.clusters import ready_shards
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.system import System

from .corpus import Corpus
from .loadgen import Load, Request, encode, pipeline, run_resp_load
from .pinger import Pauses, Pinger
from .report import Report, median

BIG_BYTES = 500_000_000
CHUNK_BYTES = 64_000_000
COLUMNS = 100
CLIENTS = 16
LOAD_SECONDS = 4.0
CRASH_AFTER_SECONDS = 1.0
WORDS = 830_000  # words of six letters: about 5,000,000 code points, the limit of a document


@dataclass(frozen=True)
class Seen:
    """One round of a row: its duration, and the pauses that the pinging client has measured."""

    seconds: float
    pauses: Pauses


class _Rows:
    def __init__(self) -> None:
        self.seen: dict[str, list[Seen]] = {}

    def measure(self, name: str, port: int, work: Callable[[], object]) -> None:
        with Pinger(port) as pinger:
            started = time.perf_counter()
            work()
            seconds = time.perf_counter() - started
        self.seen.setdefault(name, []).append(Seen(seconds, pinger.pauses))


def run(
    report: Report,
    binary: Path,
    rounds: int,
    *,
    big_bytes: int = BIG_BYTES,
    load_seconds: float = LOAD_SECONDS,
    documents: int | None = None,
    words: int = WORDS,
) -> None:
    """Run rounds of all rows in turn. The rows that need the own functions come last, on separate shards."""
    rows = _Rows()
    slowest: list[float] = []
    with ready_shards(binary, 1) as (server,):
        for _ in range(rounds):
            rows.measure("nothing", server.port, lambda: time.sleep(load_seconds))
            _big_values(rows, server, big_bytes)
            _store(server, "double", [double_model()])
            rows.measure(f"{CLIENTS} clients run a model", server.port, lambda: _load(server, load_seconds))
            slowest.append(_crash(rows, server, load_seconds))
    with System(binary, shards=1) as cluster:
        _pretokenization(rows, cluster, rounds, documents)
        _long_document(rows, cluster, rounds, words)
    report.table(
        "The longest pause of a client that pings every millisecond",
        ["while", "takes s", "p50 ms", "p99.9 ms", "longest ms"],
        [
            [
                name,
                median([s.seconds for s in seen], 1),
                median([s.pauses.p50_ms for s in seen], 2),
                median([s.pauses.p999_ms for s in seen], 1),
                median([s.pauses.longest_ms for s in seen], 1),
            ]
            for name, seen in rows.seen.items()
        ],
        f"the client is a process of its own and shares the cores with all others; medians of {rounds} rounds"
        f" [least–most]; the crash: no client of the model got an error, the slowest run took {median(slowest, 0)} ms",
    )


# ---- 500 MB ----


def _big_values(rows: _Rows, server: Server, size: int) -> None:
    megabytes = f"{size / 1e6:.0f} MB"
    count = size // (4 * COLUMNS)
    model = table_model(count, COLUMNS, np.arange(count * COLUMNS, dtype=np.float32).tobytes())
    chunks = [model[at : at + CHUNK_BYTES] for at in range(0, len(model), CHUNK_BYTES)]
    rows.measure(f"SET of {megabytes}", server.port, lambda: _send(server, [b"SET", b"big", model]))
    _remove(server, "big")
    rows.measure(f"AI.MODELSTORE of {megabytes}", server.port, lambda: _store(server, "big", [model]))
    _remove(server, "big")
    rows.measure(
        f"AI.MODELSTORE of {megabytes} in {len(chunks)} chunks", server.port, lambda: _store(server, "big", chunks)
    )
    _remove(server, "big")


def _store(server: Server, key: str, chunks: list[bytes]) -> None:
    _send(server, [b"AI.MODELSTORE", key.encode(), b"ONNX", b"CPU", b"BLOB", *chunks])


def _send(server: Server, words: list[bytes]) -> None:
    """Send a command of any size without copying it; RuntimeError if the reply is not OK."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(b"*%d\r\n" % len(words))
        for word in words:
            connection.sendall(b"$%d\r\n" % len(word))
            connection.sendall(word)
            connection.sendall(b"\r\n")
        reply = connection.recv(4096)
    if reply != b"+OK\r\n":
        raise RuntimeError(f"{words[0].decode()} answered {reply!r}")


def _remove(server: Server, key: str) -> None:
    with server.client() as client:
        client.unlink(key)


# ---- a crash under load ----


def _runs(inputs: int) -> Iterable[Request]:
    commands = [
        encode("AI.MODELEXECUTE", "double", "INPUTS", 1, f"in:{n}", "OUTPUTS", 1, f"out:{n}") for n in range(inputs)
    ]
    return itertools.cycle([(pipeline([command]),) for command in commands])


def _load(server: Server, seconds: float) -> Load:
    """Run a model from clients in a closed loop; RuntimeError if a client gets an error."""
    with server.client() as client:
        for number in range(CLIENTS):
            client.execute_command("AI.TENSORSET", f"in:{number}", "INT64", 1, 32)
    return run_resp_load(server.port, iter(_runs(CLIENTS)), clients=CLIENTS, max_seconds=seconds)


def _crash(rows: _Rows, server: Server, seconds: float) -> float:
    """Kill the worker while it runs models; returns the milliseconds of the slowest run."""
    loads: list[Load] = []
    killer = threading.Timer(min(CRASH_AFTER_SECONDS, seconds / 2), lambda: server.signal_worker(signal.SIGKILL))
    killer.start()
    name = f"{CLIENTS} clients run a model, the worker is killed"
    rows.measure(name, server.port, lambda: loads.append(_load(server, seconds)))
    killer.join()
    return loads[0].percentile(100)


# ---- documents ----


def _pretokenization(rows: _Rows, cluster: System, rounds: int, limit: int | None) -> None:
    documents = [(document.id, document.text) for document in demo_corpus.documents()][:limit]
    with tempfile.TemporaryDirectory() as folder:
        cluster.cli("ingest", str(Corpus("demo", documents, []).write_jsonl(Path(folder) / "corpus.jsonl")))
    for _ in range(rounds):
        name = f"pre-tokenization of {len(documents)} documents"
        rows.measure(name, cluster.addresses[0][1], lambda: cluster.cli("pretokenize", "--force"))


def _long_document(rows: _Rows, cluster: System, rounds: int, count: int) -> None:
    """Write a document whose words are all different, and then another version of the document."""
    words = [f"{number:05x}" for number in range(0x10000, 0x10000 + count)]
    text = "".join(f"{word}{'. ' if number % 12 == 11 else ' '}" for number, word in enumerate(words))
    (node,), ((_, port),) = cluster.nodes, cluster.addresses
    before = _terms(node)
    with ClusterClient(cluster.url) as client:
        for _ in range(rounds):
            for title in ("", "Anew"):
                name = f"a document of {count} different words is {'replaced' if title else 'stored'}"
                rows.measure(name, port, lambda title=title: client.put_document("long", text, title, timeout=300))
            rows.measure("it is removed, and cleaned up", port, lambda: _clean(client, node, before))


def _terms(node: Any) -> int:
    """The number of distinct terms in all indexes of the shard."""
    return sum(int(node.execute_command("QA.INDEX.INFO", key)[7]) for key in node.scan_iter("index:*"))


def _clean(client: ClusterClient, node: Any, before: int) -> None:
    """Removes the document, and waits until its terms are removed."""
    client.put_document("short", "So that its index stays.")
    client.delete_document("long")
    eventually(lambda: _terms(node) < before + 100, 120)
