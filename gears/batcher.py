"""Micro-batching without waiting: one thread runs models, and while a batch runs whatever arrives queues.

The next batch starts with the oldest item and takes the items of the same model nearest to it in length, as many as fit
the padded-token budget at little padding. Lengths are padded to multiples of 16 and batches to a few sizes, because a
runtime compiles kernels per shape; padding is masked and cut off again, so an item's result does not depend on its
company. A batch that fails is run again item by item: a bad item fails alone. Only token models are batched; others run
one by one.

Threads: `submit` and all results belong to the event loop. The queue is shared with the model thread under one lock;
models and their arrays are touched by the model thread only.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qa_cluster.errors import InferenceFailed, InvalidInput, QAError, QueueFull

from .backends import CompiledModel, Port, is_token_model
from .tensors import Array

LENGTH_STEP = 16
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_FILLER = 8  # at most one row, or one padded token, in so many may be filler
DEFAULT_MAX_BATCH_TOKENS = 1024
DEFAULT_MAX_QUEUE = 4096
IDLE_SECONDS = 0.05


def padded_length(length: int) -> int:
    """Length after padding."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def batch_rows(available: int) -> tuple[int, int]:
    """How many of `available` rows to take, and the size of the batch they go into.

    Filler rows cost as much as real ones: unless there are few, the largest full batch is better.

    >>> batch_rows(5), batch_rows(7), batch_rows(15)
    ((4, 4), (7, 8), (15, 16))
    """
    for size in BATCH_SIZES:
        if size >= available and (size - available) * MAX_FILLER <= size:
            return available, size
    full = max(size for size in BATCH_SIZES if size <= available)
    return full, full


class ServedModel:
    """A compiled model with what batching needs to know of it."""

    def __init__(self, ref: int, compiled: CompiledModel) -> None:
        self.ref = ref
        self.compiled = compiled
        self.is_token_model = is_token_model(compiled)

    def check(self, arrays: Sequence[Array]) -> list[Array]:
        """The inputs in the model's types; InvalidInput when they do not fit it."""
        ports = self.compiled.inputs
        if len(arrays) != len(ports):
            raise InvalidInput(f"the model has {len(ports)} inputs, got {len(arrays)}")
        checked = [self._fit(port, array) for port, array in zip(ports, arrays, strict=True)]
        if self.is_token_model and any(array.shape != checked[0].shape for array in checked):
            shapes = ", ".join(str(list(array.shape)) for array in checked)
            raise InvalidInput(f"the inputs of a token model must have one shape, got {shapes}")
        if self.is_token_model and 0 in checked[0].shape:
            raise InvalidInput(f"a token model's input must not be empty, got shape {list(checked[0].shape)}")
        return checked

    def _fit(self, port: Port, array: Array) -> Array:
        if port.shape is not None and (
            len(port.shape) != array.ndim
            or any(want not in (None, got) for want, got in zip(port.shape, array.shape, strict=True))
        ):
            wanted = ["any" if dim is None else dim for dim in port.shape]
            raise InvalidInput(f"input {port.name} has shape {list(array.shape)}, the model takes {wanted}")
        if port.dtype is None or port.dtype == array.dtype:
            return array
        if self.is_token_model and array.dtype.kind in "iu":
            return array.astype(port.dtype)
        raise InvalidInput(f"input {port.name} is {array.dtype}, the model takes {port.dtype}")


@dataclass(slots=True, eq=False)
class Item:
    """A request: `rows` rows of `length` tokens (other models: one row, no length)."""

    model: ServedModel
    arrays: list[Array]
    future: asyncio.Future[list[Array]]
    rows: int = 1
    length: int = 0


@dataclass(slots=True)
class BatchTotals:
    """Totals since start, for `QA.BEAT`."""

    batches: int = 0
    items: int = 0
    tokens: int = 0
    padded_tokens: int = 0


@dataclass(slots=True)
class Outcome:
    """What became of an item."""

    item: Item
    arrays: list[Array] | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Queue:
    """What the loop and the model thread share."""

    items: deque[Item] = field(default_factory=deque)
    idle_work: deque[Callable[[], None]] = field(default_factory=deque)
    stopping: bool = False


def choose_batch(items: Sequence[Item], max_tokens: int) -> list[Item]:
    """The items of the next batch: the oldest and, of its model, those nearest in length, at little padding.

    Measured on a CPU, a padded token costs what a real one does and a row in a batch hardly less than a row alone: an
    item joins only while padding, beyond what the items would have alone, stays within the share `MAX_FILLER` allows.
    """
    head = items[0]
    if not head.model.is_token_model or head.rows != 1:
        return [head]
    same = sorted((i for i in items if i.model is head.model and i.rows == 1), key=lambda item: item.length)
    low = high = next(index for index, item in enumerate(same) if item is head)
    alone = padded_length(head.length)
    while (count := high - low + 2) <= BATCH_SIZES[-1]:
        wider = []
        for first, last, new in ((low - 1, high, low - 1), (low, high + 1, high + 1)):
            if 0 <= new < len(same):
                padded = count * padded_length(same[last].length)
                tokens = alone + padded_length(same[new].length)
                if padded <= max_tokens and (padded - tokens) * MAX_FILLER <= padded:
                    wider.append((padded - tokens, first, last, tokens))
        if not wider:
            break
        _, low, high, alone = min(wider)
    taken, _ = batch_rows(high - low + 1)
    chosen = same[low : high + 1]
    while len(chosen) > taken:
        chosen.pop(0 if chosen[-1] is head else -1)  # the longest cost most, but the oldest must stay
    return chosen


