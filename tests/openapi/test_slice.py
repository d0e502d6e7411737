"""A short form of `make schemathesis`: a few requests to all operations, and with an API key to reading operations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import time

import httpx
import pytest

from qa_cluster.access.records import SCOPES, new_key
from tests.api.test_process import serving
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_fixtures import cluster, shared_cluster
from tests.openapi.walk import command

__all__ = ["cluster", "shared_cluster"]


@pytest.mark.hostile
@pytest.mark.timeout(1200)
async def test_answers_are_as_described(cluster: ScriptedCluster, tmp_path: Path) -> None:
    async with serving(cluster) as (_, client, output):
        await client.put("/documents/ada", json={"text": "Ada wrote programs."})
        await walk(client, tmp_path)
        engine = await cluster.target().open()
        try:
            await engine.collections.create("books")
            key, text = new_key("of books", SCOPES, collections=["books"], now=time())
            await engine.api_keys.add(key)
        finally:
            await engine.aclose()
        await walk(client, tmp_path, text, "--include-method", "GET")
    assert "Traceback" not in (await output).decode()


async def walk(client: httpx.AsyncClient, folder: Path, key: str = "", *options: str) -> None:
    """Run Schemathesis with the values and limits of the description; check that it finds no fault."""
    port = client.base_url.port
    assert port is not None
    child = await asyncio.create_subprocess_exec(
        *command(port, key=key, phases=("coverage",), examples=1, seed=1),
        *options,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    assert child.returncode == 0, said.decode()[-20_000:]
