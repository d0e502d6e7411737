"""Sends the module a heartbeat ten times a second, from a separate thread, with the values for `INFO`.

If the event loop is blocked for too long while no job with a time limit runs, this thread ends the process. While a job
with a time limit runs, the module ends the worker instead (`loop_watch`). User functions do not run on the event loop,
so only a fault of the worker's own code can block the event loop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Protocol

from qa_cluster.errors import QAError

from ..inference.model_store import ModelStore
from ..shard.failures import GearsError
from ..shard.link import BlockingLink
from ..shard.loop_watch import LoopWatch
from ..shard.memory import resident_bytes
from ..shard.shard import Start

logger = logging.getLogger(__name__)
INTERVAL_SECONDS = 0.1
# Every n-th heartbeat has all values. The heartbeats in between only report how long the event loop has been silent.
ALL_VALUES_EVERY = 5
BLOCKED_EXIT_STATUS = 75


class FunctionCounts(Protocol):
    """The counts of user functions for the heartbeat.

    Attributes:
        count: the number of threads for user functions.
        stuck: the number of calls that the worker has interrupted, but that do not end.
    """

    count: int
    stuck: int

    @property
    def running(self) -> int:
        """The number of calls that run on a thread. Stuck calls do not count."""

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""


class FailedDocuments(Protocol):
    """Has the number of failed documents for the heartbeat."""

    @property
    def count(self) -> int:
        """The number of failed documents on this shard."""


class UnembeddedDocuments(Protocol):
    """Has the number of documents without vectors for the heartbeat.

    Attributes:
        waiting: the number of documents of this shard without vectors, at the last count.
    """

    waiting: int


class Heartbeat:
    """The thread of the heartbeat. It calls `lost` when the shard does not answer any more."""

    def __init__(  # noqa: PLR0917 - each part of the worker that it reports on
        self,
        start: Start,
        models: ModelStore,
        threads: FunctionCounts,
        watch: LoopWatch,
        failures: FailedDocuments,
        embedding: UnembeddedDocuments,
        lost: Callable[[], None],
    ) -> None:
        self._start = start
        self._threads = threads
        self._models = models
        self._watch = watch
        self._failures = failures
        self._embedding = embedding
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beat", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()

    def _beat(self) -> None:
        try:
            link = BlockingLink(self._start)
            for number in count():
                self._end_if_blocked()
                silence_ms = int(self._watch.silence() * 1000)
                if number % ALL_VALUES_EVERY:
                    link.execute("QA.BEAT", "loop_silence_ms", silence_ms)
                else:
                    link.execute("QA.BEAT", *(word for pair in self._values(silence_ms).items() for word in pair))
                if self._stop.wait(INTERVAL_SECONDS):
                    return
        except (QAError, GearsError, OSError):
            self._lost()

    def _values(self, loop_silence_ms: int) -> dict[str, int]:
        """Return the values by their names in `QA.BEAT`."""
        models, threads, inference = self._models, self._threads, self._models.worker_counts
        totals, isolated = models.totals, models.isolated
        return {
            "rss_bytes": resident_bytes(),
            "loop_silence_ms": loop_silence_ms,
            "batches": totals.batches,
            "batched_items": totals.items,
            "batched_tokens": totals.tokens,
            "padded_tokens": totals.padded_tokens,
            "queue_depth": models.depth,
            "function_threads": threads.count,
            "functions_running": threads.running,
            "functions_waiting": threads.waiting,
            "functions_stuck": threads.stuck,
            "failed_documents": self._failures.count,
            "unembedded_documents": self._embedding.waiting,
            "inference_workers": inference.configured,
            "inference_ready": inference.ready,
            "inference_restarts": inference.restarts,
            "inference_batches": inference.batches,
            "inference_retries": inference.retries,
            "inference_rss_bytes": inference.rss_bytes,
            "inference_missing": inference.missing,
            "inference_file_bytes": inference.file_bytes,
            "model_processes": len(isolated.pids) if isolated is not None else 0,
            "model_rss_bytes": isolated.resident_bytes if isolated is not None else 0,
            "model_failures": isolated.failures if isolated is not None else 0,
        }

    def _end_if_blocked(self) -> None:
        blocked = self._watch.blocked_seconds()
        if blocked is not None:
            give_up(f"the event loop has been blocked for {blocked:.1f} s")


def give_up(reason: str) -> None:
    """Log `reason` and end the worker's process at once, so that the module starts another worker."""
    logger.error("the worker is replaced: %s", reason)
    logging.shutdown()
    os._exit(BLOCKED_EXIT_STATUS)
