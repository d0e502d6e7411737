"""Links to the shard: a blocking link for each thread that runs commands, and asynchronous links for the job loop.

A link is a connection that has sent `QA.HELLO`. Replies have hiredis's types: bytes, int, list, None, and
`hiredis.ReplyError` objects for errors, which `execute` raises as `GearsError`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import hiredis

from .failures import GearsError
from .memory import begin_receiving, end_receiving
from .shard import PROTOCOL_VERSION, ShardInfo, Start, refused_by_tls

Argument = str | bytes | bytearray | memoryview | int | float
Reply = Any  # bytes | int | float | list[Reply] | None | hiredis.ReplyError
REPLY_TIMEOUT_SECONDS = 60.0
HOLD_SECONDS = 0.005
_CHUNK = 1 << 16
BIG_REPLY = 1 << 20
_BIG_CHUNK = 1 << 20


def encode(arguments: Sequence[Argument]) -> bytes:
    """Return a command as RESP."""
    packed: bytes
    try:
        # a memoryview with gaps would be packed wrongly
        plain = tuple(arguments) if memoryview not in map(type, arguments) else _plain(arguments)
        packed = hiredis.pack_command(plain)  # type: ignore[arg-type]
    except TypeError:  # an argument is a bytearray
        packed = hiredis.pack_command(_plain(arguments))  # type: ignore[arg-type]
    return packed


def _plain(arguments: Sequence[Argument]) -> tuple[str | bytes | int | float, ...]:
    return tuple([bytes(a) if isinstance(a, (bytearray, memoryview)) else a for a in arguments])


def raise_on_error(reply: Reply) -> Reply:
    """Return the reply; raise an error reply as GearsError."""
    if isinstance(reply, hiredis.ReplyError):
        text = str(reply)
        if text.startswith(("MOVED ", "ASK ")):
            raise GearsError(f"Operation not permitted: the key is in another shard ({text})")
        raise GearsError(text)
    return reply


class BlockingLink:
    """One connection, used by one thread.

    Attributes:
        owed: whether the reply to a sent command has not been read. After an interrupted read, the link is unusable,
            because the late reply would be read as the reply to the next command.
    """

    def __init__(self, start: Start) -> None:
        self.owed = False
        self._socket = start.connect()
        self._socket.settimeout(REPLY_TIMEOUT_SECONDS)
        self._reader = hiredis.Reader()
        self.info = ShardInfo.parse(self.execute("QA.HELLO", PROTOCOL_VERSION, start.token))

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._socket.fileno()

    def execute(self, *arguments: Argument) -> Reply:
        """Send one command and wait for its reply. Raise an error reply as GearsError."""
        data = encode(arguments)
        self.owed = True  # set first, because a function may be interrupted between any two of these lines
        self._transmit(data)
        reply = self.read()
        self.owed = False
        return raise_on_error(reply)

    def execute_many(self, commands: Iterable[Sequence[Argument]]) -> list[Reply]:
        """Send all commands at once; read and return all replies.

        Error replies are objects in the list.
        """
        packed = [encode(command) for command in commands]
        if not packed:
            return []
        gets, read = self._reader.gets, self.read
        self.owed = True
        self._transmit(b"".join(packed))
        replies = [read() if (reply := gets()) is False else reply for _ in packed]
        self.owed = False
        return replies

    def send(self, *arguments: Argument) -> None:
        """Send one command without reading its reply. The caller must read the reply later (`read`)."""
        self._transmit(encode(arguments))

    def _transmit(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise GearsError(f"WORKERLOST the link to the shard broke while a command was sent: {error}") from error

    def read(self) -> Reply:
        """Wait for the next reply and return it. An error reply is returned as an object.

        If the wait fails or is interrupted, close the connection and raise the error.
        """
        try:
            return self._read()
        except BaseException:  # the rest of this reply must not be read as the next reply
            self.close()
            raise

    def _read(self) -> Reply:
        reply = self._reader.gets()
        size = _CHUNK
        while reply is False:
            try:
                data = self._socket.recv(size)
            except TimeoutError as error:
                raise GearsError(f"ERR the shard did not answer within {REPLY_TIMEOUT_SECONDS:.0f} s") from error
            except OSError as error:
                raise GearsError(f"WORKERLOST the link to the shard broke: {error}") from error
            if not data:
                raise GearsError("WORKERLOST the shard closed the link")
            if len(data) == size:
                size = _BIG_CHUNK
            self._reader.feed(data)
            reply = self._reader.gets()
        return reply

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class LinkPool:
    """A blocking link for each thread. Replaces a broken link and a link with an unread reply."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._local = threading.local()

    def link(self) -> BlockingLink:
        """Return the calling thread's link. Open a new link if the thread has no link that can be used."""
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None or link.closed or link.owed:
            # A link with an unread reply is not closed here: a finalizer may call this method while a command of
            # the same thread still waits for its reply.
            link = self._local.link = BlockingLink(self._start)
        return link


