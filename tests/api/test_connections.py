"""Silent clients, endless heads and bodies, and requests for other hosts."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import httpx
import pytest

from qa_cluster.api.admission.hosts import Hosts
from qa_cluster.api.routes import status
from qa_cluster.asking.engine import Engine
from qa_cluster.topology import Shard
from tests.api.service_under_test import assert_problem, listening, serving, succeeds
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async

pytestmark = pytest.mark.hostile
SECONDS = 120.0
POST = b"POST /qa HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
ASK = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def said(port: int, *parts: bytes) -> bytes:
    """Send `parts`; return all bytes that the service sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found: list[bytes] = []

    async def read() -> None:
        with suppress(ConnectionError):  # earlier bytes are still returned
            while piece := await reader.read(65536):
                found.append(piece)

    reading = asyncio.ensure_future(read())
    try:
        for part in parts:
            writer.write(part)
            await asyncio.wait([reading], timeout=0.05)
            if reading.done():
                break
        async with asyncio.timeout(SECONDS):
            await reading
        return b"".join(found)
    finally:
        reading.cancel()
        writer.close()


async def said_to_an_endless_head(port: int) -> bytes:
    """The service's answer to an endless head, or no bytes if TCP discarded the answer in all five tries."""
    for _ in range(5):  # TCP discards the answer if a further line arrives at the closed connection
        if answer := await said(port, b"GET /livez HTTP/1.1\r\n", *[b"x: y\r\n"] * 400):
            return answer
    return b""


async def test_a_connection_without_a_complete_request_is_closed(cluster: ScriptedCluster) -> None:
    async with listening(cluster, http_head_timeout_ms=300) as (port, client):
        nothing, blank = await asyncio.gather(said(port), said(port, *[b"\r\n"] * 400))
        assert (nothing, blank) == (b"", b"")
        endless = await said_to_an_endless_head(port)
        assert endless.startswith(b"HTTP/1.1 408 ") and b"(http_head_timeout_ms)" in endless
        # retried, because a complete request may take more than 300 ms on a busy machine
        await eventually_async(lambda: succeeds(client, "/livez"), SECONDS)


async def test_bytes_after_an_answer_do_not_keep_a_connection_open(cluster: ScriptedCluster) -> None:
    """uvicorn's own timer for idle connections stops at the first byte, even if no request follows."""
    async with listening(cluster, http_head_timeout_ms=10_000) as (port, _):
        answered = await said(port, ASK, *[b"\r\n"] * 400)
        assert answered.count(b"HTTP/1.1") == 1 and answered.startswith(b"HTTP/1.1 200")


async def test_the_size_of_a_head_is_limited(cluster: ScriptedCluster) -> None:
    async with listening(cluster) as (port, client):
        refused = await said(port, b"GET /livez HTTP/1.1\r\n", *[b"x-%d: %b\r\n" % (n, b"y" * 8000) for n in range(40)])
        assert refused.startswith(b"HTTP/1.1 431 ") or refused == b""
        assert (await client.get("/livez", headers={"x": "y" * 30_000})).is_success


async def test_the_number_of_connections_is_limited(cluster: ScriptedCluster) -> None:
    async with listening(cluster, http_max_connections=4) as (port, client):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert b"limit of 4 connections (http_max_connections)" in await said(port)
        for _, writer in held:
            writer.close()

        async def free() -> bool:
            return (await client.get("/livez")).is_success

        await eventually_async(free, SECONDS)


async def test_a_connection_stays_open_after_an_answer(cluster: ScriptedCluster) -> None:
    async with listening(cluster, http_idle_timeout_ms=300) as (port, _):
        assert (await said(port, ASK)).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_beyond_the_limit_replaces_the_longest_idle_one(cluster: ScriptedCluster) -> None:
    # the long timeout protects the silent connection on a busy machine
    async with listening(cluster, http_max_connections=3, http_head_timeout_ms=60_000) as (port, _):

        async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write(ASK)
            return await reader.readuntil(b"}")

        async with asyncio.timeout(SECONDS):
            silent, longest, idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for each in (longest, idle):
                assert (await answered(*each)).startswith(b"HTTP/1.1 200 ")
                # the idle times must differ by more than 1 ms, the resolution of uvloop's clock
                await asyncio.sleep(0.05)
            another = await asyncio.open_connection("127.0.0.1", port)
            assert (await answered(*another)).startswith(b"HTTP/1.1 200 ")
            assert await longest[0].read() == b""
            for each in (silent, idle):
                assert (await answered(*each)).startswith(b"HTTP/1.1 200 ")
        for _, writer in (silent, longest, idle, another):
            writer.close()


