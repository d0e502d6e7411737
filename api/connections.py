"""Limits the cost of a connection, and closes connections that send bytes other than HTTP.

uvicorn only closes connections that are idle after an answer. It would keep connections that send nothing, never finish
a head or never read their answer, until the process has no file descriptors left. This module limits the time of these
connections, the size of a head, and the number of connections. `http.messages` limits the time of a body.

Trailers (fields after a chunked body) are dropped: uvicorn would add any number of them to the head, and no proxy has
checked them. `Upgrade` is ignored: otherwise, the parser would treat the body as another protocol, and read the next
request from it.
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
# The number of bytes that are parsed at a time. Parsed pipelined requests take 100 times their size in memory.
PIECE_BYTES = 4096
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of connections.

    Attributes:
        connections: the limit of open connections. Above the limit, a new connection replaces the connection that has
            been idle longest. If no connection is idle, the new connection gets status 503.
        head_seconds: the time limit for the head of a request. For the first request of a connection, it starts with
            the connection, and for every later request with the first byte of the request.
        stall_seconds: how long a client may read no bytes of its answer.
        idle_seconds: how long a connection may be idle between an answer and the next request.
    """

    connections: int
    head_seconds: float
    stall_seconds: float
    idle_seconds: float


def bounded(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return a protocol class for uvicorn with these limits."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on time, size and number of connections."""

    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_message = self._in_head = False
        self._replaying = False  # a new parser reads the head of this request again
        self._progressed = False  # the last bytes ended a head or a message, or were a body
        self._kept_bytes = 0  # bytes since the last progress, which the parser may keep
        self._held = b""  # received bytes that are not parsed yet
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.timeout_keep_alive = self.limits.idle_seconds  # type: ignore[assignment]  # uvicorn expects whole seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection. Above the limit, close an idle connection, or refuse the new connection."""
        super().connection_made(transport)
        if self._is_above_limit() and not self._close_idle():
            limit = self.limits.connections
            self._refuse(
                QueueFull(f"the service is at its limit of {limit} connections (http_max_connections): try again later")
            )
        else:
            self._arm_head()

    def _is_above_limit(self) -> bool:
        limit = self.limits.connections
        return len(self.connections) > limit and sum(not each._is_closed() for each in self._all()) > limit

    def _all(self) -> list[BoundedProtocol]:
        return [each for each in self.connections if isinstance(each, BoundedProtocol)]

    def _is_closed(self) -> bool:
        """Return whether the connection is closed and has sent all data, even if the loop has not reported this yet.

        With TLS, the loop first waits for the closing message of the client. Until then, the connection is not closed.
        """
        transport = self.transport
        return (
            transport.is_closing()
            and not transport.get_write_buffer_size()
            and transport.get_extra_info("ssl_object") is None
        )

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest; return whether there was an idle connection."""
        longest = min(self._all(), key=BoundedProtocol._idle_until)
        if longest._idle_until() == math.inf:
            return False
        # Abort: a normal close would wait for the client while new connections arrive.
        longest.transport.abort()
        return True

    def _idle_until(self) -> float:
        """Return when this idle connection times out, on the clock of the event loop.

        Return infinity if the connection is busy, is closing, or has unsent bytes.
        """
        timer = self.timeout_keep_alive_task
        if timer is None or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return math.inf
        return timer.when()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection, and drop the bytes that are not parsed yet."""
        self._disarm_head()
        self._disarm_stall()
        self._held = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes. The first bytes of a request start the time limit for its head."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            self._parse(self._held + data)
        except httptools.HttpParserError:
            why = "the request is not HTTP/1.1, or its target has more than 65,535 bytes"
            self._refuse(HttpProblem("malformed-request", why))
            return
        if self._kept_bytes > MAX_HEAD_BYTES:
            self._refuse(
                HttpProblem(
                    "head-too-large", f"the head of the request has more than the limit of {MAX_HEAD_BYTES} bytes"
                )
            )
            return
        if self._in_head or self._is_idle():
            # The received bytes have cancelled uvicorn's idle timer, so the time limit of a head replaces it.
            if self._head_timer is None:
                self._arm_head()
        else:
            self._disarm_head()

    def _parse(self, data: bytes) -> None:
        """Parse bytes. While a pipelined request waits for the previous answer, store the other bytes without parsing
        them.
        """
        at = 0
        while at < len(data) and not self.pipeline and self._kept_bytes <= MAX_HEAD_BYTES:
            at += self._feed(data[at : at + PIECE_BYTES])
        self._held = data[at:]
        if self._held:
            self.flow.pause_reading()

    def _feed(self, piece: bytes) -> int:
        """Parse bytes as HTTP/1.1, even if the client asks for another protocol. Return the number of parsed bytes."""
        self._progressed = False
        read = len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            read = int(upgrade.args[0])
            if framing := self._framing():
                self._expect_body(framing)
        if self._in_message and not self._progressed:
            self._kept_bytes += read
        return read

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request. If no request is waiting, parse the stored bytes."""
        super().on_response_complete()
        if self._held and not self.transport.is_closing():
            if self.pipeline:
                self.flow.pause_reading()  # uvicorn resumes reading after each answer
            else:
                self.data_received(b"")

    def _framing(self) -> bytes:
        """Return the header lines that say whether the request has a body and where the body ends.

        The result is empty if the request has neither `Content-Length` nor `Transfer-Encoding`.
        """
        names = (b"content-length", b"transfer-encoding")
        return b"".join(b"%b: %b\r\n" % field for field in self.headers if field[0] in names)

    def _expect_body(self, framing: bytes) -> None:
        """Replace the parser by a parser that has read the head and expects the body.

        `framing` are the header lines from `_framing`.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as for uvicorn's own parser
        self._replaying = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
        finally:
            self._replaying = False

    def on_message_begin(self) -> None:
        """Start to count the bytes of a request, except while its head is replayed (`_expect_body`)."""
        if not self._replaying:
            super().on_message_begin()
            self._in_message = self._in_head = True
            self._kept_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Pass the target of a request on to uvicorn, except while the head is replayed (`_expect_body`)."""
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pass a field of the head on to uvicorn, except while the head is replayed; drop a field of the trailer."""
        if self._in_head and not self._replaying:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let uvicorn start to answer the request, except while the head is replayed."""
        if not self._replaying:
            self._in_head = False
            self._note_progress()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass the body on to the application."""
        self._note_progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Complete the request. If the parser only stopped at an `Upgrade` and the body follows, do nothing."""
        if self.parser.should_upgrade() and self._framing():
            return
        self._in_message = False
        self._note_progress()
        super().on_message_complete()

    def _note_progress(self) -> None:
        self._progressed, self._kept_bytes = True, 0

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read its answer (`stall_seconds`)."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit that `pause_writing` has started, because the client has read something."""
        self._disarm_stall()
        super().resume_writing()

    def _disarm_stall(self) -> None:
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
            self._arm_head()  # the previous request is still being answered
        elif self._in_head:
            seconds = self.limits.head_seconds
            detail = f"the head of the request took longer than the limit of {seconds:g} s (http_head_timeout_ms)"
            self._refuse(HttpProblem("head-timeout", detail))
        else:
            self.transport.close()

    def _must_be_silent(self) -> bool:
        """Return whether the client could mistake an error response for the response to a different request, or for a
        part of it.
        """
        if self._in_message and not self._in_head:
            return self.cycle.response_started or bool(self.pipeline)
        return not self._is_idle()

    def _refuse(self, error: Exception) -> None:
        """Close the connection. First send a problem document, except if the client could misread it."""
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
