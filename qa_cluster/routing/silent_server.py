"""Detects from the kernel's data whether a silent server is stopped or unreachable, or only busy. Linux only.

- For a server on this machine: whether its process is stopped (`SIGSTOP`, a shell's job control).
- For a server on a different machine: whether the server's machine has acknowledged the bytes of a command. A machine
  acknowledges bytes at once, even if its server is busy.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from asyncio.trsock import TransportSocket
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PROCESS_ID = re.compile(rb"process_id:(\d+)")
_LISTEN = "0A"
# The server opens its listening sockets before its clients connect, so the listening sockets have low descriptors.
_LISTENING_BELOW = 64
_TCP_INFO_BYTES = 28
_UNACKED_AT = 24


def process_of(sock: TransportSocket, info: bytes) -> int:
    """Return the process id of the server at the other end of a connection; 0 if unknown or on another machine.

    Call the function in a thread, because it may read many small files.

    Args:
        info: the server's reply to ``INFO server``. The process id in this reply may belong to another machine or
            container. So it is used only if the process with this id on this machine listens at the port of the
            connection.
    """
    found = _PROCESS_ID.search(info)
    if found is None or not sys.platform.startswith("linux"):
        return 0
    with suppress(OSError, ValueError, IndexError):
        (own, *_), (peer, port, *_) = sock.getsockname(), sock.getpeername()
        if own == peer and _listens(int(found[1]), port):
            return int(found[1])
    return 0


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False for the id 0."""
    if not pid:
        return False
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def is_unacknowledged(sock: TransportSocket) -> bool:
    """Return whether the other machine has not acknowledged all bytes that were sent to it.

    The result is False if the kernel cannot tell.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return False
    return int.from_bytes(state[_UNACKED_AT:_TCP_INFO_BYTES], sys.byteorder) > 0


def _listens(pid: int, port: int) -> bool:
    """Return whether the process has a socket that listens at the port.

    Only the descriptors below `_LISTENING_BELOW` are read.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    folder = _PROC / str(pid) / "fd"
    low = (name for name in os.listdir(folder) if int(name) < _LISTENING_BELOW)
    return bool(sockets) and any(os.readlink(folder / name) in sockets for name in low)


def _listening(port: int) -> set[str]:
    """Return the inodes of the sockets that listen at the port."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(words[9])
    return inodes
