"""Atomic blocks: for a short time, the server serves only this worker.

The *lease* of a block is its time limit. A thread sends `QA.ATOMIC` on its link, which is its own connection to the
server. The server grants the block with ``+GO`` on the control socket, which connects the module and the worker. Then
the commands and replies of the block use this socket until the command ``END``.

A block belongs to the thread that has entered it. Other threads wait for the end of the block. If a function waits too
long inside its block, the lease ends, and the next thread may enter a block. A coroutine must not wait inside a block;
`guarded` enforces this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import hiredis

from ...shard.failures import GearsError
from ...shard.link import Argument, BlockingLink, LinkPool, Reply, encode, raise_on_error
from ..calling.sections import CodeSection, current_section, shielded

logger = logging.getLogger(__name__)
_MARGIN_SECONDS = 5.0
_END_SECONDS = 0.5


class AtomicEntry:
    """One `with atomic():` of a function.

    Attributes:
        section: the section that runs the code of the function; None if the code runs outside a section.
        link: the link on which the server reports the end of the block; None before the start of the block.
    """

    __slots__ = ("link", "section")

    def __init__(self) -> None:
        self.section = current_section()
        self.link: BlockingLink | None = None


class _ThreadLocal(threading.local):
    entry: AtomicEntry | None = None


class AtomicBlock:
    """The worker's atomic block. At most one block exists at a time.

    During a block, only the thread of the block reads the control socket. When the thread leaves the block, it calls
    `ended`, so that the worker's event loop watches the socket again. `ended` is not called if another thread has
    entered its own block after the end of the lease.
    """

    def __init__(
        self, control: socket.socket, links: LinkPool, lease_ms: int, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._control = control
        self._links = links
        self._lease_ms = lease_ms
        self._ended = ended
        self._turn = threading.Condition()
        self._holder: int | None = None
        self._since = 0.0
        self._granted = False
        self._local = _ThreadLocal()
        self._reader = hiredis.Reader()

    @property
    def active(self) -> bool:
        """Whether a thread is using the control socket."""
        return self._holder is not None

    def begin(self, entry: AtomicEntry) -> None:
        """Wait until the server serves only this worker, and set the link of `entry`; `leave` ends the block.

        Raises:
            Aborted: the function was interrupted.
            GearsError: the thread is already inside a block, or the server does not grant a block.
        """
        if self.entered_here:
            raise GearsError("Already inside an atomic block")
        with shielded():
            self._take_turn()
            try:
                entry.link = self._begin()
            except BaseException:
                self._give_turn()
                raise
            self._since, self._granted = time.monotonic(), True
            self._local.entry = entry

    def _take_turn(self) -> None:
        """Wait until no other thread has a block, or until the lease of that block has expired.

        Then make the calling thread the only thread that may have a block.
        """
        with self._turn:
            while self._holder is not None and (left := self._over_at() - time.monotonic()) > 0:
                self._turn.wait(left)
            self._holder, self._since, self._granted = threading.get_ident(), time.monotonic(), False

    def _over_at(self) -> float:
        return self._since + self._lease_ms / 1000 + (_END_SECONDS if self._granted else _MARGIN_SECONDS)

    def drain(self) -> None:
        """Discard late replies on the control socket. Do nothing while a thread has a block and reads the socket."""
        with self._turn:
            if self._holder is None:
                self._control.recv(1 << 16, socket.MSG_DONTWAIT)

    def _give_turn(self) -> None:
        with self._turn:
            if self._holder != threading.get_ident():
                return
            self._holder, self._granted = None, False
            self._turn.notify()
        self._ended()

    def _begin(self) -> BlockingLink:
        link = self._links.link()
        link.owed = True  # stays True until the block ends, so that a command of a finalizer uses a different link
        try:
            link.send("QA.ATOMIC", self._lease_ms)
            self._await_grant(link)
        except BaseException:  # no other command may use this link, because it would read the late reply
            link.close()
            raise
        return link

    def _await_grant(self, link: BlockingLink) -> None:
        watched: list[socket.socket | BlockingLink] = [self._control, link]
        readable, _, _ = select.select(watched, [], [], self._lease_ms / 1000 + _MARGIN_SECONDS)
        if self._control not in readable:
            if link in readable:
                raise_on_error(link.read())
            raise GearsError("ERR the server did not grant an atomic block")
        self._reader = hiredis.Reader()
        while self._read() != b"GO":
            # A reply before GO belongs to a command or to the END of the previous block, whose lease had expired.
            continue

    @property
    def entered_here(self) -> bool:
        """Whether the calling thread is inside the block.

        Other threads send their commands on their own links, and get the replies after the end of the block.
        """
        return self._local.entry is not None

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command inside the block; return its reply, or raise an error reply as GearsError."""
        return raise_on_error(self.execute_many([arguments])[0])

    def execute_many(self, commands: list[tuple[Argument, ...]]) -> list[Reply]:
        """Run commands inside the block, one after the other; return their replies, with error replies as objects.

        Raise GearsError if the lease has expired and another thread has entered a block, or if a reply is too late.
        """
        replies = []
        for command in commands:
            if self._holder != threading.get_ident():
                raise GearsError(f"ERR atomic block exceeded its lease of {self._lease_ms} ms")
            with shielded():
                self._control.sendall(encode(command))
                replies.append(self._read())
        return replies

    def leave(self, entry: AtomicEntry) -> None:
        """End the block of this entry if it has not ended. This also works in an interrupted function.

        Raises:
            Aborted: the function was interrupted; the block has ended.
            GearsError: the lease had already ended.
        """
        with shielded(late=True):
            if self._local.entry is entry:  # a late finalizer may run while the thread is in the next block
                self._end(entry)

    def abandon(self, section: CodeSection) -> None:
        """End a block that the code of `section` has not ended.

        Call this on the section's thread after its code has ended.

        The code leaves a block open if an abort interrupts it just before `leave`.
        """
        entry = self._local.entry
        if entry is not None and entry.section is section:
            try:
                self._end(entry)
            except (GearsError, OSError) as error:  # for example, the lease of the block has ended
                logger.warning("cannot end an atomic block that a function has not ended: %s", error)

    def _end(self, entry: AtomicEntry) -> None:
        link = entry.link
        try:
            if link is None:
                return
            if self._holder == threading.get_ident() and not self._lease_ended(link):
                self._control.sendall(encode(("END",)))
            reply = link.read()
            link.owed = False
            raise_on_error(reply)
        finally:
            self._local.entry = None
            self._give_turn()

    @staticmethod
    def _lease_ended(link: BlockingLink) -> bool:
        """Return whether the module has ended the block.

        If so, the reply to `QA.ATOMIC` has arrived on the link.
        """
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


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@types.coroutine
def guarded(
    coroutine: Coroutine[Any, Any, Any], block: AtomicBlock, section: CodeSection | None = None
) -> Generator[Any, Any, Any]:
    """Run a function's coroutine. If an `await` would wait inside an atomic block, it raises GearsError instead.

    With `section`, the code of the coroutine runs in this section. If the coroutine then ends without ending its atomic
    block, this function ends the block.
    """
    run = section.run if section is not None else _call
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            try:
                awaited = run(coroutine.send, value) if error is None else run(coroutine.throw, error)
            except BaseException:
                if section is not None:
                    block.abandon(section)
                raise
        except StopIteration as stop:
            return stop.value
        value = error = None
        if block.entered_here:
            error = GearsError("await is not allow inside atomic block")
            if isinstance(awaited, asyncio.Future):
                awaited.cancel()
            continue
        try:
            value = yield awaited
        except BaseException as thrown:  # including a cancellation, which the coroutine must handle
            error = thrown


@contextlib.contextmanager
def atomic_block(block: AtomicBlock) -> Generator[None]:
    """The context manager of a function's `with atomic():`."""
    entry = AtomicEntry()
    try:
        block.begin(entry)
        yield
    finally:
        block.leave(entry)
