"""A closed-loop HTTP load generator with little overhead.

Each client has one connection, and sends its next request after the answer to the last request. Requests are prepared
bytes, and `Content-Length` delimits replies, so a request costs the generator about 20 µs. The low cost matters because
the servers run on the same machine. The cost is the same for every server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import numpy as np
import uvloop

CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Load:
    """The result of one run of the generator. Latencies are in milliseconds, measured by the clients."""

    clients: int
    seconds: float
    latencies_ms: np.ndarray
    statuses: dict[int, int]

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile(self, q: float) -> float:
        """The `q`-th percentile of the latencies in milliseconds."""
        return float(np.percentile(self.latencies_ms, q))


@dataclass
class _Run:
    requests: Iterator[bytes]
    deadline: float
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)


class _Client(asyncio.Protocol):
    def __init__(self, run: _Run, done: asyncio.Future[None], lost: asyncio.Future[None]) -> None:
        self.run, self.done, self.lost = run, done, lost
        self.buffer = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.send()

    def send(self) -> None:
        request = next(self.run.requests, None)
        if request is None or (self.sent and time.perf_counter() >= self.run.deadline):
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        self.sent = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        length = int(lower[at : lower.find(b"\r\n", at) if lower.find(b"\r\n", at) > 0 else None])
        if len(body) < length:
            return
        self.buffer = body[length:]
        self.run.latencies.append(time.perf_counter() - self.sent)
        status = int(head[9:12])
        self.run.statuses[status] = self.run.statuses.get(status, 0) + 1
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def get_requests(host: str, port: int, path: str, questions: Sequence[str], extra: str = "") -> list[bytes]:
    """Prepared `GET path?question=…` requests."""
    return [
        f"GET {path}?question={quote(q)}{extra} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() for q in questions
    ]


def post_requests(host: str, port: int, path: str, questions: Sequence[str]) -> list[bytes]:
    """Prepared `POST path` requests with the body ``{"question": …}``."""
    bodies = [json.dumps({"question": question}).encode() for question in questions]
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    return [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]


def run_load(
    host: str,
    port: int,
    requests: Sequence[bytes],
    *,
    clients: int,
    max_seconds: float,
) -> Load:
    """Send each request once, from `clients` connections. Stop after `max_seconds`, even if requests are left.

    Each connection sends at least one request, even if connecting takes longer, so there are always figures.
    """

    async def main() -> Load:
        loop = asyncio.get_running_loop()
        run = _Run(iter(requests), time.perf_counter() + max_seconds)
        started = time.perf_counter()
        waits: list[asyncio.Future[None]] = []
        ends: list[asyncio.Future[None]] = []
        for _ in range(clients):
            waits.append(loop.create_future())
            ends.append(loop.create_future())
            client = _Client(run, waits[-1], ends[-1])
            await loop.create_connection(lambda client=client: client, host, port)  # type: ignore[misc]
        await asyncio.gather(*waits)
        seconds = time.perf_counter() - started
        await asyncio.wait(ends, timeout=CLOSE_SECONDS)  # TLS sends a closing message
        return Load(clients, seconds, np.array(run.latencies) * 1000, run.statuses)

    return uvloop.run(main())
