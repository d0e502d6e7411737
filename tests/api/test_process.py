"""The service as a process with a real socket: start, wrong settings, shutdown, clients that disconnect."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from qa_cluster.api.__main__ import main
from tests.api.service_under_test import succeeds
from tests.client.scripted_cluster import Node, ScriptedCluster, never
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port


@asynccontextmanager
async def process(
    *arguments: str, **environment: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Task[bytes]]]:
    """The process, and a task that returns all of its stderr."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qa_cluster.api",
        *arguments,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stderr is not None
    output = asyncio.create_task(child.stderr.read())
    try:
        yield child, output
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await output


async def wait_ready(child: asyncio.subprocess.Process, client: httpx.AsyncClient, output: asyncio.Task[bytes]) -> None:
    """Wait until the service is ready; a failure shows the output of the service."""

    async def is_over() -> bool:
        return child.returncode is not None or await succeeds(client, "/readyz")

    with suppress(AssertionError):
        await eventually_async(is_over)
        if child.returncode is None:
            return
    if child.returncode is None:
        child.kill()
    raise AssertionError(f"the service is not ready: {(await output).decode()[-4000:]}")


@asynccontextmanager
async def serving(
    cluster: ScriptedCluster, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient, asyncio.Task[bytes]]]:
    port = free_port()
    async with (
        process("--port", str(port), *arguments, QA_CLUSTER_URL=cluster.url) as (child, output),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        await wait_ready(child, client, output)
        yield child, client, output


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_the_service_answers_and_stops_at_a_signal(cluster: ScriptedCluster, how: signal.Signals) -> None:
    # the cluster has no API keys, so without the flag the service would not start on this address
    flags, port = ("--host", "0.0.0.0", "--without-keys"), free_port()
    async with (
        serving(cluster, *flags, "--admin-port", str(port)) as (child, client, output),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as admin,
    ):
        assert (await admin.get("/livez")).is_success
        await client.put("/documents/a", json={"text": "Ada wrote it."})

        async def tier() -> str:
            return str((await client.get("/qa", params={"question": "Who wrote it?"})).json()["cache"]["tier"])

        async def near() -> bool:
            return await tier() == "near"

        assert await tier() == "none"
        await eventually_async(near)  # the service caches once its subscriptions report no more changes
        child.send_signal(how)
        await child.wait()
        assert child.returncode in (0, -how)
        with pytest.raises(httpx.TransportError):
            await admin.get("/livez")
        log = (await output).decode()
        assert "Traceback" not in log
        assert "GET /qa" not in log


BROKEN = """
import sys
from qa_cluster.api.__main__ import main
from qa_cluster.asking.connecting import Target

async def opened(self):
    raise OSError("no entropy is left")

Target.open = opened
sys.exit(main(sys.argv[1:]))
"""


async def test_a_failed_start_ends_the_process_with_its_reason(cluster: ScriptedCluster) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BROKEN, "--port", str(free_port()), "--cluster-url", cluster.url),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            _, said = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 3
    assert "the service cannot start: OSError: no entropy is left" in said.decode()
    assert "Application startup failed. Exiting." in said.decode()


async def test_a_running_question_is_answered_before_shutdown(cluster: ScriptedCluster) -> None:
    async def slow(node: Node, arguments: list[str]) -> Any:
        await asyncio.sleep(0.5)
        return await cluster.rank(node, arguments)

    async with serving(cluster) as (child, client, _):
        cluster.triggers["rank"] = slow
        asked = asyncio.create_task(client.get("/qa", params={"question": "Who wrote it?"}))
        await eventually_async(lambda: cluster.count("rank") == 3)
        child.terminate()
        assert (await asked).status_code == 200
        await child.wait()


async def test_a_killed_service_leaves_nothing_running_on_the_shards(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as (child, client, _):
        cluster.triggers["rank"] = never
        asked = asyncio.create_task(client.get("/qa", params={"question": "Who wrote it?"}))
        await eventually_async(lambda: cluster.count("rank") == 3)
        child.kill()
        with pytest.raises(httpx.TransportError):
            await asked
        await eventually_async(lambda: cluster.cancelled == 3)
        await eventually_async(lambda: all(len(node.clients) == 0 for node in cluster.nodes))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"QA_CLUSTER_URL": ""}, "cluster_url"),
        ({"QA_CLUSTER_URL": "http://x"}, "cluster_url"),
        ({"QA_CLUSTER_URL": "redis://127.0.0.1:1", "QA_HTTP_PORT": "many"}, "http_port"),
        ({"QA_CLUSTER_URL": "rediss://127.0.0.1:1", "QA_CLUSTER_TLS_CA": "/no/such/file"}, "TLS"),
    ],
)
def test_wrong_settings_end_the_service_with_status_2_and_one_line(
    environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and said in text and text.count("\n") == 1
