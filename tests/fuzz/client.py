"""A client of the fuzzer. It pipelines commands, reads RESP2 and RESP3, counts replies, and may disconnect early."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.fuzz.words import Command, encode
from tests.harness.servers import connected

PATIENCE_SECONDS = 20.0
DEEPEST = 512


class Finding(Exception):
    """A fault that the fuzzer has found."""


class Client:
    """One connection."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.socket = connected(path, PATIENCE_SECONDS)
        self.file = self.socket.makefile("rb")
        self.due = 0  # replies not read yet
        self.token = 0
        greeting: list[Command] = []
        if chance.random() < 0.3:
            greeting.append(["HELLO", 3])
        if chance.random() < 0.1:
            greeting.append(["AUTH", "reader", "x"])
        if greeting:
            self.send(greeting)

    def send(self, commands: Sequence[Command]) -> None:
        """Sends all commands at once, and then a command whose reply shows that no reply is missing."""
        self.token += 1
        self.due += len(commands) + 1
        self.send_raw(b"".join(map(encode, commands)) + encode(["ECHO", f"in step {self.token}"]))

    def send_raw(self, data: bytes) -> None:
        """Sends bytes, which may be an invalid command. They are lost if another client has killed this client."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def settle(self) -> None:
        """Reads all missing replies. EOFError: the server has disconnected; Finding: a reply is wrong."""
        expected = f"in step {self.token}".encode()
        reply = expected
        try:
            while self.due:
                reply = self.read()
                self.due -= 1
            if reply not in (expected, b"QUEUED"):
                raise Finding(f"a client is out of step: {reply!r}")
        except TimeoutError as error:
            raise Finding(f"no reply within {PATIENCE_SECONDS} s") from error
        except ConnectionError as error:
            raise EOFError from error

    def read(self) -> bytes:
        """The text of the next reply, empty if it is not text; skips pushes."""
        while True:
            kind, value = self.element(0)
            if kind != b">":
                return value

    def element(self, depth: int) -> tuple[bytes, bytes]:
        """The kind and text of one value."""
        if depth > DEEPEST:
            raise Finding("a reply is nested without end")
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            if line:
                raise Finding(f"a reply has a line that ends in {line[-10:]!r}")
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-:,_#(":
            return kind, rest
        if kind not in b"$=!*%~>|":
            raise Finding(f"a reply begins with {line[:40]!r}")
        length = int(rest)
        if kind in b"$=!":
            return kind, self.file.read(length + 2)[:-2] if length >= 0 else b""
        for _ in range(length * 2 if kind in b"%|" else length):
            self.element(depth + 1)
        return self.element(depth) if kind == b"|" else (kind, b"")

    def leave(self) -> None:
        """Disconnects."""
        self.file.close()
        self.socket.close()
