"""Atomic blocks of interrupted functions, and blocks that end late. The test plays the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import hiredis
import pytest

from qa_cluster.gears.scripts.calling.sections import Aborted, CodeSection
from qa_cluster.gears.scripts.host import atomic
from qa_cluster.gears.scripts.host.atomic import AtomicBlock, atomic_block
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.link import BlockingLink

LEASE_MS = 30_000


class Shard:
    """The server's side of atomic blocks; `commands` has the received commands in order."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.grant: bytes | None = b"+GO\r\n"
        self._control, self.control = socket.socketpair()
        self._threads = [threading.Thread(target=self._serve_control, daemon=True)]
        self._threads[0].start()
        self._waiting: socket.socket | None = None
        self._local = threading.local()

    def link(self) -> BlockingLink:
        """The calling thread's link, or a new link if that link is closed."""
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None or link.closed:
            ours, theirs = socket.socketpair()
            link = self._local.link = BlockingLink.__new__(BlockingLink)
            link.owed, link._socket, link._reader = False, theirs, hiredis.Reader()
            self._threads.append(threading.Thread(target=self._serve_link, args=(ours,), daemon=True))
            self._threads[-1].start()
        return link

    def lose_links(self) -> None:
        """Close the link of the block that is open."""
        if self._waiting is not None:
            self._waiting.shutdown(socket.SHUT_RDWR)

    def _serve_link(self, link: socket.socket) -> None:
        for name in received(link):
            self.commands.append(name)
            if name != "QA.ATOMIC":
                link.sendall(b"+OK\r\n+link\r\n" if link is self._waiting else b"+link\r\n")
            elif self.grant is None:
                link.sendall(b"-ERR refused\r\n")
            else:
                self._waiting = link
                self._control.sendall(self.grant)

    def _serve_control(self) -> None:
        for name in received(self._control):
            self.commands.append(f"control {name}")
            if name != "END":
                self._control.sendall(b"+inside\r\n")
            elif self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                waiting.sendall(b"+OK\r\n")

    def close(self) -> None:
        self._control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        self._threads[0].join()
        self._control.close()


def received(connection: socket.socket) -> Iterator[str]:
    """The names of the commands that arrive until the client closes the connection."""
    reader = hiredis.Reader()
    while data := connection.recv(1 << 16):
        reader.feed(data)
        while (command := reader.gets()) is not False:
            yield command[0].decode()
    connection.close()


@pytest.fixture
def shard() -> Iterator[Shard]:
    played = Shard()
    yield played
    played.close()


@pytest.fixture
def block(shard: Shard) -> AtomicBlock:
    return AtomicBlock(shard.control, cast(Any, SimpleNamespace(link=shard.link)), LEASE_MS)


def interrupted(section: CodeSection, code: Callable[[], object]) -> BaseException | None:
    """Run code that another thread interrupts; return the exception that ended the section."""
    try:
        section.run(code)
    except BaseException as error:
        return error
    return None


def interrupt(section: CodeSection) -> None:
    """Interrupt the section from another thread, and wait for the interruption."""
    thread = threading.Thread(target=section.interrupt)
    thread.start()
    while True:
        thread.join(0.001)


def test_an_interruption_ends_the_block_before_the_code_of_the_function_continues(
    shard: Shard, block: AtomicBlock
) -> None:
    section = CodeSection()
    seen: list[object] = []

    def function() -> None:
        try:
            with atomic_block(block):
                block.execute("SET", "a", "1")
                interrupt(section)
        finally:
            seen.extend((block.entered_here, block.active, shard.link().execute("DEL", "lock")))

    assert isinstance(interrupted(section, function), Aborted)
    assert seen == [False, False, b"link"]
    assert shard.commands == ["QA.ATOMIC", "control SET", "control END", "DEL"]
    block.abandon(section)  # no effect: the block has ended
    with atomic_block(block):
        assert block.execute("GET", "a") == b"inside"


def test_a_block_left_open_ends_with_its_section(shard: Shard, block: AtomicBlock) -> None:
    section = CodeSection()
    opened = atomic_block(block)
    section.run(opened.__enter__)
    block.abandon(CodeSection())  # no effect: the section of another function
    assert block.entered_here
    block.abandon(section)
    assert not block.entered_here
    assert not block.active
    assert shard.commands == ["QA.ATOMIC", "control END"]


def test_leaving_an_abandoned_block_late_does_not_end_the_next_block(shard: Shard, block: AtomicBlock) -> None:
    def suspended() -> Iterator[None]:
        with atomic_block(block):
            yield

    section = CodeSection()
    late = suspended()
    section.run(lambda: next(late))
    block.abandon(section)
    with atomic_block(block):
        late.close()  # type: ignore[attr-defined]
        assert block.entered_here
        assert block.execute("GET", "a") == b"inside"
    assert shard.commands == ["QA.ATOMIC", "control END", "QA.ATOMIC", "control GET", "control END"]


def test_a_block_ends_when_its_link_is_lost(shard: Shard, block: AtomicBlock) -> None:
    with pytest.raises(GearsError, match="WORKERLOST"), atomic_block(block):
        shard.lose_links()
    assert not block.entered_here
    assert not block.active
    with atomic_block(block):
        assert block.execute("GET", "a") == b"inside"


@pytest.mark.parametrize(("grant", "error"), [(None, "ERR refused"), (b"+stale\r\n", "ERR the server gave no reply")])
def test_a_refused_block_leaves_no_link_with_an_unread_reply(
    shard: Shard, block: AtomicBlock, grant: bytes | None, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.grant = grant
    monkeypatch.setattr(atomic, "_MARGIN_SECONDS", 3.0 - LEASE_MS / 1000)
    with pytest.raises(GearsError, match=error), atomic_block(block):
        pytest.fail("it did not begin")
    assert not block.active
    assert shard.link().execute("PING") == b"link"


def test_a_shield_inside_a_shield_does_not_end_the_outer_shield(block: AtomicBlock) -> None:
    section = CodeSection()

    def function() -> None:
        with atomic_block(block):
            pass

    with contextlib.ExitStack() as stack:
        section.run(lambda: None)
        section.shield()
        stack.callback(section.unshield)
        section.run(function)
        assert section.is_shielded
