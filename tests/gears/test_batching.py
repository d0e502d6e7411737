"""Batches by `BATCHSIZE`, `MINBATCHSIZE` and `MINBATCHTIMEOUT`."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from qa_cluster.errors import InferenceFailed
from qa_cluster.gears.inference.client_batches import gather, joint_rows
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.inference.served import Batching, Item, ServedModel, TimedOut, within
from qa_cluster.gears.inference.tensors import Array, to_wire
from qa_cluster.gears.process.model_jobs import run_model
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.runtimes import POISON, AddModel, add, assert_ended_only_with_its_run, pair


async def outputs(store: ModelStore, arrays: list[Array], batching: Batching) -> list[list[float]]:
    (total,), _ = await store.run_batched(1, arrays, batching, None)
    return total.tolist()


async def test_requests_wait_for_the_minimum_and_run_as_one(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    batching = Batching(4, 4, 60_000)
    first = asyncio.ensure_future(outputs(store, pair(2, 1.0), batching))
    await asyncio.sleep(0.1)
    assert not first.done() and not model.shapes
    second = await outputs(store, pair(2, 5.0), batching)
    assert (await first, second) == ([[2.0, 2.0]] * 2, [[10.0, 10.0]] * 2)
    assert model.shapes == [(4, 2)]


async def test_the_timeout_counts_from_the_oldest() -> None:
    loop = asyncio.get_running_loop()
    model, batching = ServedModel(1, AddModel()), Batching(8, 8, 1000)

    def item(rows: int, queued_at: float) -> Item:
        return Item(model, pair(rows), loop.create_future(), rows, batching=batching, queued_at=queued_at)

    oldest, later = item(2, 100.0), item(1, 100.2)
    assert gather(oldest, [oldest, later]) == ([oldest, later], 101.0)


async def test_fewer_requests_than_the_minimum_run_after_their_timeout(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    batching = Batching(8, 8, 1000)
    started = time.monotonic()
    await asyncio.gather(outputs(store, pair(2), batching), outputs(store, pair(1), batching))
    assert time.monotonic() - started > 0.98
    assert model.shapes == [(3, 2)]


async def test_waiting_requests_do_not_delay_others(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    never = Batching(4, 4, 3_600_000)
    held = asyncio.ensure_future(outputs(store, pair(1, width=3), never))
    await asyncio.sleep(0.05)
    assert await outputs(store, pair(4), never) == [[2.0, 2.0]] * 4
    assert (await store.run(1, pair(1)))[0].tolist() == [[2.0, 2.0]]
    assert model.shapes == [(4, 2), (1, 2)] and not held.done()
    held.cancel()


def test_other_shapes_types_and_models_run_separately() -> None:
    loop = asyncio.new_event_loop()
    batching, model, other = Batching(8), ServedModel(1, AddModel()), ServedModel(2, AddModel())

    def item(arrays: list[Array], of: ServedModel = model, how: Batching = batching) -> Item:
        return Item(of, arrays, loop.create_future(), joint_rows(arrays), batching=how)

    head, same = item(pair(2)), item(pair(3))
    others = [
        item(pair(1, width=5)),
        item([array.astype("<f8") for array in pair(1)]),
        item(pair(1), other),
        item(pair(4)),  # exceeds the batch size
        item([pair(1)[0], pair(2)[1]]),
        item([np.array(1.0), np.array(1.0)]),
    ]
    assert gather(head, [head, *others[:3], same, *others[3:]])[0] == [head, same]
    assert gather(others[4], [others[4], same])[0] == [others[4]], "inputs whose rows differ run alone"
    assert gather(item(pair(8)), [same])[1] == 0.0, "a full request does not wait"
    loop.close()


async def test_only_the_request_that_caused_an_error_fails(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    batching = Batching(4, 4, 60_000)
    good, bad = await asyncio.gather(
        outputs(store, pair(2), batching), outputs(store, pair(2, POISON), batching), return_exceptions=True
    )
    assert good == [[2.0, 2.0]] * 2
    assert isinstance(bad, InferenceFailed) and str(bad) == "poison"
    assert model.shapes == [(4, 2), (2, 2), (2, 2)]


async def test_outputs_that_cannot_be_split_fail_all(store: ModelStore) -> None:
    class OneRow(AddModel):
        def run(self, arrays: list[Array]) -> list[Array]:
            return [*super().run(arrays), np.ones(1, "<f4")]

    await add(store, 1, OneRow())
    runs = [store.run_batched(1, pair(2), Batching(4, 4, 60_000), None) for _ in range(2)]
    for outcome in await asyncio.gather(*runs, return_exceptions=True):
        assert isinstance(outcome, GearsError)
        assert str(outcome) == "ERR Model did not generate the expected batch size"
    assert len((await store.run_batched(1, pair(4), Batching(4), None))[0]) == 2, "one request needs no split"


async def test_the_time_limit_counts_waiting_but_not_running(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    with pytest.raises(TimedOut):
        await within(100, lambda limit: store.run_batched(1, pair(1), Batching(4, 4, 60_000), limit))
    assert store.devices.of("CPU").depth <= 1 and not model.shapes
    model.gate.clear()
    # 1,000 ms, so that a busy machine can start the run in time
    begun = asyncio.ensure_future(within(1000, lambda limit: store.run_batched(1, pair(1), None, limit)))
    assert await asyncio.to_thread(model.entered.wait, 30)
    behind = asyncio.ensure_future(within(100, lambda limit: store.run_batched(1, pair(1), None, limit)))
    with pytest.raises(TimedOut):
        await behind
    await asyncio.sleep(1.0)
    assert not begun.done()
    model.gate.set()
    assert (await begun)[0][0].tolist() == [[2.0, 2.0]]
    assert model.shapes == [(1, 2)]


async def test_a_cancelled_run_is_not_finished_before_it_ends(store: ModelStore) -> None:
    """The module kills a worker whose cancelled job does not end, so an endless run must not count as finished."""
    model = await add(store, 1, AddModel())
    await assert_ended_only_with_its_run(model, store.run(1, pair(1)))


async def test_the_job_says_timed_out(store: ModelStore) -> None:
    await add(store, 1, AddModel())
    tensors = [part.encode() if isinstance(part, str) else part for array in pair(1) for part in to_wire(array)]
    held = [1, b"ONNX", b"CPU", 4, 4, 60_000, 50, 2, 1, *tensors]
    assert await run_model(store, held) == ("TIMEDOUT",)
    plain = [1, b"ONNX", b"CPU", 0, 0, 0, 60_000, 2, 1, *tensors]
    assert (await run_model(store, plain))[:2] == ("TENSORS", 1)
