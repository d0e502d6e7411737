"""What a client that tracks keys hears of a read that the keymiss hook answers (docs/limitations.md)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.gears.test_keymiss import ANSWER
from tests.harness.servers import Server, execute


class Tracker:
    """A connection with RESP3 that tracks keys."""

    def __init__(self, server: Server, options: str) -> None:
        """Tracking when this returns."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(server.socket))
        self.number = 0
        self.run("HELLO 3", f"CLIENT TRACKING ON {options}")

    def close(self) -> None:
        """Ends it."""
        self.socket.close()

    def run(self, *commands: str) -> bytes:
        """All that comes until these commands have their replies."""
        self.number += 1
        mark, data = f"end {self.number}".encode(), b""
        self.socket.sendall("".join(f"{command}\r\n" for command in commands).encode() + b'ECHO "%b"\r\n' % mark)
        while mark not in data:
            data += self.socket.recv(65536)
        return data


def heard(data: bytes) -> list[str]:
    return [key.decode() for key in re.findall(rb"invalidate\r\n\*1\r\n\$\d+\r\n([^\r]*)", data)]


@contextmanager
def tracking(server: Server, options: str = "") -> Iterator[Tracker]:
    execute(server, "RG.PYEXECUTE", ANSWER)
    with closing(Tracker(server, options)) as tracker:
        yield tracker


@pytest.mark.parametrize("change", ["SET ask new", "DEL ask"])
def test_broadcasting_tells_every_change_of_what_a_read_has_filled(shard: Server, change: str) -> None:
    with tracking(shard, "BCAST PREFIX ask") as tracker:
        assert b"computed 1" in tracker.run("GET ask")
        tracker.run("PING")
        execute(shard, *change.split())
        assert heard(tracker.run("PING")) == ["ask"]


def test_a_read_that_fills_a_key_hears_of_that_first_and_the_next_read_is_tracked(shard: Server) -> None:
    """The server notes the keys of a read when it begins to wait, and offers modules no way to note them later."""
    with tracking(shard) as tracker:
        data = tracker.run("GET ask")
        assert heard(data) == ["ask"]
        assert data.index(b"invalidate") < data.index(b"computed 1")
        assert b"stored" in tracker.run("GET ask")
        execute(shard, "SET", "ask", "new")
        assert heard(tracker.run("PING")) == ["ask"]
