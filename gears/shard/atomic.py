"""Atomic blocks: for a short lease the server serves this worker only.

`QA.ATOMIC` is sent on the thread's link; from ``+GO`` on, commands and replies go over the control socket, until
``END``. The block belongs to the thread that runs functions; a coroutine must not wait inside it, which `guarded`
enforces.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import types
from collections.abc import Coroutine, Generator
from typing import Any

import hiredis

from .failures import GearsError
from .link import Argument, BlockingLink, LinkPool, Reply, encode, raise_on_error

_MARGIN_SECONDS = 5.0


class AtomicBlock:
    """The worker's atomic block: at most one at a time, on the thread of the functions."""

    def __init__(self, control: socket.socket, links: LinkPool, lease_ms: int) -> None:
        self._control = control
        self._links = links
        self._lease_ms = lease_ms
        self._thread = threading.get_ident()
        self._reader = hiredis.Reader()
        self.active = False

    def begin(self) -> None:
        """Wait until the server serves this worker only."""
        if self.active:
            raise GearsError("Already inside an atomic block")
        if threading.get_ident() != self._thread:
            raise GearsError("an atomic block can only be entered in the thread of the functions")
        link = self._links.link()
        link.send("QA.ATOMIC", self._lease_ms)
        watched: list[socket.socket | BlockingLink] = [self._control, link]
        readable, _, _ = select.select(watched, [], [], self._lease_ms / 1000 + _MARGIN_SECONDS)
        if self._control not in readable:
            if link in readable:
                raise_on_error(link.read())
            link.close()
            raise GearsError("ERR the server did not grant an atomic block")
        self._reader = hiredis.Reader()
        while isinstance(self._read(), hiredis.ReplyError):
            # an error here answers the END of the last block, which came after its lease had ended
            continue
        self.active = True

    @property
    def entered_here(self) -> bool:
        """Whether the calling thread is inside the block. Other threads' commands wait, on their own links."""
        return self.active and threading.get_ident() == self._thread

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command inside the block."""
        self._control.sendall(encode(arguments))
        return raise_on_error(self._read())

    def execute_many(self, commands: list[tuple[Argument, ...]]) -> list[Reply]:
        """Run commands inside the block; errors stay in the list as objects."""
        replies = []
        for command in commands:
            self._control.sendall(encode(command))
            replies.append(self._read())
        return replies

    def end(self) -> None:
        """End the block; GearsError if the lease had already ended."""
        self.active = False
        link = self._links.link()
        if not self._lease_ended(link):
            self._control.sendall(encode(("END",)))
        raise_on_error(link.read())

    @staticmethod
    def _lease_ended(link: BlockingLink) -> bool:
        """Whether the module has ended the block by itself: then the reply to `QA.ATOMIC` is there."""
        return bool(select.select([link], [], [], 0)[0])

    def _read(self) -> Reply:
        reply = self._reader.gets()
        while reply is False:
            ready, _, _ = select.select([self._control], [], [], self._lease_ms / 1000 + _MARGIN_SECONDS)
            data = self._control.recv(1 << 16) if ready else b""
            if not data:
                raise GearsError("ERR the server gave no reply inside the atomic block")
            self._reader.feed(data)
            reply = self._reader.gets()
        return reply


@types.coroutine
def guarded(coroutine: Coroutine[Any, Any, Any], block: AtomicBlock) -> Generator[Any, Any, Any]:
    """Drive a coroutine of a function; an `await` that would wait inside an atomic block raises in it instead."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            return stop.value
        value = error = None
        if block.active:
            error = GearsError("await is not allow inside atomic block")
            if isinstance(awaited, asyncio.Future):
                awaited.cancel()
            continue
        try:
            value = yield awaited
        except BaseException as thrown:  # also a cancellation: the coroutine decides what to do
            error = thrown


@contextlib.contextmanager
def atomic_block(block: AtomicBlock) -> Generator[None]:
    """The context manager of a function's `with atomic():`."""
    block.begin()
    try:
        yield
    finally:
        block.end()
