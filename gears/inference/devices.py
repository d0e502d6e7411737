"""The devices `CPU`, `CPU:1`, `GPU`, `GPU:0` and so on. Each device has its own bounded queue and threads.

The first use of a model or script of a device creates the device's queue. The queue `CPU` exists from the start.
"""

from __future__ import annotations

import asyncio
import re
import threading

from ..shard.failures import GearsError
from .batcher import DEFAULT_MAX_BATCH_TOKENS, Batcher
from .served import BatchTotals

DEFAULT_DEVICE = "CPU"
MAX_DEVICES = 32
_DEVICE = re.compile(r"(CPU|GPU)(:[0-9]+)?", re.IGNORECASE)


class Devices:
    """The queues of all devices."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads_per_queue: int = 1,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
    ) -> None:
        self._loop = loop
        self._threads_per_queue = threads_per_queue
        self._max_batch_tokens = max_batch_tokens
        self._lock = threading.Lock()
        self._queues: dict[str, Batcher] = {}
        self.of(DEFAULT_DEVICE)

    def of(self, device: str) -> Batcher:
        """Return the queue of a device, and create the queue at the first use.

        Raises GearsError if `device` is not the name of a device, or if `MAX_DEVICES` other devices have a queue.
        """
        queue = self._queues.get(device)
        return queue if queue is not None else self._make(device)

    def _make(self, device: str) -> Batcher:
        if not _DEVICE.fullmatch(device):
            raise GearsError(f"ERR Invalid DEVICE: {device}")
        name = device.upper()
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                if len(self._queues) >= MAX_DEVICES:
                    raise GearsError(
                        f"ERR {MAX_DEVICES} devices are in use, the limit: use one of them instead of {name}"
                    )
                queue = Batcher(
                    self._loop, device=name, threads=self._threads_per_queue, max_batch_tokens=self._max_batch_tokens
                )
                # replaces the dictionary instead of changing it, because threads read it without a lock
                self._queues = {**self._queues, name: queue}
            return queue

    @property
    def names(self) -> list[str]:
        """The devices that have a queue."""
        return list(self._queues)

    @property
    def totals(self) -> BatchTotals:
        """The totals of all devices."""
        summed = BatchTotals()
        for queue in self._queues.values():
            summed.add(queue.totals)
        return summed

    @property
    def depth(self) -> int:
        """The number of waiting items on all devices."""
        return sum(queue.depth for queue in self._queues.values())

    def stop(self) -> None:
        """End all threads after their running batches."""
        for queue in self._queues.values():
            queue.stop()
