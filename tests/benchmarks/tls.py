"""What TLS costs: new and repeated questions through services with and without it, to clients and to the cluster.

There are two clusters with the same documents, one of which speaks TLS only, and at each of them two services, one of
which speaks HTTPS. All services run all the time. One service is asked at a time. Each round asks all services and
starts with another one. The figures include the work of the load generator, also its part of TLS.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.ports import free_port
from tests.harness.system import TOOL, System

from .corpus import Corpus
from .loadgen import Load, get_requests, run_load
from .report import Report, median
from .service import Questions
from .systems import running

CLIENTS = (1, 8)
NEW = {1: 100, 8: 200}
REPEATED = {1: 3000, 8: 8000}
KNOWN = 100
MAX_SECONDS = 60.0
HOST = "127.0.0.1"
PLAIN = "without TLS"


@dataclass(frozen=True)
class Service:
    """A running service, and how clients trust it: without a context it speaks plain HTTP."""

    name: str
    port: int
    context: ssl.SSLContext | None


@contextmanager
def served(cluster: System, name: str, secure: Path | None) -> Iterator[Service]:
    """A service of a cluster; with a folder of certificates it speaks HTTPS."""
    port, context, words = free_port(), None, []
    if secure is not None:
        context = ssl.create_default_context(cafile=secure / "ca.crt")
        words = ["--tls-cert", str(secure / "server.crt"), "--tls-key", str(secure / "server.key")]
    url = f"{'http' if secure is None else 'https'}://{HOST}:{port}/readyz"
    command = [TOOL, "serve", "--port", str(port), *words]
    with running(command, url, cluster.environment, cluster.folder / f"service-{port}.log", context):
        yield Service(name, port, context)


def measure(service: Service, questions: list[str], clients: int) -> Load:
    """One round; RuntimeError when anything but 200 came back."""
    requests = get_requests(HOST, service.port, "/qa", questions)
    load = run_load(HOST, service.port, requests, clients=clients, max_seconds=MAX_SECONDS, context=service.context)
    if set(load.statuses) != {200}:
        raise RuntimeError(f"statuses {load.statuses} {service.name} with {clients} clients")
    return load


def run(
    report: Report,
    binary: Path,
    corpus: Corpus,
    rounds: int,
    *,
    shards: int = 3,
    new: dict[int, int] = NEW,
    repeated: dict[int, int] = REPEATED,
    **settings: str,
) -> None:
    """Ask all services in turn; `new` and `repeated`: the questions of a round, by the number of clients."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        lines = str(corpus.write_jsonl(Path(folder) / "corpus.jsonl"))
        plain = stack.enter_context(System(binary, shards=shards, **settings))
        secured = stack.enter_context(System(binary, shards=shards, up=("--tls", "--no-password"), **settings))
        for cluster in (plain, secured):
            cluster.cli("ingest", lines)
        files = secured.folder / "data" / "tls"
        services = [
            stack.enter_context(served(cluster, name, secure))
            for cluster, name, secure in (
                (plain, PLAIN, None),
                (plain, "HTTPS", files),
                (secured, "TLS to the cluster", None),
                (secured, "both", files),
            )
        ]
        _measure_all(report, services, corpus, rounds, (new, repeated))


def _measure_all(
    report: Report, services: list[Service], corpus: Corpus, rounds: int, counts: tuple[dict[int, int], dict[int, int]]
) -> None:
    new, repeated = counts
    warm = max(new)
    questions = Questions(corpus, len(services) * (rounds * sum(new.values()) + 2 * warm) + KNOWN)
    known = questions.take(min(KNOWN, max(repeated.values())))
    fresh: dict[tuple[str, int], list[Load]] = {}
    again: dict[tuple[str, int], list[Load]] = {}
    for service in services:
        measure(service, questions.take(2 * warm), warm)
        measure(service, known, warm)
    for number in range(rounds):
        first = number % len(services)
        for service in [*services[first:], *services[:first]]:
            for clients, count in new.items():
                load = measure(service, questions.take(count), clients)
                fresh.setdefault((service.name, clients), []).append(load)
            for clients, count in repeated.items():
                load = measure(service, [known[i % len(known)] for i in range(count)], clients)
                again.setdefault((service.name, clients), []).append(load)
    note = f"medians of {rounds} rounds [least–most]; generator, services and shards share the {os.cpu_count()} cores"
    columns = ["", "clients", "requests/s", "p50 ms", "p99 ms", "time a request / without TLS"]
    report.table("New questions over HTTP, with and without TLS", columns, _rows(fresh), note)
    report.table("Repeated questions over HTTP (near cache), with and without TLS", columns, _rows(again), note)


def _rows(loads: dict[tuple[str, int], list[Load]]) -> list[list[str]]:
    rows = []
    for (name, clients), found in sorted(loads.items(), key=lambda item: item[0][1]):
        pairs = zip(found, loads[PLAIN, clients], strict=True)
        ratios = [base.per_second / load.per_second for load, base in pairs]
        rows.append(
            [
                name,
                str(clients),
                median([load.per_second for load in found], 0),
                median([load.percentile(50) for load in found]),
                median([load.percentile(99) for load in found]),
                "" if name == PLAIN else median(ratios),
            ]
        )
    return rows
