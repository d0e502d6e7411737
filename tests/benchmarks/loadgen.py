"""Closed-loop load generators for HTTP and RESP servers with little overhead.

Each client has one connection, and sends its next request after the answer to the last request. Requests are prepared
bytes, so a request over HTTP costs the generator about 20 µs. The low cost matters because the servers run on the same
machine. The cost is the same for every server.

A request has one or more steps. A step is sent when all replies to the previous step have arrived: a step of one
command is a round trip, and a step of sixteen commands a pipeline. `Content-Length` delimits the replies of HTTP, and
hiredis parses the replies of RESP.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import hiredis
import numpy as np
import uvloop

CLOSE_SECONDS = 10.0
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Load:
    """The result of one run of a generator. Latencies are in milliseconds, measured by the clients.

    The outcomes are the statuses of HTTP replies, or the texts of RESP errors.
    """

    seconds: float
    latencies_ms: np.ndarray
    outcomes: Counter[int | str]

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile(self, q: float) -> float:
        """The `q`-th percentile of the latencies in milliseconds."""
        return float(np.percentile(self.latencies_ms, q))


@dataclass(frozen=True)
class Step:
    """Encoded commands that are sent together, and the number of their replies."""

    data: bytes
    replies: int = 1


Request = tuple[Step, ...]


def encode(*words: str | bytes | int) -> bytes:
    """One command as RESP."""
    return bytes(hiredis.pack_command(words))


def pipeline(commands: Sequence[bytes]) -> Step:
    """The step that sends these commands together."""
    return Step(b"".join(commands), len(commands))


def get_requests(port: int, questions: Sequence[str], extra: str = "") -> list[Request]:
    """Prepared `GET /qa?question=…` requests."""
    lines = [f"GET /qa?question={quote(question)}{extra} HTTP/1.1" for question in questions]
    return [(Step(f"{line}\r\nHost: {HOST}:{port}\r\n\r\n".encode()),) for line in lines]


def post_requests(port: int, questions: Sequence[str]) -> list[Request]:
    """Prepared `POST /qa` requests with the body ``{"question": …}``."""
    bodies = [json.dumps({"question": question}).encode() for question in questions]
    head = f"POST /qa HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    return [(Step(f"{head}{len(body)}\r\n\r\n".encode() + body),) for body in bodies]


@dataclass
class _Run:
    requests: Iterator[Request]
    deadline: float
    latencies: list[float] = field(default_factory=list)
    outcomes: Counter[int | str] = field(default_factory=Counter)


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run, done: asyncio.Future[None], lost: asyncio.Future[None]) -> None:
        self.run, self.done, self.lost = run, done, lost
        self.steps: Iterator[Step] = iter(())
        self.missing = 0
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.begin()

    def begin(self) -> None:
        in_time = not self.sent or time.perf_counter() < self.run.deadline
        request = next(self.run.requests, None) if in_time else None
        if request is None:
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        self.steps = iter(request)
        self.sent = time.perf_counter()
        self.send(next(self.steps))

    def send(self, step: Step) -> None:
        self.missing = step.replies
        self.transport.write(step.data)

    def data_received(self, data: bytes) -> None:
        self.missing -= self.replies_in(data)
        if self.missing:
            return
        step = next(self.steps, None)
        if step is not None:
            self.send(step)
            return
        self.run.latencies.append(time.perf_counter() - self.sent)
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))

    def replies_in(self, data: bytes) -> int:
        raise NotImplementedError


class _Http(_Connection):
    buffer = b""

    def replies_in(self, data: bytes) -> int:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return 0
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        length = int(lower[at : lower.find(b"\r\n", at) if lower.find(b"\r\n", at) > 0 else None])
        if len(body) < length:
            return 0
        self.buffer = body[length:]
        self.run.outcomes[int(head[9:12])] += 1
        return 1


class _Resp(_Connection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.reader = hiredis.Reader()
        super().connection_made(transport)

    def replies_in(self, data: bytes) -> int:
        self.reader.feed(data)
        found = 0
        while found < self.missing and (reply := self.reader.gets()) is not False:
            found += 1
            if isinstance(reply, Exception):
                self.run.outcomes[str(reply)] += 1
        return found


def _run(kind: type[_Connection], port: int, requests: Iterable[Request], clients: int, max_seconds: float) -> Load:
    async def main() -> Load:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        run = _Run(iter(requests), started + max_seconds)
        waits = [loop.create_future() for _ in range(clients)]
        ends = [loop.create_future() for _ in range(clients)]
        for done, lost in zip(waits, ends, strict=True):
            await loop.create_connection(lambda done=done, lost=lost: kind(run, done, lost), HOST, port)  # type: ignore[misc]
        await asyncio.gather(*waits)
        seconds = time.perf_counter() - started
        await asyncio.wait(ends, timeout=CLOSE_SECONDS)  # TLS sends a closing message
        return Load(seconds, np.array(run.latencies) * 1000, run.outcomes)

    return uvloop.run(main())


def run_load(port: int, requests: Sequence[Request], *, clients: int, max_seconds: float) -> Load:
    """Send each request over HTTP once, from `clients` connections, until all are sent or the time is over.

    Each connection sends at least one request, even if connecting takes longer, so there are always figures.
    RuntimeError if a status is not 200.
    """
    load = _run(_Http, port, requests, clients, max_seconds)
    if set(load.outcomes) != {200}:
        raise RuntimeError(f"statuses {load.outcomes} from port {port} with {clients} clients")
    return load


def run_resp_load(
    port: int, requests: Iterable[Request], *, clients: int = 1, max_seconds: float = 60.0, strict: bool = True
) -> Load:
    """Like `run_load` with requests of RESP commands. With `strict`, RuntimeError if a reply is an error."""
    load = _run(_Resp, port, requests, clients, max_seconds)
    if strict and load.outcomes:
        text, _ = load.outcomes.most_common(1)[0]
        raise RuntimeError(f"{load.outcomes.total()} of {len(load.latencies_ms)} requests failed: {text}")
    return load
