"""Limits the speed of embedding, so that it does not delay questions and only slightly delays indexing.

A run of the encoder cannot be interrupted, and it shares the processor with the other shards and the service. While
questions arrive, a run has at most `SHARED_RUN_TOKENS` tokens, which is about one passage, and a pause follows each
run. While documents are indexed, embedding waits, because indexing has priority: questions must find a new document by
its words first. Embedding waits at most `INDEXING_SECONDS` before each run, so steady writes do not stop embedding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# The maximum of padded tokens in one run of the encoder. A run pads all its inputs to the same length, and its padded
# tokens are the number of rows times this length. The first limit is the normal limit. The second limit is used while
# questions arrive, and while documents are indexed.
RUN_TOKENS = 512
SHARED_RUN_TOKENS = 128
# The pause after a run while questions arrive, as a multiple of the duration of the run.
PAUSES = 8
INDEXING_SECONDS = 2.0
POLL_SECONDS = 0.02


class Pace:
    """Decides when the encoder of this shard may run, and how many tokens a run may have.

    Args:
        is_shared: whether questions have arrived recently.
        is_indexing: whether documents are being indexed.
    """

    def __init__(self, is_shared: Callable[[], bool], is_indexing: Callable[[], bool]) -> None:
        self._is_shared = is_shared
        self._is_indexing = is_indexing

    async def turn(self) -> int:
        """Wait until the encoder may start its next run; return the maximum number of padded tokens in this run.

        The method waits only while documents are indexed, and at most `INDEXING_SECONDS`.
        """
        deadline = time.monotonic() + INDEXING_SECONDS
        while self._is_indexing() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        return SHARED_RUN_TOKENS if self._is_shared() or self._is_indexing() else RUN_TOKENS

    async def rest(self, run_seconds: float) -> None:
        """If questions have arrived recently, pause after a run that took `run_seconds`."""
        if self._is_shared():
            await asyncio.sleep(PAUSES * run_seconds)
