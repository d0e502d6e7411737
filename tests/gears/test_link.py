"""Links do not mix up replies after an interruption. They pack whole commands, and send reports together."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import hiredis
import pytest

from qa_cluster.errors import WorkerLost, from_reply
from qa_cluster.gears.scripts.calling.sections import Aborted
from qa_cluster.gears.shard import link as link_module
from qa_cluster.gears.shard.failures import GearsError, error_line
from qa_cluster.gears.shard.link import AsyncLink, BlockingLink, LinkPool, encode
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


def test_a_reply_that_does_not_fit_into_memory_ends_the_link(ends: tuple[BlockingLink, socket.socket]) -> None:
    link, shard = ends
    shard.sendall(b"$100\r\nhalf")
    link._reader = Exhausted()  # type: ignore[assignment]
    with pytest.raises(MemoryError):
        link.execute("GET", "big")
    assert link.closed


def echo(theirs: socket.socket) -> None:
    """Answers every command with its last argument, in two pieces."""
    reader = hiredis.Reader()
    theirs.sendall(HELLO)
    with theirs, suppress(OSError):
        while data := theirs.recv(1 << 16):
            reader.feed(data)
            while (command := reader.gets()) is not False:
                if command[0] != b"QA.HELLO":
                    head, tail = b"$%d\r\n" % len(command[-1]), b"%b\r\n" % command[-1]
                    theirs.sendall(head)
                    theirs.sendall(tail)


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Interrupt the call before this step of the link's bytecode; return whether the call reached the step."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        if frame.f_code.co_filename != link_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Aborted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Aborted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupted_function_leaves_no_reply_for_the_next_command(
    monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """After an interruption at any step, the next command on the thread gets its own reply."""

    opened: list[socket.socket] = []

    def connect(_: Start) -> socket.socket:
        ours, theirs = socket.socketpair()
        opened.append(ours)
        threading.Thread(target=echo, args=(theirs,), daemon=True).start()
        return ours

    monkeypatch.setattr(Start, "connect", connect)
    pool, step = LinkPool(Start(1, "token", "", "", 0)), 0

    def call() -> None:
        if many:
            pool.link().execute_many([("ECHO", "interrupted"), ("ECHO", "too")])
        else:
            pool.link().execute("ECHO", "interrupted")

    pool.link()
    while interrupted_at(step, call):
        step += 1
        assert pool.link().execute("ECHO", str(step)) == str(step).encode()
    assert step > 50
    for each in opened:
        each.close()


def test_a_broken_link_is_reported_as_a_lost_worker(ends: tuple[BlockingLink, socket.socket]) -> None:
    """A killed connection ends the worker, so the error of the caller asks for a retry."""
    link, shard = ends
    shard.sendall(b"$100\r\nhalf")
    shard.close()
    with pytest.raises(GearsError) as broke:
        link.execute("GET", "big")
    assert link.closed
    assert isinstance(from_reply(error_line(broke.value)), WorkerLost)


@pytest.mark.parametrize("value", [b"ab", "ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]])
def test_a_command_is_packed_from_any_bytes_type(value: Any) -> None:
    assert encode(["SET", value, 1, 0.5]) == b"*4\r\n$3\r\nSET\r\n$2\r\nab\r\n$1\r\n1\r\n$3\r\n0.5\r\n"


class Derived(bytearray):
    """A type that a function derives."""


def test_a_command_can_have_derived_types_and_no_others() -> None:
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
