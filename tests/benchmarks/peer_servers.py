"""The servers of the scenario `peers` as the load generator sees them, and the choice of mosec's settings."""

from __future__ import annotations

import json
import statistics
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .baselines.peer_model import CORES
from .loadgen import Load, get_requests, post_requests, run_load
from .report import Report
from .service import MAX_SECONDS, TIMEOUT_MS
from .systems import mosec_server


@dataclass(frozen=True)
class PeerSettings:
    """OpenVINO's performance hint, and mosec's largest batch of questions and longest wait for it in milliseconds."""

    hint: str
    batch: int
    wait: int


SETTINGS = (
    PeerSettings("LATENCY", 8, 1),
    PeerSettings("LATENCY", 32, 10),
    PeerSettings("THROUGHPUT", 8, 1),
    PeerSettings("THROUGHPUT", 32, 10),
)


@dataclass(frozen=True)
class Server:
    """A running server: its port, the further parameters of its questions, and whether it takes `POST`."""

    port: int
    extra: str = ""
    posts: bool = False

    def load(self, questions: Sequence[str], clients: int) -> Load:
        """Ask the questions; RuntimeError when anything but 200 came back."""
        requests = post_requests(self.port, questions) if self.posts else get_requests(self.port, questions, self.extra)
        return run_load(self.port, requests, clients=clients, max_seconds=MAX_SECONDS)

    def ask(self, question: str) -> dict[str, Any]:
        """Return the reply to a question."""
        url = f"http://127.0.0.1:{self.port}/qa"
        if not self.posts:
            url += f"?question={quote(question)}{self.extra}"
        body = json.dumps({"question": question}).encode() if self.posts else None
        with urllib.request.urlopen(url, body, timeout=TIMEOUT_MS / 1000) as reply:
            return dict(json.load(reply))


@contextmanager
def mosec_peer(folder: Path, settings: PeerSettings) -> Iterator[Server]:
    """The peer under mosec, with its models loaded."""
    environment = {"QA_BENCH_PASSAGES": str(folder), "QA_BENCH_PEER": json.dumps(asdict(settings))}
    with mosec_server(environment, folder, TIMEOUT_MS) as port:
        server = Server(port, posts=True)
        server.ask("Are the models loaded?")
        yield server


def best_settings(
    report: Report, folder: Path, questions: Sequence[str], sizes: Mapping[int, int], settings: Sequence[PeerSettings]
) -> PeerSettings:
    """Return the settings with the largest geometric mean of questions per second over the numbers of clients."""
    speeds = []
    for tried in settings:
        with mosec_peer(folder, tried) as server:
            server.load(questions[:16], min(8, max(sizes)))
            speeds.append([server.load(questions[:count], clients).per_second for clients, count in sizes.items()])
    means = [statistics.geometric_mean(found) for found in speeds]
    best = max(range(len(settings)), key=means.__getitem__)
    report.table(
        "Settings of the peer under mosec, questions/s",
        ["hint, largest batch, longest wait", *(f"clients: {clients}" for clients in sizes), "geometric mean", ""],
        [
            [
                f"{tried.hint}, {tried.batch} questions, {tried.wait} ms",
                *(f"{speed:.1f}" for speed in found),
                f"{mean:.1f}",
                "chosen" * (number == best),
            ]
            for number, (tried, found, mean) in enumerate(zip(settings, speeds, means, strict=True))
        ],
        f"OpenVINO with {CORES} threads: LATENCY has one stream, THROUGHPUT has {CORES}; questions as in the corpus",
    )
    return settings[best]
