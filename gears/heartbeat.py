"""Tells the module twice a second, from a thread of its own, that the worker lives, and what it has done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .batcher import Batcher
from .failures import GearsError
from .link import BlockingLink
from .shard import Start

INTERVAL_SECONDS = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


class Heartbeat:
    """The beating thread; `lost` is called in it when the shard no longer answers."""

    def __init__(self, start: Start, batcher: Batcher, lost: Callable[[], None]) -> None:
        self._start = start
        self._batcher = batcher
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
                totals = self._batcher.totals
                numbers = (totals.batches, totals.items, totals.tokens, totals.padded_tokens, self._batcher.depth)
                link.execute("QA.BEAT", resident_bytes(), *numbers)
                if self._stop.wait(INTERVAL_SECONDS):
                    return
        except (GearsError, OSError):
            self._lost()