async def test_missing_bodies_do_not_block_other_requests(cluster: ScriptedCluster) -> None:
    """The limit for bodies also applies to requests with a longer timeout."""
    async with listening(cluster, http_max_requests=3, body_timeout_ms=8000) as (port, client):
        model = POST.replace(b"/qa", b"/models/default?timeout_ms=120000")
        write = POST.replace(b"POST /qa", b"PUT /documents/d?timeout_ms=120000")
        answers = asyncio.gather(*(said(port, each) for each in (POST, model, write)))

        async def full() -> bool:
            return (await client.get("/models")).status_code == 503

        await eventually_async(full, SECONDS)
        for answer in await answers:
            assert answer.startswith(b"HTTP/1.1 408 ") and b"did not arrive within the limit of 8000 ms" in answer
        assert (await client.get("/models")).is_success


async def test_a_client_that_reads_nothing_is_disconnected(cluster: ScriptedCluster) -> None:
    # few long sentences, because many sentences would block the scripted cluster in this process
    text = ("x" * 42_000 + ". ") * 20
    async with opened(cluster) as engine:  # on a busy machine, the service may not receive all bytes within its limit
        await engine.documents.put("long", text)
    async with listening(cluster, body_timeout_ms=500, http_max_connections=1) as (port, client):
        lazy: list[socket.socket] = []

        async def admitted() -> bool:
            lazy.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
            lazy[-1].sendall(b"GET /documents/long HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20)
            return await asyncio.to_thread(lazy[-1].recv, 12) == b"HTTP/1.1 200"

        async def free() -> bool:
            try:
                return (await client.get("/livez")).is_success
            except httpx.TransportError:
                return False

        try:
            await eventually_async(admitted, SECONDS)
            await eventually_async(free, SECONDS)
        finally:
            for each in lazy:
                each.close()


async def test_a_request_cannot_exceed_the_timeout_of_the_service(cluster: ScriptedCluster) -> None:
    async with listening(cluster, request_timeout_max_ms=20_000) as (_, client):
        refused = await client.get("/qa", params={"question": "Who?", "timeout_ms": 20_001})
        assert_problem(refused, 422, "validation", "timeout_ms", "from 1 to 20000")


async def test_a_request_for_another_host_is_refused(cluster: ScriptedCluster) -> None:
    """DNS rebinding: a hostile page sends requests to the service under the name of its own host."""
    async with serving(cluster, hosts=("qa.example.org", "")) as client:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "", "[x]"):
            for path in ("/qa?question=Who", "/metrics", "/documents/a"):
                refused = await client.get(path, headers={"host": host})
                assert_problem(refused, 421, "misdirected", "http_hosts")
        for host in (
            "localhost:8080",
            "LOCALHOST",
            "127.0.0.1:1",
            "[::1]:8080",
            "10.0.0.7",
            "qa.example.org",
            "a.localhost",
        ):
            assert (await client.get("/livez", headers={"host": host})).is_success, host


async def test_a_request_for_another_host_gets_no_cached_answer(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.put("/documents/a", json={"text": "Ada wrote it."})

        async def near() -> bool:
            answer = await client.get("/qa", params={"question": "Who wrote it?"})
            return bool(answer.json()["cache"]["tier"] == "near")

        await eventually_async(near)
        refused = await client.get("/qa", params={"question": "Who wrote it?"}, headers={"host": "evil.example"})
        assert_problem(refused, 421, "misdirected")


def test_a_star_allows_every_host_and_the_memory_of_hosts_is_bounded() -> None:
    Hosts(["*"]).check({"headers": [(b"host", b"any.example")]})
    hosts = Hosts([])
    for number in range(5000):
        hosts.check({"headers": [(b"host", b"10.0.0.1:%d" % number)]})
    assert len(hosts._known) == 1000


async def test_the_shards_are_asked_for_metrics_once_a_second(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def info(engine: Engine, shard: Shard) -> bytes:
        nonlocal asked
        asked += 1
        return b"qa_worker_state:ready"

    monkeypatch.setattr(status, "_info", info)
    monkeypatch.setattr(status, "KEEP_SECONDS", 1000)
    async with serving(cluster) as client:
        texts = await asyncio.gather(*(client.get("/metrics") for _ in range(30)))
        assert all("qa_shard_up" in text.text for text in texts)
        assert asked == 3
