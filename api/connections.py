"""Bounds what a connection may cost, and takes nothing for a request that is none.

uvicorn ends a connection that is idle after an answer, and no other: one that sends nothing, one whose head never ends
and one that does not read its answer would stay for ever, and so many of them as there are file descriptors. Here each
has a time, a head has a size, and the process has a number of connections. Bodies have their own time (`http.py`).

Fields after a chunked body (trailers) are dropped: uvicorn would add them to those of the head, without end, and no
proxy has looked at them. A request that asks for another protocol (`Upgrade`) is one like any other: the parser takes
what follows its head for that protocol, so its body would be lost, and what is in it would be the next request.
"""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qa_cluster.errors import QueueFull

from .http.error_map import HttpProblem, RawHeaders, problem

MAX_HEAD_BYTES = 64 * 1024
# So much is read at once: requests that a client sends without waiting for answers take a hundred times their size.
PIECE_BYTES = 4096
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of connections.

    Attributes:
        connections: most at once; one more takes the place of the one that has been idle longest, or is answered 503.
        head_seconds: longest time for the head of a request, from the connection or its first byte on.
        stall_seconds: longest time in which a client takes nothing of its answer.
        idle_seconds: longest time between an answer and the next request.
    """

    connections: int
    head_seconds: float
    stall_seconds: float
    idle_seconds: float


def bounded(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The protocol that uvicorn makes for each connection."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits."""

    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_message = self._in_head = False
        self._replaying = False  # the head of this request is read once more, by another parser
        self._got_on = False  # the bytes that came last ended a head or a message, or were a body
        self._kept_bytes = 0  # those since then, which the parser may keep
        self._held = b""  # what has come and was not read
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.timeout_keep_alive = self.limits.idle_seconds  # type: ignore[assignment]  # uvicorn's are whole seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; one connection too many ends an idle one, or is refused."""
        super().connection_made(transport)
        if self._is_one_too_many() and not self._end_an_idle_one():
            most = self.limits.connections
            self._refuse(QueueFull(f"{most} connections are open, the limit (http_max_connections)"))
        else:
            self._arm_head()

    def _is_one_too_many(self) -> bool:
        most = self.limits.connections
        return len(self.connections) > most and sum(not each._is_gone() for each in self._all()) > most

    def _all(self) -> list[BoundedProtocol]:
        return [each for each in self.connections if isinstance(each, BoundedProtocol)]

    def _is_gone(self) -> bool:
        """Whether it is closed and has nothing left to send: the loop has yet to say that it is lost.

        With TLS the loop waits for the other side's farewell first: such a connection counts until it is lost.
        """
        transport = self.transport
        return (
            transport.is_closing()
            and not transport.get_write_buffer_size()
            and transport.get_extra_info("ssl_object") is None
        )

    def _end_an_idle_one(self) -> bool:
        """Close the connection that has waited longest for its next request; whether there is one."""
        longest = min(self._all(), key=BoundedProtocol._idle_until)
        if longest._idle_until() == math.inf:
            return False
        # At once: a close waits for what the client does, and another could come in its place meanwhile.
        longest.transport.abort()
        return True

    def _idle_until(self) -> float:
        """When the loop's clock ends this idle connection; infinity if it is not idle, or has not sent its answer."""
        timer = self.timeout_keep_alive_task
        if timer is None or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return math.inf
        return timer.when()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._disarm_head()
        self._resumed()
        self._held = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; whatever is not part of a request under way must be over soon."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            self._parse(self._held + data)
        except httptools.HttpParserError:
            why = "the request is not HTTP/1.1, or its target has over 65535 bytes"
            self._refuse(HttpProblem("malformed-request", why))
            return
        if self._kept_bytes > MAX_HEAD_BYTES:
            self._refuse(HttpProblem("head-too-large", f"more than {MAX_HEAD_BYTES} bytes of header"))
            return
        if self._in_head or self._is_idle():
            # Bytes that begin no request end uvicorn's own timer, too.
            if self._head_timer is None:
                self._arm_head()
        else:
            self._disarm_head()

    def _parse(self, data: bytes) -> None:
        """Read bytes, and hold those back that come behind requests which wait for the answer to another one."""
        at = 0
        while at < len(data) and not self.pipeline and self._kept_bytes <= MAX_HEAD_BYTES:
            at += self._feed(data[at : at + PIECE_BYTES])
        self._held = data[at:]
        if self._held:
            self.flow.pause_reading()

    def _feed(self, piece: bytes) -> int:
        """Read bytes as HTTP/1.1, whatever other protocol the client would rather have; the number of those read."""
        self._got_on = False
        read = len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            read = int(upgrade.args[0])
            if framing := self._framing():
                self._expect_body(framing)
        if self._in_message and not self._got_on:
            self._kept_bytes += read
        return read

    def on_response_complete(self) -> None:
        """Begin to answer what waits; read on if nothing does."""
        super().on_response_complete()
        if self._held and not self.transport.is_closing():
            if self.pipeline:
                self.flow.pause_reading()  # uvicorn reads on after each answer
            else:
                self.data_received(b"")

    def _framing(self) -> bytes:
        """The lines of the head that say that there is a body, and where it ends."""
        names = (b"content-length", b"transfer-encoding")
        return b"".join(b"%b: %b\r\n" % field for field in self.headers if field[0] in names)

    def _expect_body(self, framing: bytes) -> None:
        """Make a parser that has read the head, and awaits its body."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._replaying = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
        finally:
            self._replaying = False

    def on_message_begin(self) -> None:
        """Count the head of a request."""
        if not self._replaying:
            super().on_message_begin()
            self._in_message = self._in_head = True
            self._kept_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take the target."""
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; one of the trailer is dropped."""
        if self._in_head and not self._replaying:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        if not self._replaying:
            self._in_head = False
            self._get_on()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand it to the application."""
        self._get_on()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole, unless the parser says so because of another protocol."""
        if self.parser.should_upgrade() and self._framing():
            return
        self._in_message = False
        self._get_on()
        super().on_message_complete()

    def _get_on(self) -> None:
        self._got_on, self._kept_bytes = True, 0

    def pause_writing(self) -> None:
        """Give a client that takes nothing its time."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken something."""
        self._resumed()
        super().resume_writing()

    def _resumed(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _arm_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_is_late)

    def _disarm_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if not self._is_idle():
            self._arm_head()  # the request before it is being answered
        elif self._in_head:
            seconds = self.limits.head_seconds
            detail = f"the head of the request took more than {seconds:g} s (http_head_timeout_ms)"
            self._refuse(HttpProblem("head-timeout", detail))
        else:
            self.transport.close()

    def _must_be_silent(self) -> bool:
        """Whether what is written now would be taken for the answer to another request, or for a part of one."""
        if self._in_message and not self._in_head:
            return self.cycle.response_started or bool(self.pipeline)
        return not self._is_idle()

    def _refuse(self, error: Exception) -> None:
        """Answer without the application, if that can be understood, and close."""
        if self._must_be_silent():
            self.transport.close()
            return
        request_id = os.urandom(6).hex()
        status, headers, body = problem(error, request_id=request_id, instance="")
        closing: RawHeaders = [
            *headers,
            (b"x-request-id", request_id.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in closing)
        self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, _PHRASES[status], lines, body))
        self.transport.close()
