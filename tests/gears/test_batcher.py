"""Micro-batching: which items share a batch, the effect of padding, and the isolation of failing items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.errors import InferenceFailed, InvalidInput, QueueFull, WorkerLost
from qa_cluster.gears.inference import token_batches
from qa_cluster.gears.inference.backends.base import Port, RuntimeLimits, is_token_model
from qa_cluster.gears.inference.batcher import Batcher
from qa_cluster.gears.inference.served import BatchTotals, Item, ServedModel
from qa_cluster.gears.inference.tensors import Array
from qa_cluster.gears.inference.token_batches import (
    BATCH_SIZES,
    RUN_TOKENS,
    cheapest_runs,
    choose_batch,
    padded_rows,
    row_parts,
    run_batch,
)
from tests.gears.files import load_bytes

INT64 = np.dtype("<i8")
POISON = 666
READER = Path(__file__).resolve().parents[2] / "models" / "default" / "reader.onnx"


class FakeModel:
    """A token model that returns the sum of a row's ids at every token, and records the shapes of its runs."""

    def __init__(self) -> None:
        self.inputs = tuple(Port(name, INT64, (None, None)) for name in ("input_ids", "attention_mask"))
        self.outputs = (Port("logits", np.dtype("<f4"), (None, None)),)
        self.shapes: list[tuple[int, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        self.entered.set()
        self.gate.wait(30)
        ids, mask = arrays
        self.shapes.append(ids.shape)
        if POISON in ids:
            raise RuntimeError("poison\nin two lines")
        assert not (ids * (1 - mask)).any(), "padding carries ids"
        return [np.repeat((ids * mask).sum(axis=1, keepdims=True), ids.shape[1], axis=1).astype("<f4")]


def row(length: int, value: int = 1) -> list[Array]:
    return [np.full((1, length), value, INT64), np.ones((1, length), INT64)]


@pytest.fixture
def fake() -> Iterator[FakeModel]:
    made = FakeModel()
    yield made
    made.gate.set()


@pytest.fixture
def model(fake: FakeModel) -> ServedModel:
    return ServedModel(1, fake)


@asynccontextmanager
async def batching(**options: int) -> AsyncIterator[Batcher]:
    made = Batcher(asyncio.get_running_loop(), **options)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with batching() as made:
        yield made


def items(lengths: Sequence[int]) -> list[Item]:
    model = ServedModel(1, FakeModel())
    loop = asyncio.new_event_loop()
    try:
        return [Item(model, row(length), loop.create_future(), 1, length) for length in lengths]
    finally:
        loop.close()


async def test_a_single_request_runs_at_once_and_its_padding_is_removed(
    batcher: Batcher, fake: FakeModel, model: ServedModel
) -> None:
    (logits,) = await batcher.submit(model, row(5, 2))
    assert logits.tolist() == [[10.0] * 5]
    assert fake.shapes == [(1, 16)]
    assert (batcher.totals.tokens, batcher.totals.padded_tokens, batcher.totals.batches) == (5, 16, 1)


async def test_requests_that_arrive_during_a_run_share_the_next_batch(
    batcher: Batcher, fake: FakeModel, model: ServedModel
) -> None:
    fake.gate.clear()
    first = batcher.submit(model, row(4))
    assert await asyncio.to_thread(fake.entered.wait, 30)
    rest = [batcher.submit(model, row(4, n)) for n in range(8)]
    await asyncio.sleep(0.05)
    fake.gate.set()
    await first
    answers = [float((await future)[0][0, 0]) for future in rest]
    assert answers == [4.0 * n for n in range(8)]
    assert fake.shapes == [(1, 16), (8, 16)]


async def test_requests_of_one_loop_iteration_share_a_batch(
    batcher: Batcher, fake: FakeModel, model: ServedModel
) -> None:
    await asyncio.gather(*[batcher.submit(model, row(20)) for _ in range(4)])
    assert fake.shapes == [(4, 32)]


async def test_many_rows_run_in_parts_with_others_in_between(
    batcher: Batcher, fake: FakeModel, model: ServedModel
) -> None:
    fake.gate.clear()
    ids = np.repeat(np.arange(1000).reshape(-1, 1) % 100, 16, axis=1)
    many = asyncio.create_task(batcher.run(model, [ids, np.ones_like(ids)]))
    await asyncio.to_thread(fake.entered.wait, 30)
    one = asyncio.create_task(batcher.run(model, row(16)))
    await asyncio.sleep(0.01)
    fake.gate.set()
    ((sums,), _) = await one
    assert (sums.shape, many.done()) == ((1, 16), False)
    assert fake.shapes[:2] == [(32, 16), (1, 16)]
    ((sums,), took_us) = await many
    assert np.array_equal(sums, ids * 16) and took_us > 0
    assert [shape for shape in fake.shapes if shape != (1, 16)] == [(32, 16)] * 31 + [(8, 16)]


async def test_a_cancelled_request_of_many_rows_starts_no_further_part(
    batcher: Batcher, fake: FakeModel, model: ServedModel
) -> None:
    fake.gate.clear()
    ids = np.ones((200, 16), INT64)
    many = asyncio.create_task(batcher.run(model, [ids, ids]))
    await asyncio.to_thread(fake.entered.wait, 30)
    many.cancel()
    fake.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await many
    await batcher.run(model, row(16))
    assert fake.shapes == [(32, 16), (1, 16)]


def test_rows_are_divided_into_full_batches() -> None:
    for rows, length, budget in ((1, 5000, 1024), (64, 16, 1024), (65, 16, 1024), (20, 100, 1024), (3, 5000, 16)):
        parts = row_parts(rows, length, budget)
        assert [number for part in parts for number in range(part.start, part.stop)] == list(range(rows))
        assert all((part.stop - part.start) * length <= max(budget, length) for part in parts)
        assert all(part.stop - part.start in BATCH_SIZES for part in parts[:-1])


async def test_a_bad_item_fails_alone(batcher: Batcher, fake: FakeModel, model: ServedModel) -> None:
    futures = [batcher.submit(model, row(4, value)) for value in (1, POISON, 3, 4)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, InferenceFailed) for outcome in outcomes] == [False, True, False, False]
    assert str(outcomes[1]) == "poison in two lines"
    assert fake.shapes == [(4, 16), (1, 16), (1, 16), (1, 16), (1, 16)]


async def test_a_batch_that_kills_workers_fails_as_a_whole(
    batcher: Batcher, fake: FakeModel, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[int, ...]] = []

    def lost(arrays: Sequence[Array]) -> list[Array]:
        runs.append(arrays[0].shape)
        raise WorkerLost("2 inference workers died during this run")

    monkeypatch.setattr(fake, "run", lost)
    outcomes = await asyncio.gather(*[batcher.submit(model, row(4)) for _ in range(4)], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [WorkerLost] * 4
    assert runs == [(4, 16)]


async def test_a_cancelled_request_is_not_run(batcher: Batcher, fake: FakeModel, model: ServedModel) -> None:
    fake.gate.clear()
    first = batcher.submit(model, row(4))
    assert await asyncio.to_thread(fake.entered.wait, 30)
    gone, stays = batcher.submit(model, row(4)), batcher.submit(model, row(40))
    await asyncio.sleep(0.05)
    gone.cancel()
    fake.gate.set()
    await first
    await stays
    assert fake.shapes == [(1, 16), (1, 48)]


async def test_a_full_queue_refuses_at_once(fake: FakeModel, model: ServedModel) -> None:
    async with batching(max_queue=3) as batcher:
        fake.gate.clear()
        waiting = [batcher.submit(model, row(4)) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 requests are waiting"):
            batcher.submit(model, row(4))
        fake.gate.set()
        await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (row(4)[:1], "the model has 2 inputs, got 1"),
        ([row(4)[0], row(5)[0]], "must have the same shape"),
        ([row(4)[0], row(4)[0].astype("<f4")], "attention_mask is float32, the model takes int64"),
        ([row(4)[0][0], row(4)[0]], r"input_ids has shape \[4\]"),
        ([np.ones((1, 0), INT64)] * 2, "must not be empty"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arrays: list[Array], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ServedModel(1, FakeModel()).check(arrays)


def test_narrow_integers_are_widened() -> None:
    checked = ServedModel(1, FakeModel()).check([np.ones((1, 4), "<i4"), np.ones((1, 4), "<i4")])
    assert [array.dtype for array in checked] == [INT64, INT64]


def test_a_batch_stays_within_its_budget_and_has_the_oldest_item() -> None:
    queued = items([64, 64, 60, 200, 70, 64, 16])
    batch = choose_batch(queued, 4 * 64)
    assert queued[0] in batch
    assert sorted(item.length for item in batch) == [60, 64, 64, 64]
    assert choose_batch(items([400, 16]), 64)[0].length == 400


def test_few_items_share_a_run_and_many_are_grouped_by_length() -> None:
    assert sorted(item.length for item in choose_batch(items([32, 16, 48, 32]), 4096)) == [16, 32, 32, 48]
    assert [item.length for item in choose_batch(items([64, 16, 96, 32]), 4096)] == [64, 96]
    assert [item.length for item in choose_batch(items([16] * 8 + [128] * 4), 4096)] == [16] * 8
    assert [item.length for item in choose_batch(items([128] + [16] * 8), 4096)] == [128]


@pytest.mark.parametrize("seed", range(20))
def test_batches_have_the_least_total_cost(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    lengths = sorted(int(length) * 16 for length in random.integers(1, 9, count))
    budget = int(random.integers(2, 40)) * 16

    def cost(cuts: Sequence[int]) -> float:
        runs = [lengths[first:last] for first, last in pairwise((0, *cuts, count))]
        tokens = [padded_rows(len(run)) * run[-1] for run in runs]
        if any(used > budget and len(run) > 1 for used, run in zip(tokens, runs, strict=True)):
            return np.inf
        return sum(tokens) + RUN_TOKENS * len(runs)

    found = cheapest_runs(lengths, budget)
    every = chain.from_iterable(combinations(range(1, count), size) for size in range(count))
    assert [run.start for run in found] == [0, *(run.stop for run in found[:-1])]
    assert found[-1].stop == count
    assert cost([run.start for run in found[1:]]) == min(map(cost, every))


def test_only_the_neighbours_of_the_oldest_item_are_divided_in_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    parted: list[int] = []

    def count(lengths: Sequence[int], max_tokens: int) -> list[slice]:
        parted.append(len(lengths))
        return cheapest_runs(lengths, max_tokens)

    monkeypatch.setattr(token_batches, "cheapest_runs", count)
    queued = items([int(length) for length in np.random.default_rng(3).integers(1, 300, 3000)])
    assert queued[0] in choose_batch(queued, 1024)
    assert parted == [2 * (BATCH_SIZES[-1] - 1) + 1]


def test_outputs_without_one_value_per_token_are_refused() -> None:
    item = items([5])[0]
    item.model.compiled.run = lambda inputs: [inputs[0][:, :1].astype("<f4")]  # type: ignore[method-assign]
    with pytest.raises(InferenceFailed, match=r"for 1 x 16 tokens it returned the shape \[1, 1\]"):
        run_batch([item], BatchTotals())


def test_models_with_other_shapes_are_not_token_models() -> None:
    fake = FakeModel()
    assert is_token_model(fake)
    fake.outputs = (Port("pooled", np.dtype("<f4"), (None, 384)),)
    assert not is_token_model(fake)


@pytest.mark.skipif(not READER.exists(), reason="the bundled reader is not built")
def test_the_bundled_reader_answers_alike_alone_and_in_batches() -> None:
    compiled = load_bytes("ONNX", "CPU", READER.read_bytes(), RuntimeLimits())
    assert is_token_model(compiled)
    random = np.random.default_rng(7)
    inputs = []
    for length in (9, 16, 23, 40, 41, 60, 12, 33):
        ids = random.integers(1000, 20000, (1, length))
        names = [port.name for port in compiled.inputs]
        inputs.append([ids if name == "input_ids" else np.full_like(ids, name == "attention_mask") for name in names])

    model = ServedModel(1, compiled)
    loop = asyncio.new_event_loop()
    queued = [Item(model, arrays, loop.create_future(), length=arrays[0].shape[1]) for arrays in inputs]
    together = run_batch(queued, BatchTotals())
    loop.close()
    for item, other in zip(queued, together, strict=True):
        (one,) = run_batch([item], BatchTotals())
        for a, b in zip(one, other, strict=True):
            assert int(a.argmax()) == int(b.argmax())
            np.testing.assert_allclose(a, b, atol=0.05)


class FakeEncoder(FakeModel):
    """An encoder whose vectors have the sum of the ids of a row in all dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = (Port("vector", np.dtype("<f4"), (None, 3)),)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        (sums,) = super().run(arrays)
        return [np.repeat(sums[:, :1], 3, axis=1)]


async def test_rows_of_an_encoder_are_batched_and_each_gets_its_vector(batcher: Batcher) -> None:
    encoder = FakeEncoder()
    model = ServedModel(2, encoder)
    assert (model.is_token_model, model.makes_vectors) == (True, True)
    found = await asyncio.gather(*(batcher.submit(model, row(length, 2)) for length in (5, 20, 7)))
    assert [vectors.tolist() for (vectors,) in found] == [[[10.0] * 3], [[40.0] * 3], [[14.0] * 3]]
    assert encoder.shapes == [(2, 16), (1, 32)]


def test_only_an_output_of_this_name_and_shape_is_a_vector() -> None:
    for port in (Port("logits", None, (None, 3)), Port("vector", None, (None, None)), Port("vector", None, (3, None))):
        assert not port.is_vector
    other = FakeEncoder()
    other.outputs = (Port("logits", np.dtype("<f4"), (None, 3)),)
    assert not is_token_model(other)  # so a user's classifier is never padded


async def test_an_encoder_without_a_vector_for_each_row_is_refused(batcher: Batcher) -> None:
    encoder = FakeEncoder()
    model = ServedModel(2, encoder)
    encoder.run = lambda arrays: [np.zeros((7, 3), "<f4")]  # type: ignore[method-assign]
    with pytest.raises(InferenceFailed, match="an encoder must return values for each row"):
        await batcher.submit(model, row(5))


async def test_urgent_work_runs_before_all_waiting_work(batcher: Batcher, fake: FakeModel, model: ServedModel) -> None:
    fake.gate.clear()
    waiting = [batcher.submit(model, row(4)), *(batcher.submit(model, row(900)) for _ in range(3))]
    await asyncio.to_thread(fake.entered.wait, 10)
    urgent = asyncio.ensure_future(batcher.run_first(model, row(20, 3)))
    await asyncio.sleep(0.02)
    fake.gate.set()
    assert (await urgent)[0][0, 0] == 60
    await asyncio.gather(*waiting)
    assert fake.shapes[1] == (1, 32)
    with pytest.raises(InferenceFailed, match="poison"):
        await batcher.run_first(model, row(5, POISON))


async def test_background_work_waits_for_all_other_work(batcher: Batcher, fake: FakeModel, model: ServedModel) -> None:
    fake.gate.clear()
    first = batcher.submit(model, row(4))
    await asyncio.to_thread(fake.entered.wait, 10)
    background = asyncio.ensure_future(batcher.run_in_background(model, row(90)))
    await asyncio.sleep(0)
    later = [batcher.submit(model, row(40)), batcher.submit(model, row(60))]
    await asyncio.sleep(0.02)
    fake.gate.set()
    await asyncio.gather(first, *later, background)
    assert fake.shapes[-1] == (1, 96)
    assert len(fake.shapes) in (3, 4)


async def test_background_work_pauses_after_a_question(
    batcher: Batcher, fake: FakeModel, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa_cluster.gears.inference.batcher.QUIET_SECONDS", 0.3)
    await batcher.submit(model, row(4))
    background = asyncio.ensure_future(batcher.run_in_background(model, row(90)))
    await asyncio.sleep(0.05)
    await batcher.submit(model, row(30))  # the next wave of the question
    assert not background.done()
    assert fake.shapes == [(1, 16), (1, 32)]
    await background
    assert fake.shapes[-1] == (1, 96)


async def test_steady_questions_do_not_stop_background_work(
    batcher: Batcher, fake: FakeModel, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa_cluster.gears.inference.batcher.QUIET_SECONDS", 60.0)
    monkeypatch.setattr("qa_cluster.gears.inference.batcher.MAX_BACKGROUND_SECONDS", 0.1)
    background = asyncio.ensure_future(batcher.run_in_background(model, row(90)))
    for _ in range(1000):
        await batcher.submit(model, row(4))
        if background.done():
            break
    assert (await background)[0].shape == (1, 90)


async def test_failed_and_cancelled_background_work(batcher: Batcher, fake: FakeModel, model: ServedModel) -> None:
    with pytest.raises(InferenceFailed, match="poison"):
        await batcher.run_in_background(model, row(5, POISON))
    fake.gate.clear()
    fake.entered.clear()
    running = batcher.submit(model, row(4))
    await asyncio.to_thread(fake.entered.wait, 10)
    background = asyncio.ensure_future(batcher.run_in_background(model, row(90)))
    await asyncio.sleep(0.01)
    background.cancel()
    fake.gate.set()
    await running
    with pytest.raises(asyncio.CancelledError):
        await background
    await batcher.submit(model, row(20))
    assert (1, 96) not in fake.shapes
