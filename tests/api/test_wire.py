"""Requests as bytes: bodies that look like requests, trailers, and malformed requests."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from itertools import product
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from qa_cluster.access.records import new_key
from qa_cluster.api.connections import PIECE_BYTES, ConnectionLimits, bounded
from tests.api.service_under_test import listening
from tests.api.test_connections import said, said_to_an_endless_head
from tests.client.scripted_cluster import ScriptedCluster

pytestmark = pytest.mark.hostile
HOST = b"host: localhost\r\n"
JSON = b"content-type: application/json\r\n"
LAST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r]+\r\n)+)\r\n")


class _Transport(asyncio.Transport):
    """A transport of a client that reads nothing; `unsent` is the number of buffered bytes."""

    paused = closed = False
    unsent = 0

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def answers(raw: bytes) -> list[tuple[int, dict[str, str], Any]]:
    """The status, the headers and the JSON document of each response."""
    found = []
    while raw:
        head = ANSWER.match(raw)
        assert head is not None, raw[:300]
        headers = dict(line.split(": ", 1) for line in head[2].decode().split("\r\n") if line)
        end = head.end() + int(headers["content-length"])
        found.append((int(head[1]), headers, json.loads(raw[head.end() : end])))
        raw = raw[end:]
    return found


def assert_refused(raw: bytes, status: int, kind: str) -> None:
    """Check that the only response is an error in the usual form."""
    ((found, headers, document),) = answers(raw)
    assert found == document["status"] == status
    assert headers["content-type"] == "application/problem+json" and headers["connection"] == "close"
    assert set(document) == {"type", "title", "status", "detail", "instance", "code", "request_id"}
    assert document["type"] == f"urn:qa-cluster:problem:{kind}"
    assert document["request_id"] == headers["x-request-id"]


async def test_a_body_is_never_read_as_a_request_after_an_upgrade_header(cluster: ScriptedCluster) -> None:
    """The first request of Java's client has `Upgrade: h2c`, which a proxy may forward."""
    asked, smuggled = b'{"query": "Who?"}', b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with listening(cluster) as (port, _):
        for protocol, chunked, content in product((b"h2c", b"websocket"), (True, False), (asked, smuggled)):
            upgrade = b"connection: upgrade\r\nupgrade: %b\r\n" % protocol
            head = b"POST /search HTTP/1.1\r\n%b%b%b" % (HOST, JSON, upgrade)
            if chunked:
                head += b"transfer-encoding: chunked\r\n\r\n"
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
            else:
                head += b"content-length: %d\r\n\r\n" % len(content)
                body = content
            for parts in ([head + body + LAST], [head, body[:9], body[9:], LAST]):
                first, last = answers(await said(port, *parts))
                assert first[0] == (200 if content == asked else 400) and last[2] == {"alive": True}
            without = b"GET /livez HTTP/1.1\r\n%b%b\r\n" % (HOST, upgrade)
            assert [each[0] for each in answers(await said(port, without * 2 + LAST))] == [200] * 3


@pytest.mark.parametrize("path", [b"/search", b"/nowhere"])
async def test_trailer_fields_are_limited(cluster: ScriptedCluster, path: bytes) -> None:
    """The requests need no key. One path is answered before its body is read, the other afterwards."""
    async with listening(cluster) as (port, client):
        head = b"POST %b HTTP/1.1\r\n%b%btransfer-encoding: chunked\r\n\r\n0\r\n" % (path, HOST, JSON)
        for endless in (b"x: %b\r\n" % (b"y" * 9000), b"y" * 9000):
            raw = await said(port, head + b"x: ", *[endless] * 60)
            if path == b"/nowhere" and [each[0] for each in answers(raw)] == [404]:
                continue
            if raw:  # unread bytes can make TCP discard the response
                assert_refused(raw, 431, "head-too-large")
        assert (await client.get("/livez")).is_success


async def test_trailer_fields_are_ignored(cluster: ScriptedCluster) -> None:
    """A proxy checks the header fields, but not the trailer fields."""
    async with listening(cluster) as (port, client):
        engine = await cluster.target().open()
        try:
            key, text = new_key("the shop", ["search"], now=1_795_000_000)
            await engine.api_keys.add(key)
        finally:
            await engine.aclose()
        body = b'{"query": "Ada"}'
        chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        bearer = b"authorization: Bearer %b\r\n" % text.encode()
        head = b"POST /search HTTP/1.1\r\n%b%btransfer-encoding: chunked\r\n" % (HOST, JSON)
        for more, trailer, status in ((b"", bearer, 401), (bearer, b"host: evil.example\r\n", 200)):
            first, last = answers(await said(port, head + more + b"\r\n" + chunks + trailer + b"\r\n" + LAST))
            assert first[0] == status and last[2] == {"alive": True}
        assert (await client.get("/livez")).is_success


