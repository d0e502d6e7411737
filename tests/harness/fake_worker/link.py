"""RESP2 for a worker, over any socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

Word = str | bytes | int


class ReplyError(Exception):
    """An error reply."""


def encode(words: Sequence[Word]) -> bytes:
    """A command."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def bulk(text: str) -> bytes:
    """A bulk string."""
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def array(texts: Sequence[str]) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(texts) + b"".join(bulk(text) for text in texts)


class Link:
    """A connection; its replies are texts or bytes."""

    def __init__(self, connected: socket.socket, *, decode: bool = True) -> None:
        self.socket = connected
        self.file = connected.makefile("rb")
        self.lock = threading.Lock()
        self.decode = decode

    def send(self, *words: Word) -> None:
        """Sends without waiting for the reply."""
        self.socket.sendall(encode(words))

    def call(self, *words: Word) -> Any:
        """Sends a command and returns its reply."""
        with self.lock:
            self.send(*words)
            return self.read()

    def read(self) -> Any:
        """Reads one reply; raises an error reply."""
        line = self.file.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ReplyError(rest.decode(errors="surrogateescape"))
        if kind == b"+":
            return self._text(rest)
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"*":
            return [self.read_element() for _ in range(length)]
        return self._text(self.file.read(length + 2)[:-2])

    def _text(self, data: bytes) -> str | bytes:
        return data.decode(errors="surrogateescape") if self.decode else data

    def read_element(self) -> Any:
        """Reads a reply; returns an error as data, for errors in arrays and for commands that may fail."""
        try:
            return self.read()
        except ReplyError as error:
            return f"-{error}"

    def attempt(self, *words: Word) -> Any:
        """As `call`, but returns an error as data."""
        with self.lock:
            self.send(*words)
            return self.read_element()

    def close(self) -> None:
        """Closes the connection."""
        self.file.close()
        self.socket.close()
