"""A service in its own process, whose memory and waits tests measure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.api.test_process import process, wait_ready
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.ports import free_port

SECONDS = 60.0


class MeasuredService:
    """The service, a client with one question, and the durations of its requests."""

    def __init__(self, pid: int, client: httpx.AsyncClient, question: str) -> None:
        self.client = client
        self.waits: list[float] = []
        self._pid = pid
        self._question = question

    @property
    def port(self) -> int:
        port = self.client.base_url.port
        assert port is not None
        return port

    def megabytes(self, field: str) -> float:
        """A field of the process's memory: VmRSS now, VmHWM at most."""
        text = Path(f"/proc/{self._pid}/status").read_text()
        return int(text.partition(f"{field}:")[2].split()[0]) / 1024

    async def ask(self) -> None:
        """Ask the question, and record its duration."""
        begun = time.perf_counter()
        (await self.client.get("/qa", params={"question": self._question})).raise_for_status()
        self.waits.append(time.perf_counter() - begun)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Ask repeatedly during the block; the service must answer every request."""
        over = asyncio.Event()

        async def again() -> None:
            while not over.is_set():
                await self.ask()
                await asyncio.sleep(0.02)

        task = asyncio.create_task(again())
        try:
            yield
        finally:
            over.set()
            await task


@asynccontextmanager
async def process_of(cluster: ScriptedCluster, **settings: str) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """Start a service with its default limits; yield the id of its process, and a client."""
    port = free_port()
    environment = {"QA_CLUSTER_URL": cluster.url, "QA_LOG_LEVEL": "warning", **settings}
    async with (
        process("--port", str(port), **environment) as (child, output),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
    ):
        await wait_ready(child, client, output)
        yield child.pid, client
