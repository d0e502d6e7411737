"""The queue of a device, and the threads that run its models and scripts.

The queue has items: requests to models, and calls of scripts. Only a request to a model with a `MINBATCHSIZE` waits for
more requests. A batch of a token model contains the oldest item, and the items of the same model that add the lowest
cost (`token_batches`). For models with a `BATCHSIZE`, this option determines the batches (`client_batches`). All other
models run one request at a time. If a batch fails, its items run again one by one, so that only the invalid item fails.
(`_run` lists two errors after which the items do not run again.)

Background items (vectors of documents) run only after a pause without other items. The pause is needed because
the service sends the next wave of a question shortly after it has got the answers of the previous wave. A background
item that has waited for `MAX_BACKGROUND_SECONDS` runs next, so that steady load does not stop the background work.

The runs that make vectors of questions come first, because they are short, and the ranking waits for the vectors. These
runs cannot stop other work, because the module limits how many of them a user can have in the worker.

Threads: only the event loop may call `submit` and get results. Other threads use `call_blocking`. The event loop and
the threads of the device share the queue, with one lock. Only the threads of the device use the models and their
arrays.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qa_cluster.errors import InferenceFailed, QAError, QueueFull, WorkerLost

from ..shard.failures import GearsError
from .client_batches import BatchSizeMismatch, gather, joint_rows, run_joined
from .served import Batching, BatchRun, BatchTotals, DeviceCall, Item, RunTimes, ServedModel, WaitLimit
from .tensors import Array
from .token_batches import batch_shape, choose_batch, row_parts, run_batch

DEFAULT_MAX_BATCH_TOKENS = 1024
DEFAULT_MAX_QUEUE = 4096
IDLE_SECONDS = 0.05
QUIET_SECONDS = 0.01
MAX_BACKGROUND_SECONDS = 0.5
OVER_POLL_SECONDS = 0.02


@dataclass(slots=True)
class ItemOutcome:
    """The result of an item, or its error."""

    item: Item | DeviceCall
    arrays: list[Array] | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Queue:
    """The state that the event loop shares with the threads of the device.

    Attributes:
        items: the waiting foreground items, in the order in which they run.
        idle_work: functions that run when no item waits, such as the warming of shapes.
        background: the waiting background items, the oldest first.
    """

    items: deque[Item | DeviceCall] = field(default_factory=deque)
    idle_work: deque[Callable[[], None]] = field(default_factory=deque)
    background: deque[Item] = field(default_factory=deque)
    busy_until: float = 0.0  # the monotonic time when the last foreground item started or ended
    stopping: bool = False


def next_batch(live: Sequence[Item | DeviceCall], max_tokens: int) -> tuple[Sequence[Item | DeviceCall], float]:
    """Return the next batch and 0.

    `live` has the waiting items, the oldest first; it must not be empty. `max_tokens` is the maximum number of padded
    tokens in a batch of a token model. If all items wait for more items, return an empty batch and the monotonic time
    when the next batch may run.
    """
    first = live[0]
    if len(live) == 1 and (isinstance(first, DeviceCall) or first.batching is None):
        return live, 0.0
    held: set[int] = set()
    due = 0.0
    for position, head in enumerate(live):
        if isinstance(head, DeviceCall):
            return [head], 0.0
        if head.batching is None:
            rest = live[position:]
            return choose_batch([i for i in rest if isinstance(i, Item) and i.batching is None], max_tokens), 0.0
        if id(head) in held:
            continue
        batch, ready_at = gather(head, [i for i in live[position:] if isinstance(i, Item) and id(i) not in held])
        if ready_at <= time.monotonic():
            return batch, 0.0
        held.update(map(id, batch))
        due = min(due or ready_at, ready_at)
    return [], due


class Batcher:
    """The queue of a device, and its threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        device: str = "CPU",
        threads: int = 1,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        max_queue: int = DEFAULT_MAX_QUEUE,
    ) -> None:
        self._loop = loop
        self._max_tokens = max_batch_tokens
        self._max_queue = max_queue
        self._shared = _Queue()
        self._wake = threading.Condition()
        self._arrived: list[Item | DeviceCall] = []
        self._totals = [BatchTotals() for _ in range(threads)]  # one for each thread, because `+=` is not atomic
        self._threads = [
            threading.Thread(target=self._work, args=(totals,), name=f"models-{device}", daemon=True)
            for totals in self._totals
        ]
        for thread in self._threads:
            thread.start()

    @property
    def totals(self) -> BatchTotals:
        """The totals of all threads."""
        summed = BatchTotals()
        for totals in self._totals:
            summed.add(totals)
        return summed

    @property
    def depth(self) -> int:
        """The number of waiting items, without background items."""
        return len(self._shared.items) + len(self._arrived)

    def submit(self, model: ServedModel, arrays: Sequence[Array]) -> asyncio.Future[list[Array]]:
        """Queue a request. Raise QueueFull if the queue is full, InvalidInput if the arrays do not match the model."""
        return self.enqueue(model, arrays).future

    def enqueue(
        self,
        model: ServedModel,
        arrays: Sequence[Array],
        batching: Batching | None = None,
        limit: WaitLimit | None = None,
    ) -> Item:
        """Queue a request like `submit`, with batching options and a limit on the waiting time; return its item.

        None means no options, or no limit.
        """
        self._check_capacity()
        checked = model.check(arrays)
        item = Item(model, checked, self._loop.create_future(), limit=limit)
        if batching is not None:
            item.batching = batching
            item.rows = joint_rows(checked)
        elif model.is_token_model:
            item.rows, item.length = checked[0].shape
        self._add(item)
        return item

    async def run(
        self,
        model: ServedModel,
        arrays: Sequence[Array],
        batching: Batching | None = None,
        limit: WaitLimit | None = None,
    ) -> tuple[list[Array], int]:
        """Queue a request and wait for it; return its outputs and the microseconds of its runs.

        A request of a token model with more rows than a batch runs in parts. Other requests can run in between.

        Raises:
            QueueFull, InvalidInput: as `enqueue`.
            InferenceFailed: the model failed.
            CancelledError: the caller was cancelled, and all parts have stopped.
        """
        outputs, items = await self._run_parts(model, arrays, batching, limit)
        return outputs, sum(item.run_us for item in items)

    async def run_measured(self, model: ServedModel, arrays: Sequence[Array]) -> tuple[list[Array], RunTimes]:
        """Like `run`, but also return the times: when the first part was queued, and the run of the last part."""
        outputs, items = await self._run_parts(model, arrays, None, None)
        return outputs, RunTimes(items[0].queued_at, items[-1].ran)

    async def run_in_background(self, model: ServedModel, arrays: Sequence[Array]) -> list[Array]:
        """Run a token model after all foreground items, or after `MAX_BACKGROUND_SECONDS` of waiting.

        All rows run in one batch, so pass only a few rows.

        Raises:
            InvalidInput, InferenceFailed, CancelledError: as `run`.
        """
        item = self._token_item(model, arrays)
        with self._wake:
            self._shared.background.append(item)
            self._wake.notify()
        return await self._result(item)

    async def run_first(self, model: ServedModel, arrays: Sequence[Array]) -> list[Array]:
        """Run a token model before all waiting items.

        This is for short runs on which longer work depends, such as the vector of a question.

        Raises:
            QueueFull, InvalidInput, InferenceFailed, CancelledError: as `run`.
        """
        self._check_capacity()
        item = self._token_item(model, arrays)
        with self._wake:
            self._shared.items.appendleft(item)
            self._wake.notify()
        return await self._result(item)

    def _token_item(self, model: ServedModel, arrays: Sequence[Array]) -> Item:
        checked = model.check(arrays)
        rows, length = checked[0].shape
        return Item(model, checked, self._loop.create_future(), rows, length)

    async def _result(self, item: Item) -> list[Array]:
        """Wait for the outputs of an item. After a cancellation, also wait until the item no longer runs."""
        try:
            return await item.future
        except asyncio.CancelledError:
            await self.until_ended(item)
            raise

    async def _run_parts(
        self, model: ServedModel, arrays: Sequence[Array], batching: Batching | None, limit: WaitLimit | None
    ) -> tuple[list[Array], list[Item]]:
        checked = model.check(arrays)
        parts = [slice(None)]
        if batching is None and model.is_token_model:
            rows, length = checked[0].shape
            parts = row_parts(rows, length, self._max_tokens)
        results, items = [], []
        for part in parts:
            of_part = checked if len(parts) == 1 else [array[part] for array in checked]
            item = self.enqueue(model, of_part, batching, limit)
            results.append(await self._result(item))
            items.append(item)
        if len(parts) == 1:
            return results[0], items
        return [np.concatenate(outputs) for outputs in zip(*results, strict=True)], items

    async def call(
        self, function: Callable[[], list[Array]], limit: WaitLimit | None = None, *, isolated: bool = False
    ) -> tuple[list[Array], int]:
        """Queue a call of a function, and wait for it; return its result and its duration in microseconds.

        `limit` is the limit on the waiting time of the call; None: no limit. `isolated` says that the function runs in
        another process. In this case, a cancelled caller does not wait until the function has ended.
        """
        self._check_capacity()
        future = self._loop.create_future()
        call = DeviceCall(function, future, limit, isolated=isolated)
        self._add(call)
        try:
            return await future, call.run_us
        except asyncio.CancelledError:
            await self.until_ended(call)
            raise

    def call_blocking(self, function: Callable[[], list[Array]]) -> list[Array]:
        """Call a function on a thread of the device and wait for it. Any thread may call this."""
        self._check_capacity()
        future: concurrent.futures.Future[list[Array]] = concurrent.futures.Future()
        with self._wake:
            self._shared.items.append(DeviceCall(function, future))
            self._wake.notify()
        return future.result()

    async def until_ended(self, item: Item | DeviceCall) -> None:
        """Wait until a cancelled item no longer runs, because its run still uses the device.

        Return at once for an item in its own process, because that process has a time limit and delays no other work.
        """
        if (isinstance(item, DeviceCall) and item.isolated) or (isinstance(item, Item) and item.model.isolated):
            return
        while True:
            with self._wake:
                if not item.running:
                    return
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(OVER_POLL_SECONDS)

    def when_idle(self, work: Callable[[], None]) -> None:
        """Queue work, such as warming of shapes, to run when no item has waited or arrived for `IDLE_SECONDS`."""
        with self._wake:
            self._shared.idle_work.append(work)
            self._wake.notify()

    def stop(self) -> None:
        """End the threads after their running batches. Wait for each thread for at most 5 seconds."""
        with self._wake:
            self._shared.stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _check_capacity(self) -> None:
        if self.depth >= self._max_queue:
            raise QueueFull(f"{self._max_queue} requests are waiting for a model, the limit: try again later")

    def _add(self, item: Item | DeviceCall) -> None:
        if not self._arrived:
            # Hand over the items later, so that items of the same iteration of the event loop can share a batch.
            self._loop.call_soon(self._hand_over)
        self._arrived.append(item)

    def _hand_over(self) -> None:
        with self._wake:
            self._shared.items.extend(self._arrived)
            self._wake.notify(len(self._threads))
        self._arrived.clear()

    def _take(self) -> Sequence[Item | DeviceCall] | Callable[[], None] | None:
        """Wait for work; return the next batch, or idle work as a function. None: the thread must end."""
        shared = self._shared
        with self._wake:
            while not shared.stopping:
                for queue in (shared.items, shared.background):
                    while queue and queue[0].future.done():
                        queue.popleft()
                if shared.background and _waited(shared.background[0]) >= MAX_BACKGROUND_SECONDS:
                    return self._begin_background()
                if shared.items:
                    if batch := self._begin_items():
                        return batch
                elif shared.background:
                    quiet = time.monotonic() - shared.busy_until
                    if quiet >= QUIET_SECONDS:
                        return self._begin_background()
                    self._wake.wait(QUIET_SECONDS - quiet)
                # a pause between two requests of a busy client is not idle time
                elif not self._wake.wait(IDLE_SECONDS if shared.idle_work else None) and shared.idle_work:
                    return shared.idle_work.popleft()
            return None

    def _begin_items(self) -> Sequence[Item | DeviceCall]:
        """Take the next batch out of the queue and return it. The caller must hold the lock.

        If all items wait for more items, wait until the first batch is due or an item arrives, and return an empty
        batch. The batch is also empty if the limits of all its items forbid a start.
        """
        shared = self._shared
        live = [item for item in shared.items if not item.future.done()]
        batch, due = next_batch(live, self._max_tokens)
        if len(batch) == len(live):
            shared.items.clear()
        else:
            chosen = set(map(id, batch))
            shared.items = deque(item for item in live if id(item) not in chosen)
        if not batch:
            self._wake.wait(max(0.0, due - time.monotonic()))
            return []
        allowed = [item for item in batch if item.limit is None or item.limit.begin()]
        for item in allowed:
            item.running = True
        shared.busy_until = time.monotonic()
        return allowed

    def _begin_background(self) -> Sequence[Item]:
        """Take the first background item. The caller must hold the lock."""
        item = self._shared.background.popleft()
        item.running = item.in_background = True
        return [item]

    def _work(self, totals: BatchTotals) -> None:
        while (work := self._take()) is not None:
            if callable(work):
                work()
                continue
            outcomes = _run(work, totals)
            for item in work:
                item.running = False
            if isinstance(work[0], DeviceCall) or not work[0].in_background:
                self._shared.busy_until = time.monotonic()
            try:
                _hand_back(self._loop, outcomes)
            except RuntimeError:  # the loop is closed: the worker is shutting down
                return


