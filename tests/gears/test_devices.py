"""Devices: each has its own queue and threads after its first use, and the number of devices is bounded."""

from __future__ import annotations

import asyncio

import pytest

from qa_cluster.errors import ModelError
from qa_cluster.gears.inference.devices import MAX_DEVICES
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.onnx_file import add_model
from tests.gears.runtimes import AddModel, add, opened_store, pair


async def test_a_busy_device_does_not_delay_another(store: ModelStore) -> None:
    slow, quick = await add(store, 1, AddModel()), await add(store, 2, AddModel(), "CPU:1")
    slow.gate.clear()
    held = asyncio.ensure_future(store.run(1, pair(1)))
    await store.run(2, pair(1))
    assert quick.threads == ["models-CPU:1"] and not held.done()
    slow.gate.set()
    await held
    assert slow.threads == ["models-CPU"]
    assert store.devices.totals.items == 2 and store.devices.depth == 0


async def test_threads_of_a_queue_run_at_the_same_time() -> None:
    async with opened_store(threads_per_queue=2) as store:
        first, second = await add(store, 1, AddModel()), await add(store, 2, AddModel())
        first.gate.clear()
        held = asyncio.ensure_future(store.run(1, pair(1)))
        await asyncio.to_thread(first.entered.wait, 30)
        await store.run(2, pair(1))
        assert second.shapes and not held.done()
        first.gate.set()
        await held


async def test_names_are_checked_and_their_number_bounded(store: ModelStore) -> None:
    assert store.devices.of("cpu:3") is store.devices.of("CPU:3")
    for name in ("TPU", "CPU:", "CPU:x", ""):
        with pytest.raises(GearsError, match="Invalid DEVICE"):
            store.devices.of(name)
    for number in range(MAX_DEVICES - len(store.devices.names)):
        store.devices.of(f"CPU:{100 + number}")
    with pytest.raises(GearsError, match=f"{MAX_DEVICES} devices are in use"):
        store.devices.of("CPU:999")
    with pytest.raises(GearsError, match="devices are in use"):
        await store.compile_reader(1, "ONNX", "CPU:999", add_model())


async def test_a_missing_device_refuses_the_model(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="unsupported device GPU:7"):
        await store.compile_reader(1, "ONNX", "GPU:7", add_model())
    assert store.ready(1) is None


async def test_a_caller_that_waits_is_served_by_the_device(store: ModelStore) -> None:
    model = await add(store, 1, AddModel(), "CPU:1")
    (total,) = store.run_blocking(1, pair(1, 3.0))
    assert total.tolist() == [[6.0, 6.0]] and model.threads == ["models-CPU:1"]
