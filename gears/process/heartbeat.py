"""Reports to the module twice a second, from a thread of its own, that the worker lives, and its totals.

It ends the process if something that no job's deadline covers has blocked the event loop for too long. Functions of
users do not run there, so that is a fault of the worker's own code.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import astuple

from qa_cluster.errors import QAError

from ..calling.threads import FunctionThreads
from ..inference.model_store import ModelStore
from ..shard.failures import GearsError
from ..shard.link import BlockingLink
from ..shard.loop_watch import LoopWatch
from ..shard.memory import resident_bytes
from ..shard.shard import Start

logger = logging.getLogger(__name__)
INTERVAL_SECONDS = 0.5
BLOCKED_EXIT_STATUS = 75


class Heartbeat:
    """The thread of the heartbeat; it calls `lost` when the shard no longer answers."""

    def __init__(
        self,
        start: Start,
        models: ModelStore,
        threads: FunctionThreads,
        watch: LoopWatch,
        lost: Callable[[], None],
    ) -> None:
        self._start = start
        self._threads = threads
        self._models = models
        self._watch = watch
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beat", daemon=True)

    def begin(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating."""
        self._stop.set()

    def _beat(self) -> None:
        try:
            link = BlockingLink(self._start)
            while True:
                self._end_if_blocked()
                devices = self._models.devices
                totals = devices.totals
                numbers = (totals.batches, totals.items, totals.tokens, totals.padded_tokens, devices.depth)
                threads = self._threads
                functions = (threads.count, threads.running, threads.waiting, threads.stuck)
                inference = astuple(self._models.worker_counts)
                link.execute("QA.BEAT", resident_bytes(), *numbers, *functions, *inference)
                if self._stop.wait(INTERVAL_SECONDS):
                    return
        except (QAError, GearsError, OSError):
            self._lost()

    def _end_if_blocked(self) -> None:
        blocked = self._watch.blocked_seconds()
        if blocked is not None:
            give_up(f"the event loop has been blocked for {blocked:.1f} s")


def give_up(reason: str) -> None:
    """End the process, so that the module starts another."""
    logger.error("the worker is replaced: %s", reason)
    logging.shutdown()
    os._exit(BLOCKED_EXIT_STATUS)