def _waited(item: Item) -> float:
    return time.monotonic() - item.queued_at


def _run(batch: Sequence[Item | DeviceCall], totals: BatchTotals) -> list[ItemOutcome]:
    started = time.monotonic()
    head = batch[0]
    try:
        if isinstance(head, DeviceCall):
            results = [head.function()]
        else:
            items = [item for item in batch if isinstance(item, Item)]
            plain = head.batching is None and head.model.is_token_model
            results = run_batch(items, totals) if plain else run_joined(items, totals)
    # BatchSizeMismatch: the outputs cannot be split, so all requests of the batch get the error. WorkerLost: separate
    # runs of the items could kill more inference workers.
    except (BatchSizeMismatch, WorkerLost) as error:
        return [ItemOutcome(item, error=error) for item in batch]
    except Exception as error:  # runtimes raise bare RuntimeError
        if len(batch) > 1:
            return [outcome for item in batch for outcome in _run([item], totals)]
        head.run_us = round((time.monotonic() - started) * 1e6)
        return [ItemOutcome(head, error=_as_failure(error))]
    _record_run(batch, started, time.monotonic())
    return [ItemOutcome(item, arrays) for item, arrays in zip(batch, results, strict=True)]


def _record_run(batch: Sequence[Item | DeviceCall], began: float, ended: float) -> None:
    """Record the times and the size of a run in each item that it has run. `began` and `ended` are monotonic times."""
    items = [item for item in batch if isinstance(item, Item)]
    ran: BatchRun | None = None
    if items and items[0].batching is None and items[0].model.is_token_model:
        rows, length = batch_shape(items)
        ran = BatchRun(began, ended, len(items), rows, length, sum(item.rows * item.length for item in items))
    elif items:
        ran = BatchRun(began, ended, len(items))
    for item in items:
        item.ran = ran
    for each in batch:
        each.run_us = round((ended - began) * 1e6)


def _as_failure(error: Exception) -> Exception:
    if isinstance(error, (QAError, GearsError)):
        return error
    return InferenceFailed(" ".join(str(error).split())[:500])


def _hand_back(loop: asyncio.AbstractEventLoop, outcomes: list[ItemOutcome]) -> None:
    if isinstance(outcomes[0].item.future, concurrent.futures.Future):
        _deliver(outcomes)  # not through the event loop, whose thread may be waiting for these results
    else:
        loop.call_soon_threadsafe(_deliver, outcomes)


def _deliver(outcomes: list[ItemOutcome]) -> None:
    for outcome in outcomes:
        future = outcome.item.future
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.arrays or [])
