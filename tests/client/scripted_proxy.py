"""A proxy in front of a server: it answers some commands itself and forwards all others in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import hiredis

from qa_cluster.errors import ReplyError

Reply = Sequence["Reply"] | bytes | int | float | None


class Proxy:
    """Listens on `port` for the clients of the server on `server_port`."""

    def __init__(self, port: int, server_port: int) -> None:
        self.port = port
        self.server_port = server_port
        self.clients: set[asyncio.StreamWriter] = set()
        self._listening: asyncio.Server | None = None

    def own_reply(self, command: list[bytes]) -> Callable[[], Awaitable[Reply]] | None:
        """A function that makes the proxy's reply, or None if the server replies. A disconnection cancels the reply."""
        raise NotImplementedError

    def afterwards(self, command: list[bytes]) -> Callable[[], Awaitable[None]] | None:
        """A function to run after the server's reply and before this client's next command, or None."""
        raise NotImplementedError

    async def listen(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.drop_clients()

    def drop_clients(self) -> None:
        """Close every connection."""
        for writer in list(self.clients):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        writers = [writer]
        try:
            upstream, to_server = await asyncio.open_connection("127.0.0.1", self.server_port)
            writers.append(to_server)
            commands: asyncio.Queue[list[bytes]] = asyncio.Queue()
            replies = _Replies(upstream, writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(_receive(reader, commands))
                group.create_task(replies.pass_on())
                group.create_task(self._work(commands, replies, to_server, writer))
        except* (ConnectionError, EOFError):  # the end of one task ends the other two tasks
            pass
        finally:
            for each in writers:
                each.close()
            self.clients.discard(writer)

    async def _work(
        self,
        commands: asyncio.Queue[list[bytes]],
        replies: _Replies,
        to_server: asyncio.StreamWriter,
        to_client: asyncio.StreamWriter,
    ) -> None:
        while True:
            command = await commands.get()
            own_reply = self.own_reply(command)
            if own_reply is None:
                replies.expect_one()
                to_server.write(hiredis.pack_command(tuple(command)))
                if afterwards := self.afterwards(command):
                    await replies.all()
                    await afterwards()
                continue
            await replies.all()
            try:
                reply = await own_reply()
            except ReplyError as error:
                to_client.write(f"-{error}\r\n".encode())
            else:
                to_client.write(_packed(reply))


def _packed(reply: Reply) -> bytes:
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, float):
        return b",%b\r\n" % repr(reply).encode()
    if reply is None:
        return b"_\r\n"
    return b"*%d\r\n" % len(reply) + b"".join(map(_packed, reply))


async def _receive(reader: asyncio.StreamReader, commands: asyncio.Queue[list[bytes]]) -> None:
    parser = hiredis.Reader()
    while data := await reader.read(65536):
        parser.feed(data)
        while (command := parser.gets()) is not False:
            commands.put_nowait(command)  # type: ignore[arg-type]
    raise EOFError("the client has left")


class _Replies:
    """Forwards complete replies of the server, and counts the replies that are due."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._due = 0
        self._none_due = asyncio.Event()
        self._none_due.set()

    def expect_one(self) -> None:
        self._due += 1
        self._none_due.clear()

    async def all(self) -> None:
        await self._none_due.wait()

    async def pass_on(self) -> None:
        parser = hiredis.Reader(notEnoughData=self)
        unsent = b""
        while data := await self._reader.read(65536):
            parser.feed(data)
            unsent += data
            while (reply := parser.gets()) is not self:
                self._due -= type(reply) is not hiredis.PushNotification
            if not parser.has_data():
                self._writer.write(unsent)
                unsent = b""
            if not self._due:
                self._none_due.set()
        raise EOFError("the server has left")
