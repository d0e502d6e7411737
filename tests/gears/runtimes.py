"""Models in Python for tests of queues. The tests can observe and delay their runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from qa_cluster.gears.inference.backends.base import Port, RuntimeLimits
from qa_cluster.gears.inference.devices import Devices
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.inference.served import ServedModel
from qa_cluster.gears.inference.tensors import Array

POISON = 666.0


class AddModel:
    """a + b. It records the shapes of its runs, waits at its gate, and fails on POISON."""

    def __init__(self) -> None:
        self.inputs = (Port("a", None, None), Port("b", None, None))
        self.outputs = (Port("sum", None, None),)
        self.shapes: list[tuple[int, ...]] = []
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        self.entered.set()
        self.gate.wait(60)
        self.shapes.append(arrays[0].shape)
        self.threads.append(threading.current_thread().name)
        if POISON in arrays[0]:
            raise RuntimeError("poison")
        return [arrays[0] + arrays[1]]


def pair(rows: int, value: float = 1.0, width: int = 2) -> list[Array]:
    return [np.full((rows, width), value, "<f4"), np.full((rows, width), value, "<f4")]


async def assert_ended_only_with_its_run(model: AddModel, work: Coroutine[Any, Any, object]) -> None:
    """Cancel a run repeatedly while its model waits, and check that the run does not count as finished."""
    model.gate.clear()
    run = asyncio.ensure_future(work)
    await asyncio.to_thread(model.entered.wait, 30)
    for _ in range(3):
        run.cancel()
        await asyncio.sleep(0.05)
    assert not run.done()
    model.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await run


@asynccontextmanager
async def opened_store(threads_per_queue: int = 1) -> AsyncIterator[ModelStore]:
    """A store without a shard."""
    no_shard: Any = None
    devices = Devices(asyncio.get_running_loop(), threads_per_queue=threads_per_queue)
    try:
        yield ModelStore(no_shard, devices, limits=RuntimeLimits, max_batch_tokens=1024)
    finally:
        devices.stop()


async def add(store: ModelStore, ref: int, model: Any, device: str = "CPU") -> Any:
    """Put a model into the store as if it were loaded."""
    served = ServedModel(ref, model, device)
    store.devices.of(device)
    await store._models.load(ref, lambda: served)
    return model
