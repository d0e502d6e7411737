"""The items in a device's queue: requests to models, calls of scripts, and limits on their waiting time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qa_cluster.errors import InvalidInput

from .backends.base import CompiledModel, Port, is_token_model, makes_vectors
from .tensors import Array

T = TypeVar("T")


class TimedOut(Exception):
    """A request did not start within its client's limit of the waiting time."""


class WaitLimit:
    """Decides once whether work starts before its waiting time is over.

    For a part of a request, `whole` is the limit of the request.
    """

    def __init__(self, whole: WaitLimit | None = None) -> None:
        self._lock = threading.Lock()
        self._whole = whole
        self._begun = False
        self.expired = False

    def begin(self) -> bool:
        """Return whether the work may start. After True, the limit cannot expire any more."""
        with self._lock:
            if not self.expired and (self._whole is None or self._whole.begin()):
                self._begun = True
            return self._begun

    def expire(self) -> bool:
        """Return whether the limit has expired before the work started. After True, the work cannot start any more."""
        with self._lock:
            if not self._begun:
                self.expired = True
            return self.expired


async def within(wait_ms: int, work: Callable[[WaitLimit | None], Coroutine[Any, Any, T]]) -> T:
    """Call `work`, wait for its end and return its result.

    `work` is called with a limit, which it must pass to the items that it queues. Raise TimedOut if none of these items
    has started after `wait_ms` milliseconds. If `wait_ms` is 0, the waiting time is not limited, and `work` is called
    with None.
    """
    if wait_ms <= 0:
        return await work(None)
    limit = WaitLimit()
    task = asyncio.ensure_future(work(limit))

    def expire() -> None:
        if limit.expire():
            task.cancel()

    timer = asyncio.get_running_loop().call_later(wait_ms / 1000, expire)
    try:
        return await task
    except asyncio.CancelledError:
        if limit.expired:
            raise TimedOut from None
        raise
    finally:
        timer.cancel()
        task.cancel()


class ServedModel:
    """A compiled model, and its properties for batching."""

    def __init__(self, ref: int, compiled: CompiledModel, device: str = "CPU", *, isolated: bool = False) -> None:
        self.ref = ref
        self.compiled = compiled
        self.device = device
        self.isolated = isolated  # whether the model runs in a separate process
        self.is_token_model = is_token_model(compiled)
        self.makes_vectors = self.is_token_model and makes_vectors(compiled)
        # the shapes (rows, tokens) that have run; the first run of a shape compiles its kernels
        self.warmed: set[tuple[int, int]] = set()

    def check(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the inputs in the types of the model; raise InvalidInput if they do not match the model."""
        ports = self.compiled.inputs
        if len(arrays) != len(ports):
            raise InvalidInput(f"the model has {len(ports)} inputs, got {len(arrays)}")
        checked = [self._fit(port, array) for port, array in zip(ports, arrays, strict=True)]
        if self.is_token_model and any(array.shape != checked[0].shape for array in checked):
            shapes = ", ".join(str(list(array.shape)) for array in checked)
            raise InvalidInput(f"the inputs of a token model must have the same shape, got {shapes}")
        if self.is_token_model and 0 in checked[0].shape:
            raise InvalidInput(f"the inputs of a token model must not be empty, got shape {list(checked[0].shape)}")
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


@dataclass(frozen=True, slots=True)
class Batching:
    """The `BATCHSIZE` options of a model: how its requests share runs.

    Attributes:
        size: the maximum number of rows in a batch (`BATCHSIZE`).
        min_size: the number of rows for which a batch waits (`MINBATCHSIZE`); 0: a batch does not wait.
        min_timeout_ms: the maximum time of this wait (`MINBATCHTIMEOUT`); 0: `DEFAULT_MIN_TIMEOUT_MS`.
    """

    size: int
    min_size: int = 0
    min_timeout_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class BatchRun:
    """A successful run on a thread of the device. All items of the run share this object.

    Attributes:
        began, ended: seconds of `time.monotonic`.
        items: the number of requests.
        rows, length: the padded shape of the batch of a token model; 0 for other models.
        tokens: the number of tokens without padding.
    """

    began: float
    ended: float
    items: int
    rows: int = 0
    length: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The monotonic time when a request was queued, and the run that produced its outputs.

    For a request in several parts, these are the time of the first part and the run of the last part. `batch` is None
    if the run is unknown.
    """

    queued_at: float
    batch: BatchRun | None


@dataclass(slots=True, eq=False)
class Item:
    """A request to a model.

    Attributes:
        rows, length: the size of a request to a token model: `rows` rows of `length` tokens. With `batching`, `rows` is
            the size of dimension 0 of all inputs; 0: the sizes differ, and the request must run alone.
        future: gets the outputs or the error.
        limit: the limit on the waiting time; None: no limit.
        queued_at: the monotonic time when the request was created.
        running: whether a thread of the device runs the request now.
        run_us: the duration of the last run in microseconds; 0 before the first run.
        ran: the last successful run; None before the first successful run.
    """

    model: ServedModel
    arrays: list[Array]
    future: asyncio.Future[list[Array]]
    rows: int = 1
    length: int = 0
    batching: Batching | None = None
    limit: WaitLimit | None = None
    queued_at: float = field(default_factory=time.monotonic)
    running: bool = False
    in_background: bool = False
    run_us: int = 0
    ran: BatchRun | None = None


@dataclass(slots=True, eq=False)
class DeviceCall:
    """A call of a function on a thread of the device. It is never batched.

    `isolated`: the function runs in a separate process.
    """

    function: Callable[[], list[Array]]
    future: asyncio.Future[list[Array]] | concurrent.futures.Future[list[Array]]
    limit: WaitLimit | None = None
    running: bool = False
    run_us: int = 0
    isolated: bool = False


@dataclass(slots=True)
class BatchTotals:
    """Totals since the start of the worker, for `QA.BEAT`.

    Attributes:
        batches: the number of batches that have run without an error.
        items: the number of requests in these batches.
        tokens, padded_tokens: the number of tokens in these batches of token models, without and with padding.
    """

    batches: int = 0
    items: int = 0
    tokens: int = 0
    padded_tokens: int = 0

    def add(self, other: BatchTotals) -> None:
        """Add the totals of another thread or device."""
        self.batches += other.batches
        self.items += other.items
        self.tokens += other.tokens
        self.padded_tokens += other.padded_tokens
