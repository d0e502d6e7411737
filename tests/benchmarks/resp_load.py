"""A closed-loop load generator for RESP servers, with an overhead that is low enough for plain `SET` and `GET`.

Each connection sends its next request after the reply to the last request. A request has one or more steps. A step is
sent when all replies to the previous step have arrived: a step of one command is a round trip, and a step of sixteen
commands a pipeline. Requests are encoded beforehand, and hiredis parses the replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis
import numpy as np
import uvloop

Word = str | bytes | int


@dataclass(frozen=True)
class Step:
    """Encoded commands that are sent together, and the number of their replies."""

    data: bytes
    replies: int = 1


Request = tuple[Step, ...]


@dataclass(frozen=True)
class RespLoad:
    """The result of one run: seconds, milliseconds per request, and the texts of error replies."""

    seconds: float
    latencies_ms: np.ndarray
    errors: list[str]

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile(self, q: float) -> float:
        """The `q`-th percentile of the latencies in milliseconds."""
        return float(np.percentile(self.latencies_ms, q))


def encode(*words: Word) -> bytes:
    """One command as RESP."""
    return bytes(hiredis.pack_command(words))


def pipeline(commands: Sequence[bytes]) -> Step:
    """The step that sends these commands together."""
    return Step(b"".join(commands), len(commands))


@dataclass
class _Run:
    requests: Iterator[Request]
    deadline: float
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run, done: asyncio.Future[None]) -> None:
        self.run, self.done = run, done
        self.reader = hiredis.Reader()
        self.steps: Iterator[Step] = iter(())
        self.missing = 0
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.begin()

    def begin(self) -> None:
        in_time = not self.sent or time.perf_counter() < self.run.deadline
        request = next(self.run.requests, None) if in_time else None
        if request is None:
            self.done.set_result(None)
            self.transport.close()
            return
        self.steps = iter(request)
        self.sent = time.perf_counter()
        self.send(next(self.steps))

    def send(self, step: Step) -> None:
        self.missing = step.replies
        self.transport.write(step.data)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while self.missing and (reply := self.reader.gets()) is not False:
            self.missing -= 1
            if isinstance(reply, Exception):
                self.run.errors.append(str(reply))
        if self.missing:
            return
        step = next(self.steps, None)
        if step is not None:
            self.send(step)
            return
        self.run.latencies.append(time.perf_counter() - self.sent)
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def run_resp_load(
    port: int, requests: Iterator[Request], *, clients: int = 1, max_seconds: float = 60.0, strict: bool = True
) -> RespLoad:
    """Send each request once, from `clients` connections, until all are sent or the time is over.

    Each connection sends at least one request, even if connecting takes longer, so there are always figures. With
    `strict`, RuntimeError if a reply is an error.
    """

    async def main() -> RespLoad:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        run = _Run(requests, started + max_seconds)
        waits: list[asyncio.Future[None]] = []
        for _ in range(clients):
            done: asyncio.Future[None] = loop.create_future()
            await loop.create_connection(lambda done=done: _Connection(run, done), "127.0.0.1", port)  # type: ignore[misc]
            waits.append(done)
        await asyncio.gather(*waits)
        return RespLoad(time.perf_counter() - started, np.array(run.latencies) * 1000, run.errors)

    load = uvloop.run(main())
    if strict and load.errors:
        raise RuntimeError(f"{len(load.errors)} of {len(load.latencies_ms)} requests failed: {load.errors[0]}")
    return load
