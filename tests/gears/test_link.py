"""Links: they do not mix up replies after one breaks off, pack commands as a whole, and send reports together."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest

from qa_cluster.errors import WorkerLost, from_reply
from qa_cluster.gears.shard import link as link_module
from qa_cluster.gears.shard.failures import GearsError, error_line
from qa_cluster.gears.shard.link import AsyncLink, BlockingLink, encode
from qa_cluster.gears.shard.shard import Start

HELLO = b"*6\r\n$6\r\nworker\r\n:1\r\n$8\r\nshard_id\r\n$1\r\n0\r\n$7\r\ncluster\r\n:0\r\n"


class Exhausted:
    """A reader that has no memory for the next reply."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()

    def gets(self) -> Any:
        return self._reader.gets()

    def feed(self, data: bytes) -> None:
        raise MemoryError


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BlockingLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(Start, "connect", lambda _: ours)
        theirs.sendall(HELLO)
        yield BlockingLink(Start(1, "token", "", "", 0)), theirs


def test_a_reply_that_memory_does_not_suffice_for_ends_the_link(ends: tuple[BlockingLink, socket.socket]) -> None:
    link, shard = ends
    shard.sendall(b"$100\r\nhalf")
    link._reader = Exhausted()  # type: ignore[assignment]
    with pytest.raises(MemoryError):
        link.execute("GET", "big")
    assert link.closed


def test_a_broken_link_is_told_as_a_lost_worker(ends: tuple[BlockingLink, socket.socket]) -> None:
    """Killed connections take the worker with them, so callers may repeat their commands."""
    link, shard = ends
    shard.sendall(b"$100\r\nhalf")
    shard.close()
    with pytest.raises(GearsError) as broke:
        link.execute("GET", "big")
    assert link.closed
    assert isinstance(from_reply(error_line(broke.value)), WorkerLost)


@pytest.mark.parametrize("value", [b"ab", "ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]])
def test_a_command_is_packed_whatever_holds_its_bytes(value: Any) -> None:
    assert encode(["SET", value, 1, 0.5]) == b"*4\r\n$3\r\nSET\r\n$2\r\nab\r\n$1\r\n1\r\n$3\r\n0.5\r\n"


class Derived(bytearray):
    """A type of a function's own."""


def test_a_command_may_hold_derived_types_and_no_others() -> None:
    assert encode([Derived(b"PING")]) == b"*1\r\n$4\r\nPING\r\n"
    with pytest.raises(TypeError):
        encode(["PING", None])  # type: ignore[list-item]


async def test_gathered_commands_go_out_together_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(Start, "connect_plain", lambda _: ours)
    with ours, theirs:
        theirs.sendall(HELLO)
        lost = asyncio.Event()
        link = await AsyncLink.open(Start(1, "token", "", "", 0), lost.set)
        theirs.recv(1 << 16)
        theirs.setblocking(False)
        monkeypatch.setattr(link_module, "HOLD_SECONDS", 60.0)  # only the end of the turn sends the gathered reports
        link.gather(print, "A")
        link.gather(print, "B")
        with pytest.raises(BlockingIOError):
            theirs.recv(1 << 16)
        await asyncio.sleep(0)
        assert theirs.recv(1 << 16) == encode(["A"]) + encode(["B"])
        monkeypatch.setattr(link_module, "HOLD_SECONDS", 0.005)
        link.gather(print, "C")
        time.sleep(0.02)  # a function blocks the loop
        link.gather(print, "D")
        assert theirs.recv(1 << 16) == encode(["C"]) + encode(["D"])
        link.gather(print, "E")
        link.call(print, "F")
        assert theirs.recv(1 << 16) == encode(["E"]) + encode(["F"])
        await asyncio.sleep(0)
        link.gather(print, "G")
        await asyncio.sleep(0)
        assert theirs.recv(1 << 16) == encode(["G"])
        theirs.close()
        await lost.wait()
