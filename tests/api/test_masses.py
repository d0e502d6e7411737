"""Many hostile clients and one normal client: the normal client's waits, and the memory of the service.

The service is a process with its default limits. `make hostile ARGS='-s tests/api/test_masses.py'` prints the figures
(`docs/measurements.md`).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import httpx
import pytest

from tests.api.measured_service import SECONDS, MeasuredService, process_of
from tests.client.scripted_cluster import SHARDS, Node, ScriptedCluster
from tests.client.scripted_proxy import Reply

pytestmark = [pytest.mark.hostile, pytest.mark.cluster]

CONNECTIONS = 5_000
METRICS = 10_000
HEADS_BYTES = 64 << 20
QUESTIONS = 50_000
PART = 5_000
ALLOWED = 1024  # http_max_connections
HEAD_BYTES = 65_536  # the limit for one head
AT_ONCE = 32
MEGABYTE = 2**20


class Service(MeasuredService):
    """The process of the service, and the durations of a normal client."""

    def memory_mb(self) -> float:
        """The resident memory of the service, in MB."""
        return self.megabytes("VmRSS")

    def said(self) -> str:
        """The durations as text."""
        found = sorted(self.waits)
        median, longest = found[len(found) // 2] * 1e3, found[-1] * 1e3
        return f"{len(found)} requests of another: median {median:.1f} ms, longest {longest:.0f} ms"


@pytest.fixture
async def service(cluster: ScriptedCluster) -> AsyncIterator[Service]:
    async with process_of(cluster, QA_WHOLE_ANSWERS_MB="1") as (pid, client):
        (await client.put("/documents/ada", json={"text": "Ada wrote programs."})).raise_for_status()
        found = Service(pid, client, "Who wrote programs?")
        await found.ask()
        yield found


@pytest.fixture(autouse=True)
def files() -> None:
    """Raise the limit of open files: every connection needs a file descriptor of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"the limit of {hard} open files is too low for {CONNECTIONS} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 500), hard))


async def connected(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    turns = asyncio.Semaphore(100)

    async def one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with turns:
            return await asyncio.open_connection("127.0.0.1", port)

    return await asyncio.gather(*(one() for _ in range(count)))


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """The status code before the end of the connection; empty without a response, `cut` after a reset."""
    with suppress(ConnectionError):
        return (await reader.read())[9:12]
    return b"cut"


async def flood(port: int, paths: Iterator[str], at_once: int = AT_ONCE) -> None:
    """Request all paths on many connections; each status must be 200. httpx would be too slow."""

    async def ask_on_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path in paths:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
            assert head.startswith(b"HTTP/1.1 200 "), (path, head, body)
        writer.close()

    await asyncio.gather(*(ask_on_one() for _ in range(at_once)))


async def closed(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in connections:
        writer.close()
    await asyncio.sleep(0.5)


async def test_idle_connections(service: Service) -> None:
    before = service.memory_mb()
    begun = time.monotonic()
    async with service.asked():
        idle = await connected(service.port, CONNECTIONS)
        most = service.memory_mb()
        async with asyncio.timeout(SECONDS):
            ends = Counter(await asyncio.gather(*(answer_of(reader) for reader, _ in idle)))
        took = time.monotonic() - begun
    await closed(idle)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}") as another:
        assert (await another.get("/livez")).is_success
    print(
        f"\n{CONNECTIONS} idle connections: {ends[b'503']} refused, all ended after {took:.1f} s;"
        f" {most - before:+.1f} MB; {service.said()}"
    )
    assert ends[b"503"] >= CONNECTIONS - 3 * ALLOWED
    assert set(ends) <= {b"503", b"", b"cut"}
    assert most - before < 150


async def test_endless_heads(service: Service) -> None:
    before = service.memory_mb()
    line = b"x: " + b"y" * 1019 + b"\r\n"
    async with service.asked():
        held = await connected(service.port, HEADS_BYTES // (HEAD_BYTES - 1024))
        for _, writer in held:
            with suppress(ConnectionError):
                writer.write(b"GET /livez HTTP/1.1\r\n" + line * (HEAD_BYTES // 1024 - 2))
        await asyncio.gather(*(writer.drain() for _, writer in held), return_exceptions=True)
        most = service.memory_mb()
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        sent = 0
        with suppress(ConnectionError):
            writer.write(b"GET /livez HTTP/1.1\r\n")
            while sent < HEADS_BYTES and not reader.at_eof():
                writer.write(line * 64)
                await writer.drain()
                sent += len(line) * 64
        held.append((reader, writer))
        most = max(most, service.memory_mb())
        async with asyncio.timeout(SECONDS):
            ends = Counter(await asyncio.gather(*(answer_of(reader) for reader, _ in held)))
    await closed(held)
    print(
        f"\n{len(held) - 1} connections with {HEADS_BYTES >> 20} MB of unfinished heads: {dict(ends)},"
        f" {most - before:+.1f} MB; one of {HEADS_BYTES >> 20} MB was ended after {sent >> 10} KiB; {service.said()}"
    )
    assert sent < HEADS_BYTES
    assert set(ends) <= {b"408", b"431", b"503", b"", b"cut"}
    assert most - before < 3 * HEADS_BYTES / MEGABYTE


async def test_repeated_requests_for_metrics(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    usual = Node.own_reply

    def counted(node: Node, command: list[bytes]) -> Callable[[], Awaitable[Reply]] | None:
        nonlocal asked
        asked += command == [b"INFO", b"qa"]
        return usual(node, command)

    monkeypatch.setattr(Node, "own_reply", counted)
    begun = time.monotonic()
    async with service.asked():
        await flood(service.port, iter(["/metrics"] * METRICS))
    took = time.monotonic() - begun
    times = asked / SHARDS
    print(f"\n{METRICS} GET /metrics in {took:.1f} s: each shard was asked {times:.0f} times; {service.said()}")
    assert 1 <= times <= took + 2


@pytest.mark.timeout(1800)
async def test_a_stream_of_new_questions(service: Service, cluster: ScriptedCluster) -> None:
    """After the caches are full, the memory of the service and the shards no longer grows."""
    seen: list[tuple[float, float]] = []

    async def look() -> None:
        texts = [await node.commands.execute("INFO", "memory") for node in cluster.nodes]
        of_shards = sum(int(text.partition(b"used_memory:")[2].split()[0]) for text in texts)
        seen.append((service.memory_mb(), of_shards / MEGABYTE))

    begun = time.monotonic()
    for first in range(0, QUESTIONS, PART):
        await look()
        some = range(first, first + PART)
        await flood(service.port, (f"/qa?question=Who+wrote+programs+in+the+year+{number}" for number in some))
        cluster.calls.clear()
    await look()
    pace = QUESTIONS / (time.monotonic() - begun)
    own, shards = (", ".join(f"{each[which]:.0f}" for each in seen) for which in (0, 1))
    print(f"\n{QUESTIONS} new questions, {pace:.0f} a second: the service had {own} MB, the shards {shards} MB")
    for which in (0, 1):
        assert seen[-1][which] < max(each[which] for each in seen[:6]) * 1.1 + 5