class AsyncLink(asyncio.Protocol):
    """A link of the event loop. Each reply is passed to the callback of its command."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._reader = hiredis.Reader()
        self._callbacks: deque[Callable[[Reply], None]] = deque()
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._gathered_since: float | None = None
        self._unread = 0  # bytes since the last whole reply
        self._receiving = False

    @classmethod
    async def open(cls, start: Start, lost: Callable[[], None]) -> AsyncLink:
        """Connect and send `QA.HELLO`. `lost` is called when the connection ends."""
        connection = start.connect_plain()
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        if connection.family == socket.AF_UNIX:
            _, link = await loop.create_unix_connection(lambda: cls(lost), sock=connection)
        elif start.speaks_tls:
            try:
                _, link = await loop.create_connection(
                    lambda: cls(lost), sock=connection, ssl=start.tls_context(), server_hostname=""
                )
            except ssl.SSLError as error:
                raise refused_by_tls(error) from error
        else:
            _, link = await loop.create_connection(lambda: cls(lost), sock=connection)
        hello: asyncio.Future[Reply] = loop.create_future()
        link.call(hello.set_result, "QA.HELLO", PROTOCOL_VERSION, start.token)
        ShardInfo.parse(raise_on_error(await hello))
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio's callback)."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport has a different class with the same methods

    def call(self, callback: Callable[[Reply], None], *arguments: Argument) -> None:
        """Send a command at once. `callback` gets the reply, which may be an error object."""
        self._queue(callback, arguments)
        self._flush()

    async def ping(self) -> None:
        """Wait until all earlier commands have run."""
        ran: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.call(ran.set_result, "PING")
        await ran

    def hold(self, callback: Callable[[Reply], None], *arguments: Argument) -> None:
        """Send a command together with the next command that is sent, but at the latest after `HOLD_SECONDS`.

        This saves a system call and a wake-up of the server. `callback` gets the reply, which may be an error object.
        """
        first = not self._held
        self._queue(callback, arguments)
        if first:
            asyncio.get_running_loop().call_later(HOLD_SECONDS, self._flush)

    def gather(self, callback: Callable[[Reply], None], *arguments: Argument) -> None:
        """Send a command at the end of this iteration of the event loop, together with the iteration's other commands.

        If the iteration lasts longer than `HOLD_SECONDS`, the next call sends the collected commands earlier.
        """
        self._queue(callback, arguments)
        now = time.monotonic()
        if self._gathered_since is None:
            self._gathered_since = now
            asyncio.get_running_loop().call_soon(self._flush)
        elif now - self._gathered_since > HOLD_SECONDS:
            self._flush()

    def _queue(self, callback: Callable[[Reply], None], arguments: Sequence[Argument]) -> None:
        if self._transport is None:
            raise GearsError("ERR the link is not connected")
        # encode before adding the callback: after a failed encoding, a callback would remain and get another command's
        # reply
        self._held.append(encode(arguments))
        self._callbacks.append(callback)

    def _flush(self) -> None:
        if self._held and self._transport is not None:
            self._transport.write(b"".join(self._held))
        self._held.clear()
        self._gathered_since = None

    def data_received(self, data: bytes) -> None:
        """Pass all complete replies to their callbacks (asyncio's callback)."""
        self._unread += len(data)
        if self._unread > BIG_REPLY and not self._receiving:
            self._receiving = True
            begin_receiving()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._unread = 0
            self._callbacks.popleft()(reply)
        if self._receiving and not self._unread:
            if not self._reader.has_data():
                self._reader = hiredis.Reader()  # the old reader would keep its large buffer
            self._receiving = False
            end_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection (asyncio's callback)."""
        self._transport = None
        self._lost()
