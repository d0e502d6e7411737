"""Measures a server's pauses from outside: `python -m tests.benchmarks.pinger PORT` pings it every millisecond.

It is a separate process with its own connection, and ends when its standard input closes. Its figures include times in
which the scheduler ran other processes, so compare them with the idle row of the same table.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from .report import ROOT

INTERVAL_SECONDS = 0.001


@dataclass(frozen=True)
class Pauses:
    """The answers of one run: their number, and milliseconds."""

    pings: int
    p50_ms: float
    p999_ms: float
    longest_ms: float


class Pinger:
    """Pings a server while its block runs; afterwards `pauses` has the result."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.pauses = Pauses(0, 0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.benchmarks.pinger", str(self._port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._process.stdout is None or not self._process.stdout.readline():
            raise RuntimeError("the pinger did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        output, _ = self._process.communicate(timeout=60)
        if kind is None:
            self.pauses = Pauses(**json.loads(output))


def main() -> None:
    """Ping until standard input closes, then print the figures."""
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("ready", flush=True)
    waits: list[float] = []
    while not waits or not select.select([sys.stdin], [], [], 0)[0]:  # at least one ping, also in a short run
        started = time.perf_counter()
        connection.sendall(b"PING\r\n")
        if connection.recv(64) != b"+PONG\r\n":
            raise RuntimeError("the server does not answer PING")
        waits.append(time.perf_counter() - started)
        time.sleep(max(0.0, INTERVAL_SECONDS - waits[-1]))
    found = np.array(waits) * 1000
    print(
        json.dumps(
            {
                "pings": len(waits),
                "p50_ms": float(np.percentile(found, 50)),
                "p999_ms": float(np.percentile(found, 99.9)),
                "longest_ms": float(found.max()),
            }
        )
    )


if __name__ == "__main__":
    main()