def run_batch(batch: Sequence[Item], totals: BatchTotals) -> list[list[Array]]:
    """Run items of one token model as one padded batch, and cut each item's part out of the outputs."""
    model = batch[0].model
    rows = sum(item.rows for item in batch)
    size = next((size for size in BATCH_SIZES if size >= rows), rows)
    length = padded_length(max(item.length for item in batch))
    inputs = []
    for position, port in enumerate(model.compiled.inputs):
        padded = np.zeros((size, length), dtype=port.dtype)
        row = 0
        for item in batch:
            padded[row : row + item.rows, : item.length] = item.arrays[position]
            row += item.rows
        padded[row:] = padded[0]
        inputs.append(padded)
    outputs = model.compiled.run(inputs)
    totals.batches += 1
    totals.items += len(batch)
    totals.tokens += sum(item.rows * item.length for item in batch)
    totals.padded_tokens += size * length
    results = []
    row = 0
    for item in batch:
        results.append([np.ascontiguousarray(out[row : row + item.rows, : item.length]) for out in outputs])
        row += item.rows
    return results


class Batcher:
    """The queue in front of the model thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        max_queue: int = DEFAULT_MAX_QUEUE,
    ) -> None:
        self.totals = BatchTotals()
        self._loop = loop
        self._max_tokens = max_batch_tokens
        self._max_queue = max_queue
        self._shared = _Queue()
        self._wake = threading.Condition()
        self._arrived: list[Item] = []
        self._thread = threading.Thread(target=self._work, name="models", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Items that wait."""
        return len(self._shared.items) + len(self._arrived)

    def submit(self, model: ServedModel, arrays: Sequence[Array]) -> asyncio.Future[list[Array]]:
        """Queue a request; QueueFull or InvalidInput at once when it cannot be."""
        if self.depth >= self._max_queue:
            raise QueueFull(f"{self._max_queue} requests wait for a model already: try again later")
        checked = model.check(arrays)
        item = Item(model, checked, self._loop.create_future())
        if model.is_token_model:
            item.rows, item.length = checked[0].shape
        if not self._arrived:
            # whatever the same turn of the loop brings can share the batch
            self._loop.call_soon(self._hand_over)
        self._arrived.append(item)
        return item.future

    def when_idle(self, work: Callable[[], None]) -> None:
        """Let the model thread do something when nothing waits (warming shapes)."""
        with self._wake:
            self._shared.idle_work.append(work)
            self._wake.notify()

    def stop(self) -> None:
        """End the thread after the batch it runs."""
        with self._wake:
            self._shared.stopping = True
            self._wake.notify()
        self._thread.join(timeout=5)

    def _hand_over(self) -> None:
        with self._wake:
            self._shared.items.extend(self._arrived)
            self._wake.notify()
        self._arrived.clear()

    def _take(self) -> list[Item] | Callable[[], None] | None:
        """The next batch, else idle work; waits for one; None when the thread shall end."""
        with self._wake:
            while True:
                shared = self._shared
                if shared.stopping:
                    return None
                while shared.items and shared.items[0].future.cancelled():
                    shared.items.popleft()
                if shared.items:
                    live = [item for item in shared.items if not item.future.cancelled()]
                    batch = choose_batch(live, self._max_tokens)
                    chosen = set(map(id, batch))
                    shared.items = deque(item for item in live if id(item) not in chosen)
                    return batch
                # between two requests of a busy client is not idle
                woken = self._wake.wait(IDLE_SECONDS if shared.idle_work else None)
                if not woken and shared.idle_work:
                    return shared.idle_work.popleft()

    def _work(self) -> None:
        while (work := self._take()) is not None:
            if callable(work):
                work()
                continue
            outcomes = self._run(work)
            try:
                self._loop.call_soon_threadsafe(_deliver, outcomes)
            except RuntimeError:  # the loop has been closed: the worker ends
                return

    def _run(self, batch: list[Item]) -> list[Outcome]:
        try:
            if batch[0].model.is_token_model:
                results = run_batch(batch, self.totals)
            else:
                results = [batch[0].model.compiled.run(batch[0].arrays)]
                self.totals.batches += 1
                self.totals.items += 1
        except Exception as error:  # runtimes raise bare RuntimeError
            if len(batch) == 1:
                return [Outcome(batch[0], error=_told(error))]
            return [outcome for item in batch for outcome in self._run([item])]
        return [Outcome(item, arrays) for item, arrays in zip(batch, results, strict=True)]


def _told(error: Exception) -> Exception:
    return error if isinstance(error, QAError) else InferenceFailed(" ".join(str(error).split())[:500])


def _deliver(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        future = outcome.item.future
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.arrays or [])