async def test_a_malformed_request_gets_an_error_in_the_usual_form(cluster: ScriptedCluster) -> None:
    async with listening(cluster, http_head_timeout_ms=10_000) as (port, _):
        for wrong in (
            b"HELO there\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nhost : localhost\r\n\r\n",
            b"GET /%b HTTP/1.1\r\n%b\r\n" % (b"a" * 66_000, HOST),
            b"POST /qa HTTP/1.1\r\n%bcontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" % HOST,
            b"POST /qa HTTP/1.1\r\n%bcontent-length: 4\r\ncontent-length: 5\r\n\r\n" % HOST,
            b"POST /qa HTTP/1.1\r\n%btransfer-encoding: chunked, identity\r\n\r\n" % HOST,
        ):
            raw = await said(port, wrong)
            if len(wrong) > 60_000 and not raw:
                continue  # unread bytes can make TCP discard the response
            status = answers(raw)[0][0]
            assert status in (400, 431), raw
            assert_refused(raw, status, {400: "malformed-request", 431: "head-too-large"}[status])
        assert_refused(await said_to_an_endless_head(port), 408, "head-timeout")
    async with listening(cluster, http_max_connections=1) as (port, _):
        with socket.create_connection(("127.0.0.1", port)):
            assert_refused(await said(port), 503, "overloaded")


@pytest.mark.parametrize(
    ("closed", "unsent", "tls", "refused"),
    [(False, 0, None, True), (True, 0, None, False), (True, 9, None, True), (True, 0, object(), True)],
    ids=["open", "gone", "unsent", "tls"],
)
async def test_a_connection_that_is_closing_does_not_count_against_the_limit(
    closed: bool, unsent: int, tls: object, refused: bool
) -> None:
    """One client disconnects and another one connects in the same turn of the event loop."""

    async def never(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn.Config(never, ws="none", log_config=None)
    config.load()
    state, kind = ServerState(), bounded(ConnectionLimits(1, 60.0, 60.0, 60.0))
    transports = [_Transport({"ssl_object": tls}), _Transport({})]
    protocols: list[Any] = [kind(config=config, server_state=state, app_state={}) for _ in transports]  # type: ignore[call-arg]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.connection_made(transport)
        if protocol is protocols[0]:
            transport.closed, transport.unsent = closed, unsent
    assert transports[1].closed == refused
    for protocol in protocols:
        protocol.connection_lost(None)


async def test_pending_pipelined_requests_use_little_memory() -> None:
    """An earlier version used 1.6 kB for each pipelined request, even without a key."""

    over = asyncio.Event()

    async def never(scope: object, receive: object, send: object) -> None:
        await over.wait()

    config = uvicorn.Config(never, ws="none", log_config=None)
    config.load()
    state, transport, short = ServerState(), _Transport(), b"GET / HTTP/1.1\r\n\r\n"
    protocol: Any = bounded(ConnectionLimits(1, 60.0, 60.0, 60.0))(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
    protocol.connection_made(transport)
    try:
        for _ in range(3):
            protocol.data_received(short * 10_000)
        assert len(protocol.pipeline) < PIECE_BYTES / len(short)
        assert transport.paused
    finally:
        transport.close()
        protocol.cycle = None
        protocol.connection_lost(None)
        over.set()
        await asyncio.gather(*state.tasks)


async def test_pipelined_requests_are_answered_in_order(cluster: ScriptedCluster) -> None:
    async with listening(cluster) as (port, _):
        one = b"POST /search HTTP/1.1\r\n%b%bcontent-length: 17\r\nx-request-id: %%d\r\n\r\n" % (HOST, JSON)
        sent = b"".join(one % number + b'{"query": "Who?"}' for number in range(400)) + LAST
        found = answers(await said(port, sent))
        assert [headers["x-request-id"] for _, headers, _ in found[:-1]] == [str(number) for number in range(400)]
        assert {status for status, _, _ in found} == {200}


async def test_a_refusal_is_not_sent_as_the_answer_to_the_previous_request(cluster: ScriptedCluster) -> None:
    async with listening(cluster) as (port, _):
        ask = b"GET /qa?question=Who%%3F HTTP/1.1\r\n%b\r\n" % HOST
        raw = await said(port, ask + b"HELO there\r\n\r\n")
        assert all(status == 200 for status, _, _ in answers(raw)), raw
