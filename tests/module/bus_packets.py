"""Packets that an attacker sends to a port of the cluster bus: header, module message, signature."""

from __future__ import annotations

import socket
import struct
from hashlib import blake2b
from pathlib import Path

from tests.harness.servers import Server

BUS_OFFSET = 10000
MODULE_TYPE = 9
ALL = bytes(40)


def key_of(path: Path, line: int = 0) -> bytes:
    """The key that the module derives from a line of its key file."""
    text = path.read_text().splitlines()[line].encode()
    return blake2b(text, key=b"qa-cluster bus key, from a file", digest_size=32).digest()


def signed(key: bytes, kind: int, sequence: int, payload: bytes, *, sender: str, receiver: bytes = ALL) -> bytes:
    """A message with the signature of the module."""
    head = b"qab1" + bytes([kind]) + struct.pack("<Q", sequence)
    tag = blake2b(head + sender.encode() + receiver + payload, key=key, digest_size=32).digest()
    return head + tag + payload


def send(to: Server, sender: str, kind: int, message: bytes) -> None:
    """Sends a module message over a new connection to the bus port. The message names a node that the server knows."""
    data = struct.pack(">QIB", 0, len(message), kind) + message
    header = struct.pack(">4sIHHHHQQQ40s", b"RCmb", 2256 + len(data), 1, 0, MODULE_TYPE, 0, 0, 0, 0, sender.encode())
    header += bytes(2048) + bytes(40) + bytes(46) + bytes(2) + bytes(30)
    header += struct.pack(">HHHB", 0, to.port + BUS_OFFSET, 1, 0) + bytes(3)
    assert len(header) == 2256
    with socket.create_connection(("127.0.0.1", to.port + BUS_OFFSET), timeout=10) as connection:
        connection.sendall(header + data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        while connection.recv(4096):
            pass
