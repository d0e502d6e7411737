"""One RESP3 connection to a shard. It writes commands, returns the replies in order, and passes pushes to a callback. A
*push* is a message that a server sends without a command, for example about a changed key.

The connection uses only hiredis' packer and parser, because the processor time per command limits how many questions
two cores can answer. A `GET` takes 7 µs here, and 23 µs on a pooled connection of redis-py. `shards` does the routing
and the retries.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.security.local_password import LocalServers
from qa_cluster.security.tls import ALERT, SPEAKS_TLS, explain_closed, explain_failure

from .on_behalf import CLIENT_NAME

Argument = str | bytes | int | float
MAX_PENDING = 4096
_NOT_YET = object()


class ConnectionLost(ClusterError):
    """The connection was lost before the reply arrived. The command may or may not have run."""


class NoReply(ConnectionLost):
    """The server did not respond to a connection or a command in time."""


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials, the encryption and the timeout for opening a connection.

    Attributes:
        username: None means the user ``default``.
        password: None means that the connection does not authenticate.
        tls: None means that the connection is not encrypted.
        only: the servers that may receive the password; None means all servers of the cluster.
    """

    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout_seconds: float = 2.0
    only: LocalServers | None = None

    def need(self, host: str, port: int) -> None:
        """Raise ConnectionLost if the server at this address must not receive the password."""
        if self.only is not None and not self.only.include(host, port):
            raise ConnectionLost(
                f"{host}:{port} is not a server of the local cluster in {str(self.only.data_dir)!r}, so it does not"
                " receive the cluster's password: another program may have joined the cluster (docs/operations.md)"
            )

    def __repr__(self) -> str:
        secret = "None" if self.password is None else "'***'"
        return f"Login(username={self.username!r}, password={secret}, tls={self.tls is not None})"


class Connection(asyncio.Protocol):
    """A pipelining connection.

    `send` writes at once and returns a future. The result of the future is the reply or an error object; the future
    never raises. `execute` raises `ReplyError` and `ConnectionLost`.

    Args:
        on_push: called with each push of the server; None: pushes are discarded.
        on_lost: called once with the connection, when the connection is lost or closed.
    """

    def __init__(
        self,
        on_push: Callable[[list[Any]], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=ReplyError, replyError=ReplyError, notEnoughData=_NOT_YET)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._on_push = on_push
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self.name = CLIENT_NAME
        self.closed = False

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        login: Login,
        *,
        on_push: Callable[[list[Any]], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> Connection:
        """Connect, switch to RESP3 and authenticate.

        Raises:
            NoReply: the server did not answer in time.
            ConnectionLost: the connection cannot be opened or is lost, or the server must not receive the password.
            ClusterError: the server refused the login. All these errors name the address of the server.
        """
        loop = asyncio.get_running_loop()
        login.need(host, port)
        try:
            async with asyncio.timeout(login.connect_timeout_seconds):
                name = host if login.tls else None
                _, connection = await loop.create_connection(
                    lambda: cls(on_push, on_lost), host, port, ssl=login.tls, server_hostname=name
                )
                try:
                    hello: list[Argument] = ["HELLO", 3]
                    if login.password is not None:
                        hello += ["AUTH", login.username or "default", login.password]
                    await connection.execute(*hello, "SETNAME", CLIENT_NAME)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise NoReply(f"{host}:{port} did not answer in {login.connect_timeout_seconds:g} s") from error
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {host}:{port}: {explain_failure(error) or error.strerror or error}"
            ) from error
        except ConnectionLost as error:  # with TLS 1.3, a server refuses a client's certificate after the handshake
            why = explain_closed(error, tls=login.tls is not None)
            raise ConnectionLost(f"cannot connect to {host}:{port}: {why}") from error
        except ReplyError as error:
            raise ClusterError(
                f"{host}:{port} refused the login: {str(error).rstrip('.')}; see setting 'cluster_password'"
                " (QA_CLUSTER_PASSWORD), or the user and password in 'cluster_url'"
            ) from error
        return connection

    @property
    def pending(self) -> int:
        """The number of commands whose replies have not arrived."""
        return len(self._waiting)

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 if it is closed."""
        sock = self.socket
        return -1 if sock is None else int(sock.fileno())

    @property
    def socket(self) -> TransportSocket | None:
        """The socket; None if it is closed."""
        if self._transport is None or self.closed:
            return None
        found: TransportSocket | None = self._transport.get_extra_info("socket")
        return found

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """Write one command; the result of the future is the reply, a `ReplyError` or a `ConnectionLost`."""
        return self.send_many((command,))[0]

    def send_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[asyncio.Future[Any]]:
        """Write several commands at once; return a future for each, as `send` does."""
        futures: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in commands]
        if self.closed or self._transport is None:
            for future in futures:
                future.set_result(ConnectionLost("connection is closed"))
            return futures
        if len(self._waiting) + len(commands) > MAX_PENDING:
            for future in futures:
                future.set_result(ConnectionLost(f"more than {MAX_PENDING} replies are pending on one connection"))
            return futures
        self._waiting.extend(futures)
        packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
        self._transport.write(b"".join(packed))
        return futures

    async def execute(self, *command: Argument) -> Any:
        """Send one command and return its reply; raises `ReplyError` or `ConnectionLost`."""
        reply = await self.send(*command)
        if isinstance(reply, ReplyError | ConnectionLost):
            raise reply
        return reply

    def close(self) -> None:
        """Close at once. Commands without a reply get `ConnectionLost`."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport. The event loop calls this method when the socket is open."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the server, and pass on each complete reply or push.

        The event loop calls this method. Bytes that are not RESP close the connection.
        """
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOT_YET:
                if type(reply) is hiredis.PushNotification:
                    if self._on_push is not None:
                        self._on_push(reply)
                elif self._waiting:
                    future = self._waiting.popleft()
                    if not future.done():
                        future.set_result(reply)
        except ReplyError:  # the parser raises its error class: these bytes are not RESP
            if data.startswith(ALERT):
                self._fail(SPEAKS_TLS)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the commands without a reply. The event loop calls this method when the socket is closed."""
        self._fail("connection was lost" if exc is None else f"connection was lost: {exc}", exc)

    def _fail(self, why: str, cause: Exception | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                lost = ConnectionLost(why)
                lost.__cause__ = cause
                future.set_result(lost)
        if self._on_lost is not None:
            self._on_lost(self)
