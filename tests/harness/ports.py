"""Ports for the servers that tests start.

A server of a cluster needs two ports: its own and the port of its bus (port + 10000). Both are below the range of ports
for outgoing connections, so that no such connection uses them when the server starts. Test processes that run at the
same time (pytest-xdist) have separate ranges, without the ports that `qa-cluster up` chooses.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque

FIRST, LAST = 11_000, 15_000
BUS_OFFSET = 10_000
PROCESSES = 16
"""The number of test processes with separate ranges. `make test` starts fewer (tests/contract/test_harness.py)."""

# ports that were returned recently: a server may still end or start on them
_recent: deque[int] = deque(maxlen=100)


def _is_free(port: int) -> bool:
    with socket.socket() as probe, socket.socket() as bus:
        try:
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS_OFFSET))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now, with a free bus port, and that this process has not returned recently."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    size = (LAST - FIRST) // PROCESSES
    first = FIRST + number * size
    ports = [port for port in range(first, first + size) if port not in _recent]
    for port in random.sample(ports, len(ports)):
        if _is_free(port):
            _recent.append(port)
            return port
    raise OSError(f"no free port between {first} and {first + size}: servers of an earlier run may still be there")
