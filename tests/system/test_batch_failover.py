"""The replica of a shard takes over while a batch runs: no acknowledged file, batch or result is lost."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from qa_cluster import keys
from qa_cluster.api.batches.running import OwnerBatches
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.batches.records import ANONYMOUS_OWNER, Batch, BatchLimits, BatchRequest
from qa_cluster.batches.store import BatchStore
from qa_cluster.errors import QAError
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address

from .replicated import Replicated

LINES = 150


@pytest.fixture(scope="module")
def shards(replicas: Replicated) -> Replicated:
    replicas.put("moby", "Herman Melville wrote Moby Dick.")
    replicas.wait_tokenized("moby")
    replicas.in_sync()
    return replicas


async def current(store: BatchStore, batch_id: str) -> Batch:
    """Read the batch, once its shard answers."""
    while True:
        try:
            return await store.batch(ANONYMOUS_OWNER, batch_id)
        except QAError:
            await asyncio.sleep(0.2)


async def test_a_failover_loses_no_acknowledged_result(shards: Replicated) -> None:
    addresses = [Address("127.0.0.1", server.port) for server in shards.servers]
    engine = await Target(addresses, Login(connect_timeout_seconds=10), EngineOptions()).open()
    try:
        store = BatchStore(engine.shards, BatchLimits())
        lines = [
            {"custom_id": str(n), "method": "POST", "url": "/qa", "body": {"question": f"Who wrote book {n}?"}}
            for n in range(LINES)
        ]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file = await store.begin_file(ANONYMOUS_OWNER, "in", len(data), 60)
        await store.put_part(ANONYMOUS_OWNER, file.id, 0, data)
        stored = type(file)(file.id, len(data), 1, file.created_at, file.expires_at, "in", "batch")
        await store.end_file(ANONYMOUS_OWNER, stored)
        made = await store.create(ANONYMOUS_OWNER, BatchRequest(file.id, "/qa", "24h", {}))
        # this primary has the batches, and possibly the document
        primary, _ = shards.pair_of_slot(keys.slot(keys.batches_key(ANONYMOUS_OWNER)))
        work = asyncio.create_task(OwnerBatches(engine, store, ANONYMOUS_OWNER).run(600))
        while (acknowledged := (await current(store, made.id)).done) < LINES // 5:
            await asyncio.sleep(0.05)
        primary.stop(signal.SIGKILL)
        assert (await current(store, made.id)).done >= acknowledged
        while (await current(store, made.id)).is_open:
            if work.done():
                work.result()
                work = asyncio.create_task(OwnerBatches(engine, store, ANONYMOUS_OWNER).run(600))
            await asyncio.sleep(0.2)
        await work
        batch = await current(store, made.id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", LINES, 0)
        assert batch.output_file_id is not None
        output = await store.file(ANONYMOUS_OWNER, batch.output_file_id)
        text = b"".join([part async for part in store.read_parts(ANONYMOUS_OWNER, output)])
        assert [json.loads(line)["custom_id"] for line in text.splitlines()] == [str(n) for n in range(LINES)]
        primary.start()
        shards.whole()
    finally:
        await engine.aclose()
